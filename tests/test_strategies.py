"""All seven strategies end to end: real Ray, real vLLM engines on CPU, a dataset whose hit rate is known beforehand.

Half of its prompts are answered from the prefix cache: every prompt occurs twice and is one token longer than a whole
number of blocks, so the first of a pair hits nothing and the second all its blocks, whichever comes first.
"""

import difflib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "benchmarking" / "vllm"
STRATEGIES = (
    "naive-batch",
    "naive-batch-sorted",
    "continuous-batch",
    "continuous-batch-sorted",
    "prefix-bucketing",
    "ray-data",
    "prefix-planned",
)
ROWS, BLOCK, BLOCKS, OUTPUT_LEN = 96, 16, 4, 8
PROMPT_LEN = BLOCKS * BLOCK + 1

Run = tuple[dict[str, Any], pa.Table]


def environment(folder: Path, **knobs: Any) -> dict[str, str]:
    """A user's environment with the local profile, and `knobs` on top; not that of the make that runs these tests."""
    return {
        **{name: value for name, value in os.environ.items() if "MAKE" not in name},
        "PYTHONPATH": str(Path(__file__).parent),
        "BENCH_PROFILE": "local-cpu",
        "BENCH_RESULTS_PATH": str(folder / "results"),
        **{f"BENCH_{name}": str(value) for name, value in knobs.items()},
    }


