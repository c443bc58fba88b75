"""Runs that go wrong in a peer's hands, on real engines: rows that Daft loses, an engine that dies."""

import json
import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from script_runs import OUTPUT_LEN, ROWS, run_script, start_script, wait_until_generating


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


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["naive-batch", "ray-data"])
def test_an_engine_that_dies_is_named_also_where_another_is_built_in_its_place(
    strategy: str, tmp_path: Path, half_hit: Path, model_folder: Path
) -> None:
    """Ray Data restarts the actor and answers every row; by then start-up was paid in the middle of the run."""
    knobs = {"MODEL_NAME": model_folder, "INPUT_PATH": half_hit, "OUTPUT_LEN": 300}
    with start_script(strategy, tmp_path, **knobs) as process:
        family = wait_until_generating(process)
        next(child for child in family if child.name().startswith("VLLM")).kill()
        output, errors = process.communicate(timeout=200)
    record = json.loads(output.strip().splitlines()[-1])
    print(f"{strategy}: {record['status']}, {record['error']}")
    assert (process.returncode, record["status"]) in ((1, "invalid"), (2, "failed")), errors[-3000:]
    assert f"engine {record['engines'][0]['engine']}" in record["error"]
    assert psutil.wait_procs(family, timeout=10)[1] == []


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["naive-batch", "continuous-batch", "ray-data", "prefix-planned"])
def test_an_engine_that_does_not_start_ends_the_run_with_the_reason(
    strategy: str, tmp_path: Path, half_hit: Path, model_folder: Path
) -> None:
    """As where a GPU's memory is taken. Left alone, Daft's provider asks for the engine until WATCHDOG_START_S."""
    began = time.monotonic()
    code, record, errors = run_script(
        strategy, tmp_path, MODEL_NAME=model_folder, INPUT_PATH=half_hit, LOGITS_PROCESSORS="no_such_module:Processor"
    )
    assert time.monotonic() - began < 200
    assert (code, record["status"]) == (2, "failed"), errors[-3000:]
    (engine,) = record["engines"]
    assert engine["engine"] in record["error"] or "no engine started" in record["error"]
    assert "worker-*-PID.out" in record["error"]
    sessions = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"
    # Sessions of other days may have had a process of that number.
    said = [file.read_text() for file in sessions.glob(f"session_2*/logs/worker-*-{engine['pid']}.out")]
    assert any("no_such_module" in text for text in said)
