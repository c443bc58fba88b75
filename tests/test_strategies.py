"""All strategies end to end: real Ray, real vLLM engines on CPU, a dataset whose hit rate is known beforehand."""

import difflib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from script_runs import BLOCK, BLOCKS, OUTPUT_LEN, PROMPT_LEN, ROWS, SUITE, environment, run_script

ROOT = Path(__file__).resolve().parents[1]
STRATEGIES = (
    "naive-batch",
    "naive-batch-sorted",
    "continuous-batch",
    "continuous-batch-sorted",
    "prefix-bucketing",
    "ray-data",
)
# Not in `make bench`, for its time; run beside it.
BESIDE = ("prefix-bucketing-sorted", "prefix-planned")
ALL = (*STRATEGIES, *BESIDE)

Run = tuple[dict[str, Any], pa.Table]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs leave their records and answers."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def knobs(folder: Path, half_hit: Path, model_folder: Path) -> dict[str, Any]:
    """The dataset and model of these tests."""
    return {
        "MODEL_NAME": model_folder,
        "INPUT_PATH": half_hit,
        "OUTPUT_PATH": folder / "answers",
        "OUTPUT_LEN": OUTPUT_LEN,
        "LOGITS_PROCESSORS": "echo:Echo",
    }


@pytest.fixture(scope="module")
def bench(folder: Path, knobs: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    """`make bench`."""
    return subprocess.run(
        ["make", "bench"], cwd=ROOT, env=environment(folder, **knobs), capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def runs(bench: "subprocess.CompletedProcess[str]", folder: Path, knobs: dict[str, Any]) -> dict[str, Run]:
    """Every strategy's (record, answers), from its log and its output file."""
    assert bench.returncode == 0, bench.stdout[-3000:] + bench.stderr[-3000:]
    for strategy in BESIDE:
        code, _, errors = run_script(strategy, folder, **knobs)
        assert code == 0, errors[-3000:]
    records = [json.loads(line) for line in (folder / "results" / "records.jsonl").read_text().splitlines()]
    answers = {record["run_id"]: folder / "answers" / f"{record['run_id']}.parquet" for record in records}
    return {record["strategy"]: (record, pq.read_table(answers[record["run_id"]])) for record in records}


@pytest.mark.parametrize("strategy", ALL)
def test_a_strategy_answers_every_row_once_with_the_tokens_asked_for(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    assert (record["status"], record["error"]) == ("ok", None)
    wrong = {kind: record["rows"][kind] for kind in ("missing", "doubled", "unknown", "null", "short", "long")}
    assert wrong == dict.fromkeys(wrong, 0)
    assert record["rows"]["in"] == record["rows"]["out"] == ROWS
    assert record["tokens"] == {"prompt": ROWS * PROMPT_LEN, "output": ROWS * OUTPUT_LEN}


@pytest.mark.parametrize("strategy", ALL)
def test_a_rows_answer_belongs_to_its_prompt(
    strategy: str, runs: dict[str, Run], half_hit: Path, tokenizer: Any
) -> None:
    asked = pq.read_table(half_hit)
    prompts = dict(zip(asked["id"].to_pylist(), asked["prompt"].to_pylist(), strict=True))
    answers = runs[strategy][1]
    for row, answer in zip(answers["id"].to_pylist(), answers["output"].to_pylist(), strict=True):
        assert answer == tokenizer.decode([tokenizer.encode(prompts[row])[-1]] * OUTPUT_LEN)


@pytest.mark.parametrize("strategy", ALL)
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


@pytest.mark.parametrize("strategy", ALL)
def test_start_up_is_a_phase_of_its_own_and_paid_once_an_engine(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    assert len(record["engines"]) == record["config"]["CONCURRENCY"]
    assert record["phases_s"]["engine_start"] > 1
    assert record["phase_tokens"]["engine_start"] < 0.1 * ROWS * OUTPUT_LEN
    assert sum(record["phases_s"].values()) == pytest.approx(record["wall_s"], abs=1e-3)


@pytest.mark.parametrize("strategy", ALL)
def test_the_waterfall_adds_up_to_the_wall_time_within_2_percent(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    parts = {part: seconds for part, seconds in record["waterfall_s"].items() if part != "unattributed"}
    assert sum(parts.values()) == pytest.approx(record["wall_s"], rel=0.02)
    assert min(parts.values()) >= 0
    assert parts["prefill"] > 0
    assert parts["decode"] > 0


@pytest.mark.parametrize("strategy", ALL)
def test_the_cache_is_proved_cold_before_the_first_request(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    assert record["cache_state"] == "cold"
    assert [engine["before"]["prefix_cache_queries"] for engine in record["engines"]] == [0]


@pytest.mark.parametrize("strategy", ALL)
def test_a_record_says_how_full_its_engine_was(strategy: str, runs: dict[str, Run]) -> None:
    record = runs[strategy][0]
    most = record["engines"][0]["max_running"]
    assert 0 < most <= 64
    assert any("never filled" in warning for warning in record["warnings"]) == (most < 64)


def test_make_bench_runs_each_strategy_once_and_ends_in_a_table_and_the_reports_path(
    bench: "subprocess.CompletedProcess[str]", runs: dict[str, Run], folder: Path
) -> None:
    assert set(runs) == set(ALL)
    for strategy in STRATEGIES:
        assert re.search(rf"^{strategy} +1 of 1 ", bench.stdout, re.MULTILINE), bench.stdout
    assert bench.stdout.rstrip().endswith(f"report: {folder / 'results' / 'report.html'}")


def test_a_scripts_last_line_is_the_record_that_was_appended(runs: dict[str, Run], folder: Path) -> None:
    logs = list((folder / "results" / "logs").rglob("*.log"))
    printed = [json.loads(log.read_text().strip().splitlines()[-1]) for log in logs]
    assert sorted(printed, key=lambda record: record["run_id"]) == sorted(
        (record for strategy, (record, _) in runs.items() if strategy not in BESIDE),
        key=lambda record: record["run_id"],
    )


def test_each_run_leaves_its_engines_time_series_beside_its_record(runs: dict[str, Run], folder: Path) -> None:
    for record, _ in runs.values():
        series = pq.read_table(folder / "results" / "timeseries" / f"{record['run_id']}.parquet")
        assert series["generation_tokens"].to_pylist()[-1] == ROWS * OUTPUT_LEN
        assert series["t_s"].to_pylist() == sorted(series["t_s"].to_pylist())


def test_every_strategy_script_is_run_by_these_tests() -> None:
    scripts = {path.stem for path in SUITE.glob("*.py") if "run(__file__" in path.read_text()}
    assert scripts == set(ALL)


@pytest.mark.parametrize("strategy", ["naive-batch", "continuous-batch", "prefix-bucketing"])
def test_a_sorted_twin_differs_by_its_docstring_and_the_sort_alone(strategy: str) -> None:
    plain, ordered = ((SUITE / f"{name}.py").read_text().splitlines() for name in (strategy, f"{strategy}-sorted"))
    start = plain.index("import config")
    assert ordered.index("import config") == start
    changes = [line for line in difflib.ndiff(plain[start:], ordered[start:]) if line[0] in "+-"]
    assert changes == ['+     df = df.sort("prompt")']
