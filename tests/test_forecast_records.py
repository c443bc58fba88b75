"""Records beside their forecasts: what forecast-records.py prints, writes and refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import config
import pytest
from harness import overrides
from harness.data import generator
from harness.data.prompts import Shape
from harness.overrides import SUITE_DIR
from harness.prediction import forecast, model_shape, prefix_tree, prompt_set, record_forecast
from test_roofline import QWEN3_8B

KV_BLOCKS = 200


@pytest.fixture
def folder(model_folder: Path, tokenizer: Any, tmp_path: Path) -> Path:
    """A dataset in `sets` and, in `model`, Qwen3-8B's sizes with the local tokenizer."""
    generator.make(Shape(300, 30, 48, 48), tokenizer, f"{tmp_path}/sets")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "model" / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    return tmp_path


@pytest.fixture
def record(folder: Path) -> dict[str, Any]:
    """A run on an H200 whose counters are those of the replay, taken with vLLM 0.26."""
    knobs = overrides.knob_values(config) | {"MODEL_NAME": "Qwen/Qwen3-8B", "CONCURRENCY": 1, "OUTPUT_LEN": 16}
    engine = {"num_gpu_blocks": KV_BLOCKS + 1, "block_size": 16, "max_num_seqs": 32, "max_num_batched_tokens": 512}
    manifest = json.loads((folder / "sets" / "300_0-5_30.manifest.json").read_text())
    made: dict[str, Any] = {
        "schema": 1,
        "run_id": "0123456789abcdef",
        "strategy": "continuous-batch",
        "status": "ok",
        "engines": [{"settings": engine}],
        "config": knobs,
        "dataset": {"name": "300_0-5_30", "fingerprint": manifest["fingerprint"]},
        "hardware": {"gpus": ["NVIDIA H200"]},
        "versions": {"vllm": "0.26.0"},
        "phases_s": {"steady": 3.0, "tail": 1.0},
        "counters": {},
        "rows": {"in": 300, "out": 300, "continued": 0, "redone": 0},
    }
    data = prompt_set.load(f"{folder}/sets/300_0-5_30.parquet", f"{folder}/model", knobs, cache=None).data
    limits = forecast.limits({**knobs, **{name.upper(): value for name, value in engine.items()}}, KV_BLOCKS)
    found = forecast.forecast("continuous-batch", data, knobs, limits._replace(counts_retries=True))
    made["counters"] = {"prefix_cache_queries": found.queries, "prefix_cache_hits": found.hits}
    return made


