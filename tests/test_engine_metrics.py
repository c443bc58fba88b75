"""What the probe reads from one real engine: counters, cache state, how full it was, where its time went.

The KV cache holds 4,096 tokens, so small loads fit and large ones are preempted.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import engine_metrics, engine_probe, evidence
from harness.comparison import comparability
from harness.engine_log import EngineLog

MAX_NUM_SEQS, BLOCK = 64, 16
KV_CACHE_BYTES = 4096 * 512


@pytest.fixture(scope="module")
def llm(model_folder: Path) -> Iterator[Any]:
    from vllm import LLM

    llm = LLM(
        str(model_folder),
        max_model_len=1024,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=2048,
        block_size=BLOCK,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        enforce_eager=True,
        disable_log_stats=False,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture
def words(tokenizer: Any) -> list[str]:
    return sorted(word[1:] for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha())


def prompts(words: list[str], count: int, tokens: int, seed: int = 0) -> list[str]:
    """Distinct prompts that share no prefix: each begins with a word of its own."""
    return ["".join(f" {words[(seed + i + j * (i + 7)) % len(words)]}" for j in range(tokens)) for i in range(count)]


def load(llm: Any, texts: list[str], output_len: int = 8, in_flight: int | None = None) -> EngineLog:
    """Generates `texts`, `in_flight` at a time, watched as a run's engine is; returns what the run's log would hold."""
    from vllm import SamplingParams

    parameters = SamplingParams(min_tokens=output_len, max_tokens=output_len)
    before = engine_metrics.counters()
    clock = engine_metrics.Clock(llm.llm_engine, before)
    step = in_flight or len(texts)
    with engine_probe.watching(clock):
        for first in range(0, len(texts), step):
            llm.generate(texts[first : first + step], parameters, use_tqdm=False)
    return log_of(llm, before, clock)


def log_of(llm: Any, before: dict[str, Any], clock: engine_metrics.Clock) -> EngineLog:
    log, start = EngineLog(), {"attention_backend": None}
    settings = engine_metrics.settings(llm.llm_engine, start)
    messages = [
        {"kind": "building", "core_started_at": 0.0, "cores": []},
        {"kind": "ready", "ready_at": 0.0, "settings": settings, "start": start, "counters": before, "actor": None}
        | {"cores": []},
        {"kind": "sample", "counters": engine_metrics.counters(), "values": engine_metrics.sample(clock)},
    ]
    told = {"engine": "node:1", "node": "node", "pid": 1, "at": time.time(), "received_at": time.time()}
    log.extend([{**told, **message} for message in messages])
    return log


def hit_rate(log: EngineLog) -> float:
    counters = evidence.counters_total(log, None)
    assert counters is not None
    return float(counters["prefix_cache_hits"] / counters["prefix_cache_queries"])


def test_a_load_that_comes_back_is_warm_and_not_compared_with_its_first_time(llm: Any, words: list[str]) -> None:
    llm.reset_prefix_cache()
    a, b = prompts(words, 8, 3 * BLOCK + 1), prompts(words, 8, 3 * BLOCK + 1, seed=3000)
    first = load(llm, a)
    load(llm, b)
    again = load(llm, a)
    assert (hit_rate(first), hit_rate(again)) == (0.0, pytest.approx(48 / 49))
    assert evidence.cache_state(again, None)[0] == "warm"
    assert "claims a cold prefix cache" in evidence.cache_state(again, None)[1][0]
    cold, warm = ({"cache_state": state, "engines": []} for state in ("cold", "warm"))
    assert any("cache_state" in text for text in comparability.read_back_differences(cold, warm))


def test_distinct_prompts_in_a_small_cache_are_preempted_and_never_count_as_hits(llm: Any, words: list[str]) -> None:
    llm.reset_prefix_cache()
    log = load(llm, prompts(words, 40, 100, seed=500), output_len=100)
    counters = evidence.counters_total(log, None)
    assert counters is not None
    assert counters["preemptions"] > 0
    # A resumed request may find its own blocks again; vLLM must not count that as sharing between requests.
    assert hit_rate(log) < 0.01
    assert any("preempted" in warning for warning in evidence.warnings(log))


@pytest.mark.parametrize(
    ("in_flight", "total", "full"), [(16, 48, False), (48, 96, False), (16 * 8, 256, True), (512, 512, True)]
)
def test_a_feed_that_never_fills_the_engine_is_flagged(
    llm: Any, words: list[str], in_flight: int, total: int, full: bool
) -> None:
    log = load(llm, prompts(words, total, BLOCK, seed=1000), in_flight=in_flight)
    assert log.built()[0]["latest"]["max_running"] == min(in_flight, MAX_NUM_SEQS)
    assert any("never filled" in warning for warning in evidence.warnings(log)) == (not full)


def test_idle_prefill_and_decode_add_up_to_the_time_that_passed(llm: Any, words: list[str]) -> None:
    started = time.time()
    log = load(llm, prompts(words, 32, 20 * BLOCK, seed=2000), output_len=32)
    passed = time.time() - started
    latest = log.built()[0]["latest"]
    assert latest["prefill_s"] > 0
    assert latest["decode_s"] > 0
    assert latest["idle_s"] + latest["prefill_s"] + latest["decode_s"] == pytest.approx(passed, abs=0.15)


def test_a_counter_that_this_vllm_lacks_is_an_error_and_not_0(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert llm.llm_engine is not None
    engine_metrics.require_all()
    monkeypatch.setitem(engine_metrics.SCALARS, "preemptions", "vllm:renamed")
    with pytest.raises(RuntimeError, match="expected vLLM to count vllm:renamed, found no such metrics"):
        engine_metrics.require_all()


def test_counters_do_not_depend_on_how_often_they_are_read(llm: Any, words: list[str]) -> None:
    log = load(llm, prompts(words, 10, 40, seed=4000), output_len=5)
    counters = evidence.counters_total(log, None)
    assert counters is not None
    assert (counters["prompt_tokens"], counters["generation_tokens"]) == (400, 50)
    assert counters["finished"]["length"] == 10
