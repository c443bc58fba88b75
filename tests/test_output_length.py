"""Every prompt's own output length: the distribution, and what a real engine makes of it."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pytest
import vllm_scheduler
from harness import engines
from harness.checks import check
from harness.data import local_model, local_tokenizer
from harness.prediction.engine_state import Limits
from harness.target_length import longest_output, target_length
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

SUITE = Path(config.__file__).parent
SHORTEST, LONGEST, MAX_MODEL_LEN, BLOCK = 1, 40, 512, 16
# 48 blocks of 8,192 bytes (2 layers x 2 KV heads x 32 x key and value x 2 bytes): the longest request fits, and 32
# requests at a time do not.
KV_CACHE_BYTES = 48 * BLOCK * 512


def set_lengths(patch: pytest.MonkeyPatch, distribution: str, shortest: int, longest: int) -> None:
    for knob, value in (("DISTRIBUTION", distribution), ("MIN", shortest), ("MAX", longest)):
        patch.setattr(config, f"OUTPUT_LEN_{knob}", value)
        patch.setenv(f"BENCH_OUTPUT_LEN_{knob}", str(value))


def lengths_of(count: int) -> np.ndarray:
    return np.array([target_length([i, i + 1]) for i in range(count)])


def test_uniform_lengths_fill_the_bounds_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    set_lengths(monkeypatch, "uniform", 16, 512)
    lengths = lengths_of(20_000)
    assert (lengths.min(), lengths.max()) == (16, 512)
    assert lengths.mean() == pytest.approx((16 + 512) / 2, rel=0.02)
    assert np.histogram(lengths, bins=8)[0] == pytest.approx(np.full(8, 2500), rel=0.1)


def test_log_uniform_lengths_fill_every_doubling_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    set_lengths(monkeypatch, "log-uniform", 16, 512)
    lengths = lengths_of(20_000)
    assert (lengths.min(), lengths.max()) == (16, 512)
    weights = {k: math.log((k + 1) / k) / math.log(513 / 16) for k in range(16, 513)}
    assert lengths.mean() == pytest.approx(sum(k * weight for k, weight in weights.items()), rel=0.02)
    assert np.histogram(lengths, bins=[16, 32, 64, 128, 256, 513])[0] == pytest.approx(np.full(5, 4000), rel=0.1)


def test_bounds_that_meet_leave_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for distribution in ("uniform", "log-uniform"):
        set_lengths(monkeypatch, distribution, 5, 5)
        assert set(lengths_of(1000)) == {5}


def test_fixed_lengths_are_the_published_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "OUTPUT_LEN", 128)
    assert (target_length([1, 2, 3]), longest_output()) == (128, 128)


def test_a_length_never_changes_between_processes_machines_and_releases() -> None:
    program = "from harness.target_length import target_length as t; print([t(range(n)) for n in (0, 1, 2, 3, 512)])"
    knobs = {"BENCH_OUTPUT_LEN_DISTRIBUTION": "log-uniform", "BENCH_OUTPUT_LEN_MAX": "512"}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | knobs | {"PYTHONPATH": str(SUITE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert result.stdout.strip() == "[184, 136, 403, 70, 199]"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_kind_of_scheduler_ends_requests_at_their_own_lengths_however_early_they_would_end(
    asynchronous: bool, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's engine on a CPU is synchronous whatever it is told; on a GPU it is asynchronous."""
    set_lengths(monkeypatch, "log-uniform", SHORTEST, LONGEST)
    rng = random.Random(1)
    prompts = [[rng.randrange(1000, 2000) for _ in range(rng.randint(1, 120))] for _ in range(150)]
    limits = Limits(48, 32, 256, LONGEST, asynchronous)
    ends_at_once, all_at_once = [1] * len(prompts), [list(range(len(prompts)))]
    counted = vllm_scheduler.run(
        str(model_folder), prompts, ends_at_once, all_at_once, limits, BLOCK, engines.FORCED_LENGTH
    )
    assert counted.output_tokens == [target_length(prompt) for prompt in prompts]
    assert counted.preemptions > 0
    scheduler = vllm_scheduler._scheduler(str(model_folder), limits, BLOCK, engines.FORCED_LENGTH)
    assert isinstance(scheduler, AsyncScheduler) is asynchronous


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One engine with ForcedLength, a KV cache that is too small for its batch, and lengths from 1 to 40."""
    with pytest.MonkeyPatch.context() as patch:
        set_lengths(patch, "log-uniform", SHORTEST, LONGEST)
        patch.setenv("HF_HUB_OFFLINE", "1")
        from vllm import LLM

        llm = LLM(
            str(local_model.make(tmp_path_factory.mktemp("model"))),
            scheduler_cls=engines.FORCED_LENGTH,
            max_model_len=MAX_MODEL_LEN,
            block_size=BLOCK,
            max_num_seqs=32,
            max_num_batched_tokens=256,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            enforce_eager=True,
            disable_log_stats=False,
        )
        yield llm
        llm.llm_engine.engine_core.shutdown()


def sampling(**changes: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"max_tokens": LONGEST, "temperature": 0.0} | changes)


def words(count: int, seed: int) -> str:
    """A text of exactly `count` tokens of the local model."""
    rng = random.Random(seed)
    syllables = [a + b for a in local_tokenizer.CONSONANTS for b in local_tokenizer.VOWELS]
    return "".join(f" {rng.choice(syllables)}{rng.choice(syllables)}" for _ in range(count))


def mixed_prompts() -> list[str]:
    rng = random.Random(1)
    return [words(rng.randint(1, 120), seed) for seed in range(150)]


def generate(engine: Any, prompts: list[str], params: Any) -> tuple[list[Any], list[int], list[int]]:
    """Outputs, their lengths and the lengths that the prompts should have had."""
    outputs = engine.generate(prompts, params, use_tqdm=False)
    tokens = [len(output.outputs[0].token_ids) for output in outputs]
    return outputs, tokens, [target_length(output.prompt_token_ids) for output in outputs]


def counted(engine: Any) -> dict[str, Any]:
    """The engine's counters; a difference of two readings is what happened between them."""
    readings: dict[str, Any] = {"finished": {}}
    for metric in engine.get_metrics():
        name = metric.name.removeprefix("vllm:")
        if name == "request_success":
            readings["finished"][metric.labels["finished_reason"]] = metric.value
        elif name == "request_generation_tokens":
            readings[name] = dict(metric.buckets)
        elif hasattr(metric, "value"):
            readings[name] = metric.value
    return readings