def run(folder: Path, records: list[dict[str, Any]], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    places = ["--results", f"{folder}/results", "--datasets", f"{folder}/sets", "--model", f"{folder}/model"]
    command = [sys.executable, "forecast-records.py", *places, *arguments]
    return subprocess.run(command, cwd=SUITE_DIR, capture_output=True, text=True, check=False, timeout=60)


def test_predicted_and_counted_rates_agree_and_the_bounds_are_written(folder: Path, record: dict[str, Any]) -> None:
    result = run(folder, [record, record | {"status": "failed", "engines": None}], "--write")
    assert result.returncode == 0, result.stderr
    line = result.stdout.splitlines()[1].split()
    assert line[:3] == ["01234567", "continuous-batch", "300_0-5_30"]
    predicted, counted, points, floor_s, took_s, share = map(float, line[3:])
    assert (predicted, points, took_s) == (counted, 0.0, 4.0)
    # 30 prefixes of 48 tokens; the rest of the 300 prompts of 96 tokens can find them.
    bounds = json.loads((folder / "results" / "bounds.jsonl").read_text())
    assert bounds["run_id"] == record["run_id"]
    assert bounds["possible_hit_rate"] == pytest.approx(270 * 48 / (300 * 96))
    assert bounds["working_set_tokens"] == 30 * 48
    assert bounds["floor_s"] == pytest.approx(floor_s, abs=0.05)
    assert share == pytest.approx(bounds["floor_s"] / 4.0, abs=0.005)


def test_a_prediction_that_is_off_by_more_than_three_points_fails(folder: Path, record: dict[str, Any]) -> None:
    record["counters"]["prefix_cache_hits"] *= 0.8
    assert run(folder, [record]).returncode == 1


def test_another_dataset_of_that_name_is_refused_by_its_fingerprint(folder: Path, record: dict[str, Any]) -> None:
    record["dataset"]["fingerprint"] = "f" * 32
    result = run(folder, [record])
    assert "expected fingerprint ffff" in result.stdout
    assert result.returncode == 1


def test_runs_on_cpu_have_no_floor_and_unknown_strategies_no_prediction(folder: Path, record: dict[str, Any]) -> None:
    knobs = record_forecast.settings(record)
    data = prompt_set.load(f"{folder}/sets/300_0-5_30.parquet", f"{folder}/model", knobs, cache=None).data
    model = model_shape.from_config(QWEN3_8B)
    on_cpu = record | {"hardware": {"gpus": []}}
    assert record_forecast.floor_s(on_cpu, data.prompts, model) is None
    assert not record_forecast.limits(on_cpu).async_scheduling
    assert record_forecast.predict(record | {"strategy": "sideways"}, data) is None
    assert record_forecast.possible_hit_rate(data.prompts) == prefix_tree.possible_hits(data.prompts) / (300 * 96)


def test_only_counters_of_vllm_up_to_0_26_count_every_lookup(record: dict[str, Any]) -> None:
    for version, expected in (("0.26.0", True), ("0.27.0", False), ("1.0.1", False)):
        assert record_forecast.limits(record | {"versions": {"vllm": version}}).counts_retries is expected


def test_a_record_that_lacks_a_part_is_named_and_the_others_are_forecast(folder: Path, record: dict[str, Any]) -> None:
    lacking = {name: value for name, value in record.items() if name != "dataset"} | {"run_id": "ffffffffffff"}
    result = run(folder, [lacking, record | {"engines": None}, record])
    assert result.returncode == 1
    assert (
        "ffffffff  continuous-batch          not forecast: run ffffffffffff: expected a whole record" in result.stdout
    )
    assert "found no 'dataset'; restore its line or move it to another file" in result.stdout
    assert "found 'NoneType' object is not subscriptable" in result.stdout
    assert result.stdout.splitlines()[-1].split()[:3] == ["01234567", "continuous-batch", "300_0-5_30"]
    assert "Traceback" not in result.stderr


def test_a_run_that_was_continued_or_repaired_is_named_and_neither_forecast_nor_given_a_floor(
    folder: Path, record: dict[str, Any]
) -> None:
    """Its counters are those of the rows that were left, or of some rows twice."""
    continued = record | {"rows": record["rows"] | {"continued": 200}, "counters": {"prefix_cache_queries": 9_600}}
    redone = record | {"rows": record["rows"] | {"redone": 40}, "run_id": "repaired0123"}
    result = run(folder, [continued | {"run_id": "continued012"}, redone, record], "--write")
    assert result.returncode == 0, result.stdout
    first, second, third = result.stdout.splitlines()[1:]
    assert first.endswith("not forecast: 200 rows were answered by an earlier run")
    assert second.endswith("not forecast: 40 rows ran twice because an engine died")
    assert third.startswith("01234567")
    bounds = (folder / "results" / "bounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["run_id"] for line in bounds] == [record["run_id"]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "records.jsonl, found none; run a strategy, or give --results"),
        ("", "records.jsonl, found none; run a strategy, or give --results"),
        ("{", "records.jsonl, found none; run a strategy, or give --results"),
        ("not JSON\n{}\n", "records.jsonl:1: not JSON"),
        ("[1]\n{}\n", "records.jsonl:1: expected a record (a JSON object), found list"),
        ('{"schema": 1, "status": "failed"}\n', "expected a run that ended well, found none with status ok"),
    ],
)
@pytest.mark.parametrize("script", ["forecast-records.py", "calibrate-simulation.py"])
def test_records_that_are_missing_empty_or_broken_are_refused(
    tmp_path: Path, script: str, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "records.jsonl").write_text(content)
    command = [sys.executable, script, "--results", str(tmp_path)]
    result = subprocess.run(command, cwd=SUITE_DIR, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == overrides.REFUSED, result.stderr
    assert "refused: " in result.stderr
    if script == "calibrate-simulation.py" and "status ok" in said:
        said = "run without run_id: expected a whole record, as a run leaves it, found no 'strategy'"
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_broken_bounds_are_refused_before_more_are_appended(folder: Path, record: dict[str, Any]) -> None:
    (folder / "results").mkdir()
    bounds = folder / "results" / "bounds.jsonl"
    for line in ("{\n", "[]\n", "{}\n"):
        bounds.write_text(line)
        result = run(folder, [record], "--write")
        assert result.returncode == overrides.REFUSED
        assert "bounds.jsonl:1: expected the bounds of a run" in result.stderr
        assert bounds.read_text() == line


def test_the_same_rows_in_another_number_of_files_are_not_forecast(folder: Path, record: dict[str, Any]) -> None:
    """Every strategy reads file by file."""
    record["dataset"]["files"] = 3
    result = run(folder, [record])
    assert result.returncode == 1
    assert "300_0-5_30: expected 3 files, found 8; make it with DATASET_FILES" in result.stdout
    record["dataset"]["files"] = 8
    assert run(folder, [record]).returncode == 0