def start_script(script: str, folder: Path, **knobs: Any) -> "subprocess.Popen[str]":
    """Starts a strategy's script as a user does."""
    command = [sys.executable, str(SUITE / f"{script}.py")]
    return subprocess.Popen(
        command, env=environment(folder, **knobs), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_script(script: str, folder: Path, **knobs: Any) -> tuple[int, dict[str, Any], str]:
    """Runs a strategy's script to its end; (exit code, record on stdout's last line, stderr)."""
    with start_script(script, folder, **knobs) as process:
        output, errors = process.communicate(timeout=300)
    lines = output.strip().splitlines()
    assert lines, f"{script} printed nothing; its stderr ends in:\n{errors[-3000:]}"
    return process.returncode, json.loads(lines[-1]), errors


@pytest.fixture(scope="module")
def half_hit(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """ROWS prompts of PROMPT_LEN tokens, each twice under different ids; ids and order are shuffled."""
    draw = random.Random(7)
    words = sorted(word for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha())
    prompts = ["".join(f" {word[1:]}" for word in draw.sample(words, PROMPT_LEN)) for _ in range(ROWS // 2)]
    assert {len(tokenizer.encode(prompt)) for prompt in prompts} == {PROMPT_LEN}
    rows = list(zip(draw.sample(range(10_000), ROWS), prompts * 2, strict=True))
    draw.shuffle(rows)
    path = tmp_path_factory.mktemp("half-hit") / "half_hit.parquet"
    pq.write_table(pa.table({"id": [row[0] for row in rows], "prompt": [row[1] for row in rows]}), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs leave their records and answers."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def bench(folder: Path, half_hit: Path, model_folder: Path) -> "subprocess.CompletedProcess[str]":
    """`make bench`, with the dataset and model of these tests."""
    knobs = {
        "MODEL_NAME": model_folder,
        "INPUT_PATH": half_hit,
        "OUTPUT_PATH": folder / "answers",
        "OUTPUT_LEN": OUTPUT_LEN,
        "LOGITS_PROCESSORS": "echo:Echo",
    }
    return subprocess.run(
        ["make", "bench"], cwd=ROOT, env=environment(folder, **knobs), capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def runs(bench: "subprocess.CompletedProcess[str]", folder: Path) -> dict[str, Run]:
    """Every strategy's (record, answers), from its log and its output file."""
    assert bench.returncode == 0, bench.stdout[-3000:] + bench.stderr[-3000:]
    records = [json.loads(line) for line in (folder / "results" / "records.jsonl").read_text().splitlines()]
    answers = {record["run_id"]: folder / "answers" / f"{record['run_id']}.parquet" for record in records}
    return {record["strategy"]: (record, pq.read_table(answers[record["run_id"]])) for record in records}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_answers_every_row_once_with_the_tokens_asked_for(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    assert (record["status"], record["error"]) == ("ok", None)
    wrong = {kind: record["rows"][kind] for kind in ("missing", "doubled", "unknown", "null", "short", "long")}
    assert wrong == dict.fromkeys(wrong, 0)
    assert record["rows"]["in"] == record["rows"]["out"] == ROWS
    assert record["tokens"] == {"prompt": ROWS * PROMPT_LEN, "output": ROWS * OUTPUT_LEN}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rows_answer_belongs_to_its_prompt(
    strategy: str, runs: dict[str, Run], half_hit: Path, tokenizer: Any
) -> None:
    asked = pq.read_table(half_hit)
    prompts = dict(zip(asked["id"].to_pylist(), asked["prompt"].to_pylist(), strict=True))
    answers = runs[strategy][1]
    for row, answer in zip(answers["id"].to_pylist(), answers["output"].to_pylist(), strict=True):
        assert answer == tokenizer.decode([tokenizer.encode(prompts[row])[-1]] * OUTPUT_LEN)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_recorded_hit_rate_is_the_one_the_dataset_was_built_for(strategy: str, runs: dict[str, Run]) -> None:
    counters = runs[strategy][0]["counters"]
    assert counters["prefix_cache_queries"] == ROWS * PROMPT_LEN
    assert counters["prefix_cache_hits"] == ROWS // 2 * BLOCKS * BLOCK
    assert counters["prefix_cache_hits"] / counters["prefix_cache_queries"] == pytest.approx(0.5, abs=1 / PROMPT_LEN)


def test_the_engines_limits_are_equal_in_every_strategy_as_read_back(runs: dict[str, Run]) -> None:
    settings = [engine["settings"] for record, _ in runs.values() for engine in record["engines"]]
    assert all(setting == settings[0] for setting in settings)
    assert (settings[0]["max_num_seqs"], settings[0]["max_num_batched_tokens"]) == (64, 2048)
    assert (settings[0]["block_size"], settings[0]["prefix_caching"]) == (BLOCK, True)
    unknown = {name for name, value in settings[0].items() if value is None}
    assert unknown == set()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_start_up_is_a_phase_of_its_own_and_paid_once_an_engine(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    assert len(record["engines"]) == record["config"]["CONCURRENCY"]
    assert record["phases_s"]["engine_start"] > 1
    assert record["phase_tokens"]["engine_start"] < 0.1 * ROWS * OUTPUT_LEN
    assert sum(record["phases_s"].values()) == pytest.approx(record["wall_s"], abs=1e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_waterfall_adds_up_to_the_wall_time_within_2_percent(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    parts = {part: seconds for part, seconds in record["waterfall_s"].items() if part != "unattributed"}
    assert sum(parts.values()) == pytest.approx(record["wall_s"], rel=0.02)
    assert min(parts.values()) >= 0
    assert parts["prefill"] > 0
    assert parts["decode"] > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_cache_is_proved_cold_before_the_first_request(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    assert record["cache_state"] == "cold"
    assert [engine["before"]["prefix_cache_queries"] for engine in record["engines"]] == [0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_record_says_how_full_its_engine_was(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    most = record["engines"][0]["max_running"]
    assert 0 < most <= 64
    assert any("never filled" in warning for warning in record["warnings"]) == (most < 64)


def test_make_bench_runs_each_strategy_once_and_ends_in_a_table_and_the_reports_path(
    bench: "subprocess.CompletedProcess[str]", runs: dict[str, Run], folder: Path
) -> None:
    assert set(runs) == set(STRATEGIES)
    for strategy in STRATEGIES:
        assert re.search(rf"^{strategy} +1 of 1 ", bench.stdout, re.MULTILINE), bench.stdout
    assert bench.stdout.rstrip().endswith(f"report: {folder / 'results' / 'report.html'}")


def test_a_scripts_last_line_is_the_record_that_was_appended(runs: dict[str, Run], folder: Path) -> None:
    logs = list((folder / "results" / "logs").rglob("*.log"))
    printed = [json.loads(log.read_text().strip().splitlines()[-1]) for log in logs]
    assert sorted(printed, key=lambda record: record["run_id"]) == sorted(
        (record for record, _ in runs.values()), key=lambda record: record["run_id"]
    )


def test_each_run_leaves_its_engines_time_series_beside_its_record(runs: dict[str, Run], folder: Path) -> None:
    for record, _ in runs.values():
        series = pq.read_table(folder / "results" / "timeseries" / f"{record['run_id']}.parquet")
        assert series["generation_tokens"].to_pylist()[-1] == ROWS * OUTPUT_LEN
        assert series["t_s"].to_pylist() == sorted(series["t_s"].to_pylist())


def test_daft_losing_rows_is_an_invalid_run_and_never_a_time(
    tmp_path: Path, half_hit: Path, model_folder: Path
) -> None:
    """Daft 0.7.26 loses rows with more than one partition: the real fault, on two real engines."""
    code, record, _ = run_script(
        "continuous-batch",
        tmp_path,
        MODEL_NAME=model_folder,
        INPUT_PATH=half_hit,
        OUTPUT_LEN=OUTPUT_LEN,
        CONTINUOUS_PARTITIONS=8,
        WATCHDOG_STALL_S=20,
    )
    assert code == 1
    assert record["status"] == "invalid"
    assert record["rows"]["missing"] > 0
    assert f"{record['rows']['missing']} of {ROWS} rows missing" in record["error"]


def test_an_engine_that_dies_ends_the_run_as_failed_with_its_last_metrics_and_nothing_left_running(
    tmp_path: Path, half_hit: Path, model_folder: Path
) -> None:
    knobs = {"MODEL_NAME": model_folder, "INPUT_PATH": half_hit, "OUTPUT_LEN": 600}
    with start_script("continuous-batch", tmp_path, **knobs) as process:
        family = wait_until_generating(process)
        core = next(child for child in family if child.name().startswith("VLLM"))
        core.kill()
        killed = time.monotonic()
        output, errors = process.communicate(timeout=120)
    assert time.monotonic() - killed < 60
    assert process.returncode == 2, errors[-3000:]
    record = json.loads(output.strip().splitlines()[-1])
    assert record["status"] == "failed"
    assert f"engine {record['engines'][0]['engine']} died" in record["error"]
    assert 0 < record["counters"]["generation_tokens"] < ROWS * 600
    assert record["phases_s"]["steady"] > 0
    assert psutil.wait_procs(family, timeout=10)[1] == []


def wait_until_generating(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Follows the run's progress lines until requests are running; returns every process of the run."""
    assert process.stderr is not None
    for line in process.stderr:
        if "running" in line and "running 0" not in line:
            return psutil.Process(process.pid).children(recursive=True)
    raise AssertionError("the run ended before it generated anything")


def test_every_strategy_script_is_run_by_these_tests() -> None:
    scripts = {path.stem for path in SUITE.glob("*.py") if "run(__file__" in path.read_text()}
    assert scripts == set(STRATEGIES)


@pytest.mark.parametrize("strategy", ["naive-batch", "continuous-batch"])
def test_a_sorted_twin_differs_by_its_docstring_and_the_sort_alone(strategy: str) -> None:
    plain, ordered = ((SUITE / f"{name}.py").read_text().splitlines() for name in (strategy, f"{strategy}-sorted"))
    start = plain.index("import config")
    assert ordered.index("import config") == start
    changes = [line for line in difflib.ndiff(plain[start:], ordered[start:]) if line[0] in "+-"]
    assert changes == ['+     df = df.sort("prompt")']