def since(before: Any, after: Any) -> Any:
    if isinstance(after, dict):
        return {key: since(before[key], after[key]) for key in after}
    return after - before


def test_every_output_has_its_own_length_in_a_mixed_batch_with_preemptions(engine: Any) -> None:
    before = counted(engine)
    params = [sampling(temperature=float(i % 2)) for i in range(150)]
    outputs, tokens, targets = generate(engine, mixed_prompts(), params)
    counters = since(before, counted(engine))
    assert tokens == targets
    assert (min(targets), max(targets)) == (SHORTEST, LONGEST)
    assert counters["num_preemptions"] > 0
    returned = pa.table({"id": range(150), "output": [output.outputs[0].text for output in outputs]})
    verdict = check(pa.array(range(150)), returned, np.array(targets), counters)
    assert verdict.ok, verdict.error


def test_a_logit_bias_that_forces_an_early_end_is_invalid_and_not_fast(engine: Any) -> None:
    before = counted(engine)
    stop = " baba"
    token = engine.get_tokenizer().encode(stop)[0]
    outputs, tokens, targets = generate(engine, mixed_prompts(), sampling(logit_bias={token: 100.0}, stop=[stop]))
    assert set(tokens) == {1}
    columns = {"id": range(150), "output": [output.outputs[0].text for output in outputs]}
    short = sum(target > 1 for target in targets)
    ids, expected = pa.array(range(150)), np.array(targets)
    by_row = check(ids, pa.table(columns | {"output_tokens": tokens}), expected, None)
    assert by_row.rows["short"] == short > 100
    by_engine = check(ids, pa.table(columns), expected, since(before, counted(engine)))
    assert by_engine.rows["short"] == short
    assert not by_row.ok
    assert not by_engine.ok


def test_a_bias_towards_the_end_token_cannot_end_a_request_early(engine: Any) -> None:
    end = engine.get_tokenizer().eos_token_id
    _, tokens, targets = generate(engine, mixed_prompts()[:40], sampling(logit_bias={end: 100.0}))
    assert tokens == targets


def test_prompts_up_to_the_limit_are_answered_in_full(engine: Any) -> None:
    limit = MAX_MODEL_LEN - LONGEST
    _, tokens, targets = generate(engine, [words(limit - 1, 1), words(limit, 2)], sampling())
    assert tokens == targets


def test_50_rows_with_one_prompt_are_all_answered_and_the_hit_rate_shows_it(engine: Any) -> None:
    tokenizer = engine.get_tokenizer()
    # 60 tokens: three full blocks to share and little else, so that nothing is preempted.
    prompt = next(text for seed in range(1000, 2000) if target_length(tokenizer.encode(text := words(60, seed))) <= 4)
    before = counted(engine)
    _, tokens, targets = generate(engine, [prompt] * 50, sampling())
    counters = since(before, counted(engine))
    assert tokens == targets
    assert (counters["prefix_cache_queries"], counters["prefix_cache_hits"]) == (50 * 60, 49 * 3 * BLOCK)


def test_after_a_refused_prompt_the_next_call_returns_its_own_rows_only(engine: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    good = mixed_prompts()
    with pytest.raises(VLLMValidationError, match=str(MAX_MODEL_LEN)):
        engine.generate([*good[:3], words(MAX_MODEL_LEN + 1, 1), *good[3:6]], sampling(), use_tqdm=False)
    outputs, tokens, targets = generate(engine, good[6:9], sampling())
    assert [output.prompt for output in outputs] == good[6:9]
    assert tokens == targets
