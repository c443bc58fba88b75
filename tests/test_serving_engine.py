"""Live traffic on a real vLLM server (CPU engine, small model): cache between rows, cancelled and refused requests.

One server serves every test here; it takes about 30 s to start.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import config
import pytest
from answering import answering
from harness.data import prompts
from harness.serving import configurations, prefix_cache, row, row_file, row_record, sections, server
from harness.serving.client import Limits
from harness.serving.server import Server, ServerError
from harness.serving.targets import Targets
from harness.serving.traffic import Generator, Request, Sizes, schedule

SUITE = Path(row.__file__).resolve().parents[2]
LIMIT = 24
SMALL = {
    **{"GPUS_PER_ENGINE": 0, "MAX_MODEL_LEN": 1024, "MAX_NUM_SEQS": 16, "MAX_NUM_BATCHED_TOKENS": 2048},
    **{"KV_CACHE_MEMORY_BYTES": 67108864, "ENFORCE_EAGER": True},
}
SIZES = Sizes(48, 8, 200, 8, 96, 4, 16, 6, 4, 0.0)
TARGETS = Targets(ttft_s=5, itl_s=5, e2e_s=None, error_share=0.01)
LIMITS = Limits(20, 20)


@pytest.fixture(scope="module")
def small_engine(model_folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "MODEL_NAME", str(model_folder))
        for name, value in SMALL.items():
            patch.setattr(config, name, value)
        yield


@pytest.fixture(scope="module")
def running(small_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:  # noqa: ARG001
    (configuration,) = configurations.parse(f"admission_limit={LIMIT}")
    log = tmp_path_factory.mktemp("server") / "log"
    with server.running(configuration, log, 180) as found:
        prefix_cache.send_canary(found)
        yield found


@pytest.fixture(scope="module")
def words(tokenizer) -> list[str]:
    return prompts.words(tokenizer).to_pylist()


def mixed(words, count, rate, seed=1, **shares):
    requests = Generator(words, shares or {"agents": 1.0}, SIZES, seed).take(count)
    return schedule(requests, "poisson", rate, seed, 1.0)


def hit_rate(found):
    return found["server"]["prefix_cache_hits"] / found["server"]["prefix_cache_queries"]


def test_the_same_load_twice_with_another_between_finds_the_same_in_the_cache(running, words):
    a, b = mixed(words, 24, 40), mixed(words, 24, 40, seed=2)
    first, between, again = (row.measure(running, load, LIMITS, TARGETS)[0] for load in (a, b, a))
    assert [one["cache_state"] for one in (first, between, again)] == ["cold"] * 3
    assert 0.3 < hit_rate(first) < 0.9
    # Requests that arrive together may both miss: which of them do depends on the engine's steps.
    assert hit_rate(again) == pytest.approx(hit_rate(first), abs=0.1)


def test_without_a_reset_the_row_is_labelled_warm_and_not_compared(running, words, monkeypatch):
    load = mixed(words, 16, 40, seed=3)
    row.measure(running, load, LIMITS, TARGETS)
    monkeypatch.setattr(prefix_cache, "_reset", lambda _: False)
    warm, _ = row.measure(running, load, LIMITS, TARGETS)
    assert warm["cache_state"] == "warm"
    assert hit_rate(warm) > 0.9


def test_what_the_client_counts_is_what_the_engine_counts(running, words):
    found, outcomes = row.measure(running, mixed(words, 30, 40, chat=0.5, long=0.5), LIMITS, TARGETS)
    assert found["counts"]["completed"] == 30
    assert found["output_tokens"] == found["server"]["generation_tokens"]
    assert sum(one.prompt_tokens for one in outcomes) == found["server"]["prompt_tokens"]
    assert found["server"]["finished"] == {"length": 30}
    assert found["server"]["queue_time"]["count"] == 30
    engine_ttft = found["server"]["ttft"]
    assert found["latency"]["sent_ttft_s"]["mean"] >= engine_ttft["sum"] / engine_ttft["count"]


# Not beside other tests: a starved server hears of a cancellation when it has generated all tokens.
@pytest.mark.cluster
def test_cancelled_requests_leave_nothing_in_the_servers_memory(running, words):
    requests = [Request("agents", "".join(words[i : i + 60]), 400, cancel_after=3) for i in range(12)]
    timed = [(i * 0.02, request) for i, request in enumerate(requests)]
    found, _ = row.measure(running, timed, LIMITS, TARGETS)
    assert found["counts"]["cancelled"] == 12
    # vLLM 0.27 counts requests that ended by themselves; these did not.
    assert not found["server"]["finished"]
    assert found["server"]["generation_tokens"] < 12 * 400
    assert found["after"]["settled_s"] < row.SETTLE_S
    assert found["before"]["kv_cache_usage"] == found["after"]["kv_cache_usage"] == 0
    assert found["after"]["running"] == found["after"]["waiting"] == 0


def test_a_burst_of_ten_times_the_rate_is_refused_beyond_the_limit_and_loses_no_request(running, words):
    load = mixed(words, 300, 600, chat=1.0)
    found, outcomes = row.measure(running, load, LIMITS, TARGETS)
    counts = found["counts"]
    assert counts["offered"] == 300
    assert counts["completed"] + counts["refused"] + counts["failed"] + counts["cancelled"] == 300
    assert counts["refused"] > 0
    assert counts["failed"] == 0
    assert {one.cause for one in outcomes if one.result == "refused"} == {"HTTP 429"}
    assert found["server"]["finished"] == {"length": counts["completed"]}
    assert (found["server"]["running_max"] or 0) <= LIMIT
    assert "failed or refused" in found["violations"][-1]


def test_settings_are_read_back_from_the_server(running):
    said = server.settings(running)
    assert (said["max_num_seqs"], said["max_num_batched_tokens"], said["chunked_prefill"]) == (16, 2048, True)
    assert said["num_gpu_blocks"] > 0


@pytest.mark.usefixtures("small_engine")
def test_a_server_that_refuses_its_settings_is_an_error_with_its_reason(tmp_path):
    (configuration,) = configurations.parse("max_num_batched_tokens=8")
    with (
        pytest.raises(ServerError, match="exit code 1") as error,
        server.running(configuration, tmp_path / "log", 60),
    ):
        pass
    assert "max_num_batched_tokens" in str(error.value)


@pytest.mark.usefixtures("small_engine")
def test_a_server_that_is_not_healthy_in_time_is_ended_and_said(tmp_path):
    (configuration,) = configurations.parse("baseline")
    with pytest.raises(ServerError, match="not healthy after 1 s"), server.running(configuration, tmp_path / "log", 1):
        pass


def script(tmp_path, model_folder, *options, **knobs):
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BENCH_")},
        **{"BENCH_PROFILE": "local-cpu", "BENCH_MODEL_NAME": str(model_folder), "BENCH_RESULTS_PATH": str(tmp_path)},
        **{f"BENCH_{name}": str(value) for name, value in knobs.items()},
    }
    command = [sys.executable, str(SUITE / "serving-scorecard.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_the_script_scores_a_server_that_runs_already(running, tmp_path, model_folder):
    done = script(
        tmp_path, model_folder, "--url", running.endpoint.url, "--rates", "6", "12", "--seconds-per-rate", "2"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = row_file.load(tmp_path)
    assert [problem for one in rows for problem in row_record.problems(one)] == []
    # Both rates, and the better one again.
    assert len(rows) == 3
    assert len(sections.group(rows)) == 1
    assert rows[2]["repeat_of"] in (rows[0]["row_id"], rows[1]["row_id"])
    assert json.loads(done.stdout.splitlines()[-1])["rows"][0]["counts"]["offered"] == 12
    assert (tmp_path / "serving.html").exists()
    assert script(tmp_path, model_folder, "--check").stdout == "3 rows, 0 problems\n"
    assert script(tmp_path, model_folder, "--report").returncode == 0


def test_the_script_ends_non_zero_where_requests_fail(tmp_path, model_folder):
    async def half(number, say):
        if number >= 60 and number % 2:
            say.refuse(500)
        else:
            say.whole(tokens=1)

    one_token = {"SERVING_MIX": "chat=1", "SERVING_CHAT_OUTPUT_LEN": 1}
    with answering(half) as address:
        options = ("--url", address, "--rates", "40", "--seconds-per-rate", "1", "--no-repeat")
        done = script(tmp_path, model_folder, *options, **one_token)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "HTTP 500" in done.stdout
    (found,) = row_file.load(tmp_path)
    assert found["causes"] == {"HTTP 500": found["counts"]["failed"]}
    assert 10 <= found["counts"]["failed"] <= 20


def test_the_script_refuses_what_it_cannot_run_before_any_server_starts(tmp_path, model_folder):
    cases = {
        "max_seqs=3": ("--configurations", "baseline,max_seqs=3"),
        "expected baseline alone": ("--url", "http://localhost:1", "--configurations", "max_num_seqs=3"),
        "no such file": ("--trace", "missing.jsonl"),
    }
    for expected, options in cases.items():
        done = script(tmp_path, model_folder, *options)
        assert (done.returncode, expected in done.stderr) == (3, True), done.stderr
    done = script(tmp_path, model_folder, SERVING_LONG_PROMPT_LEN=900)
    assert (done.returncode, "MAX_MODEL_LEN (1024)" in done.stderr) == (3, True), done.stderr
