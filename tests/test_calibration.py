"""The fit of the simulation, the committed calibration, unmeasured cards, and the counts of instant engines."""

import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import config
import numpy as np
import pytest
from harness.overrides import SUITE_DIR
from harness.prediction import gpus, roofline
from harness.prediction.engine_state import Limits
from harness.simulation import calibration, cards, fitting, job, record_run, served, structure
from harness.simulation.fitting import Measured
from harness.simulation.fleet import Fleet
from harness.simulation.outcome import decode_s, prefill_s
from harness.simulation.step_time import Efficiency, step_time
from test_roofline import qwen3_8b

H200 = gpus.find("H200")
LEAST = roofline.step_cost(qwen3_8b(), H200)
KNOBS = {"CONTINUOUS_PARTITIONS": 1, "CONTINUOUS_BATCH_SIZE": 512, "ROUTER_LOAD_BALANCE_THRESHOLD": 256}


def traces(kv_blocks: int, efficiency: Efficiency) -> list[Any]:
    limits = Limits(kv_blocks, 256, 4096, 64)
    fleet = Fleet([0.0], 1, limits, step_time(LEAST, efficiency), efficiency.front_end_s_a_token)
    engines, _ = job.engines_after("continuous-batch", structure.published(300, 30, output_tokens=64), KNOBS, fleet)
    return [engine.trace() for engine in engines]


@pytest.mark.parametrize(
    ("reading", "truth"),
    [
        ("attention", Efficiency(0.6, 0.5, 0.0, 4e-3, 1e-6)),
        ("sequences", Efficiency(0.9, 1.0, 2e-5, 1e-3, 1e-6)),
    ],
)
def test_the_fit_finds_the_efficiency_that_made_the_measurements(reading: str, truth: Efficiency) -> None:
    runs = []
    for kv_blocks in (400, 20_000):
        [trace] = traces(kv_blocks, truth)
        simulate = lambda found, kv_blocks=kv_blocks: traces(kv_blocks, found)  # noqa: E731
        runs.append((simulate, Measured(prefill_s(trace), decode_s(trace))))
    found = fitting.fit(runs, LEAST, truth.front_end_s_a_token, reading)
    assert found == pytest.approx(truth, rel=0.02)


def test_another_card_has_a_slow_end_and_a_fast_one_and_a_measured_card_is_itself() -> None:
    readings = {"attention": Efficiency(0.8, 0.7, 0.0, 2e-3, 1e-6), "sequences": Efficiency(0.8, 1.0, 1e-5, 2e-3, 1e-6)}
    slow, fast = cards.cards(gpus.find("L4"), H200, qwen3_8b(), readings)
    # 121 TFLOP/s on the sheet; an H200 reaches 790 of its 989, of which 0.8 in engine steps.
    assert slow.time.token_s == pytest.approx(2 * 6_945_767_424 / (121e12 * 790 / 989 * 0.8))
    assert fast.time.token_s == pytest.approx(2 * 6_945_767_424 / (121e12 * 0.8))
    assert slow.time.context_s == pytest.approx(147_456 / (0.3e12 * 4.3 / 4.8 * 0.7))
    assert (fast.time.context_s, fast.time.sequence_s) == (pytest.approx(147_456 / 0.3e12), 1e-5)
    [itself] = cards.cards(H200, H200, qwen3_8b(), readings)
    assert (itself.end, itself.time) == ("measured", step_time(LEAST, readings["attention"]))


def test_the_committed_calibration_was_made_from_committed_records_and_both_readings_say_the_same() -> None:
    results = SUITE_DIR / "results"
    kept = json.loads((results / "calibration.json").read_text())
    records = {json.loads(line)["run_id"] for line in (results / "records.jsonl").read_text().splitlines()}
    assert kept["runs"]
    assert set(kept["runs"]) <= records
    known = calibration.read(results)
    for efficiency in known.readings.values():
        assert 0 < efficiency.matrix_efficiency <= 1
        assert 0 < efficiency.kv_efficiency <= 1
    # A decode step of 256 requests of 576 tokens.
    sizes = {"tokens": 256, "context": 256 * 576, "sampled": 256, "requests": 256}
    spent = []
    for efficiency in known.readings.values():
        time = step_time(LEAST, efficiency)
        matrix = max(sizes["tokens"] * time.token_s + sizes["sampled"] * time.sample_s, time.weights_s)
        spent.append(matrix + sizes["context"] * time.context_s + 256 * time.sequence_s + time.step_s)
    assert math.isclose(*spent, rel_tol=0.05)


def test_a_structure_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    results = SUITE_DIR / "results"
    (tmp_path / "records.jsonl").write_text((results / "records.jsonl").read_text())
    with pytest.raises(ValueError, match=r"expected \S+\.parquet in .*structures, found none; give --datasets"):
        calibration.load(tmp_path)
    with pytest.raises(
        ValueError, match=r"calibration\.json, found none; .* --write makes it.* BENCH_RESULTS_PATH=results"
    ):
        calibration.read(tmp_path)


def test_simulate_prints_a_line_a_strategy_and_keeps_it(tmp_path: Path) -> None:
    for name in ("calibration.json", "models"):
        (tmp_path / name).symlink_to(SUITE_DIR / "results" / name)
    command = [sys.executable, "simulate.py", "--engines", "4", "--rows", "2000", "--prefixes", "8", "--write"]
    chosen = ["--strategies", "naive-batch", "ray-data", "--results", str(tmp_path)]
    done = subprocess.run([*command, *chosen], cwd=SUITE_DIR, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("naive-batch", "ray-data"))]
    kept = [json.loads(line) for line in (tmp_path / "simulations.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert [(line["strategy"], line["card"]) for line in kept] == [
        ("naive-batch", "slow"),
        ("ray-data", "slow"),
        ("naive-batch", "fast"),
        ("ray-data", "fast"),
    ]
    assert all(line["queries"] == 2000 * 512 and line["peak_memory_bytes"] < 4e9 for line in kept)


def test_simulate_prints_no_rate_where_an_engine_gets_nothing_to_do() -> None:
    asked = ["--gpu", "H200", "--engines", "2", "--rows", "64", "--prefixes", "8", "--strategies", "continuous-batch"]
    command = [sys.executable, "simulate.py", *asked, "--results", "results"]
    done = subprocess.run(command, cwd=SUITE_DIR, capture_output=True, text=True, check=True, timeout=90)
    _, _, _, rate, _, _, idle, *_ = done.stdout.splitlines()[-1].split()
    assert (idle, rate) == ("1", "-")


def test_simulate_says_where_no_engine_would_start() -> None:
    small = {"BENCH_KV_CACHE_MEMORY_BYTES": "500000000", "BENCH_RESULTS_PATH": "results"}
    command = [sys.executable, "simulate.py", "--engines", "1", "--rows", "64", "--prefixes", "8", "--strategies"]
    done = subprocess.run(
        [*command, "naive-batch"], cwd=SUITE_DIR, env=os.environ | small, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "no engine starts so: its KV cache must hold one request of MAX_MODEL_LEN = 4,096 tokens" in done.stdout


def test_simulate_refuses_more_rows_than_blocks_can_be_counted() -> None:
    command = [sys.executable, "simulate.py", "--rows", str(2**31 - 1)]
    done = subprocess.run(command, cwd=SUITE_DIR, capture_output=True, text=True, check=False, timeout=90)
    assert (done.returncode, done.stdout) == (3, "")
    assert "refused: expected prompts and outputs of at most 2,147,483,647 blocks in all, found " in done.stderr


def test_simulated_static_batches_are_no_larger_than_the_files_of_the_dataset(tmp_path: Path) -> None:
    for name in ("calibration.json", "models"):
        (tmp_path / name).symlink_to(SUITE_DIR / "results" / name)
    asked = ["--gpu", "H200", "--engines", "1", "--rows", "256", "--prefixes", "8", "--strategies", "naive-batch"]
    command = [sys.executable, "simulate.py", *asked, "--results", str(tmp_path), "--write"]
    for files in ("1", "64"):
        environ = {**os.environ, "BENCH_DATASET_FILES": files, "BENCH_NAIVE_PARTITIONS": "1"}
        subprocess.run(command, cwd=SUITE_DIR, env=environ, capture_output=True, check=True, timeout=90)
    lines = (tmp_path / "simulations.jsonl").read_text().splitlines()
    whole, cut = (json.loads(line)["mean_running"] for line in lines)
    assert whole > 100 > 4 >= cut


def test_rows_count_from_when_the_last_instant_engine_is_ready(tmp_path: Path) -> None:
    def engine(*steps: tuple[int, int]) -> None:
        counts = np.zeros(served.STEPS, np.int32)
        for step, rows in steps:
            counts[step] = rows
        counts.tofile(tmp_path / f"engine-{len(list(tmp_path.iterdir()))}")

    with pytest.raises(ValueError, match="expected a file of each engine, found none"):
        served.summary(tmp_path)
    engine((10, -1), (15, 100), (30, 50))
    engine((20, -1), (29, 7))
    assert served.summary(tmp_path) == (2, 20 * served.STEP_S, 31 * served.STEP_S, 157, 57)


def test_the_peers_own_code_runs_on_instant_engines(tmp_path: Path) -> None:
    folder = tmp_path / str(time.time())
    folder.mkdir()
    instant = SUITE_DIR / "harness" / "simulation" / "instant_engines"
    environment = {**os.environ, "PYTHONPATH": f"{instant}:{SUITE_DIR}", served.FOLDER: str(folder)}
    script = Path(__file__).with_name("instant_engines.py")
    done = subprocess.run(
        [sys.executable, script, folder], env=environment, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answered, (engines, _, _, rows, _) = json.loads(done.stdout.splitlines()[-1])
    assert answered == [128, 128, 2, 3]
    assert (engines, rows) == (4, 1 + 1 + 2 + 3)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with the committed calibration, models and records, to be spoilt."""
    committed = SUITE_DIR / "results"
    for name in ("models", "structures", "timeseries"):
        (tmp_path / name).symlink_to(committed / name)
    for name in ("calibration.json", "records.jsonl"):
        (tmp_path / name).write_bytes((committed / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (None, "Expecting property name"),
        ({"schema": 2}, "found schema 2, where 1 is known"),
        ({"readings": {}}, "found no 'attention'"),
        ({"readings": None}, "NoneType"),
        ({"start": {"start_s": "soon", "spread_s": 1}}, "where every number is finite"),
        ({"start": {"start_s": math.nan, "spread_s": 1}}, "where every number is finite"),
        ({"model": "absent"}, "expected the model"),
        ({"gpu": "abacus"}, "GPU 'abacus'"),
    ],
)
def test_a_broken_calibration_is_refused_with_what_makes_it_anew(
    results: Path, change: dict[str, Any] | None, found: str
) -> None:
    path = results / "calibration.json"
    path.write_text("{" if change is None else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"calibration\.json: expected what calibrate-simulation\.py keeps") as caught:
        calibration.read(results)
    assert found in str(caught.value)
    assert str(caught.value).endswith("calibrate-simulation.py --write makes it anew from records")


def test_a_record_that_lacks_what_a_fit_needs_is_named(results: Path) -> None:
    lines = (results / "records.jsonl").read_text().splitlines()
    run = next(run for run in calibration.load(results) if run.record["strategy"] in record_run.ALL_AT_ONCE)
    for part in ("engines", "waterfall_s", "rows"):
        spoilt = {name: value for name, value in run.record.items() if name != part}
        (results / "records.jsonl").write_text("\n".join([json.dumps(spoilt), *lines]) + "\n")
        with pytest.raises(ValueError, match=rf"run {spoilt['run_id']}: expected a whole record.*found no '{part}'"):
            calibration.calibrate(calibration.load(results)[:1], results)


def test_a_run_that_was_continued_or_repaired_or_cached_nothing_is_neither_fitted_nor_predicted(results: Path) -> None:
    record = json.loads((results / "records.jsonl").read_text().splitlines()[0])
    assert record_run.can_simulate(record)
    for kind in ("continued", "redone"):
        assert not record_run.can_simulate(record | {"rows": record["rows"] | {kind: 1}})
    assert not record_run.can_simulate(record | {"config": record["config"] | {"ENABLE_PREFIX_CACHING": False}})


def stopped(script: str, *arguments: str, **knobs: str) -> tuple[int, str]:
    """Exit code and stderr of a script that is to refuse."""
    environment = os.environ | {f"BENCH_{name}": value for name, value in knobs.items()}
    command = [sys.executable, script, *arguments]
    done = subprocess.run(
        command, cwd=SUITE_DIR, env=environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_one_run_cannot_be_predicted_from_others(results: Path) -> None:
    run = next(run for run in calibration.load(results) if run.plain)
    (results / "records.jsonl").write_text(json.dumps(run.record) + "\n")
    (results / "calibration.json").write_text("{")
    code, said = stopped("calibrate-simulation.py", "--results", str(results), "--write")
    assert (code, "expected two runs or more, each to be predicted from the others, found one" in said) == (3, True)
    code, said = stopped("calibrate-simulation.py", "--results", str(results))
    assert (code, "--write makes it anew" in said) == (3, True)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"MAX_NUM_SEQS": "0"}, "expected MAX_NUM_SEQS of at least 1, found 0"),
        ({"BLOCK_SIZE": "0"}, "expected BLOCK_SIZE of at least 1, found 0"),
        ({"NAIVE_PARTITIONS": "0"}, "expected NAIVE_PARTITIONS of at least 1, found 0"),
        ({"BLOCK_SIZE": "100000"}, "expected every prompt"),
        ({"S3_ENDPOINT_URL": "minio:9000"}, "expected S3_ENDPOINT_URL as http://host:port or https://host"),
        ({"MAX_MODEL_LEN": "600"}, "expected MAX_MODEL_LEN of at least 640, the tokens of a prompt and its output"),
        ({"KV_CACHE_MEMORY_BYTES": "90000000"}, "expected every prompt with its output to fit in the KV cache of 37 "),
        (
            {"OUTPUT_LEN_DISTRIBUTION": "uniform", "OUTPUT_LEN_MAX": "600", "MAX_MODEL_LEN": "1100"},
            "expected MAX_MODEL_LEN of at least 1,112, the tokens of a prompt and its output",
        ),
        ({"ENABLE_PREFIX_CACHING": "false"}, "expected ENABLE_PREFIX_CACHING true, found false"),
        ({"DATASET_FILES": "0"}, "expected DATASET_FILES of at least 1, found 0"),
        ({"GPUS_PER_ENGINE": "2"}, "expected GPUS_PER_ENGINE 1, as simulated engines have, found 2"),
    ],
)
def test_simulate_refuses_knobs_that_no_run_would_start_with_or_that_it_ignores(
    results: Path, knobs: dict[str, str], said: str
) -> None:
    code, heard = stopped("simulate.py", "--results", str(results), "--rows", "200", "--engines", "2", **knobs)
    assert said in heard
    assert (code, heard.startswith("refused: ")) == (3, True)


@pytest.mark.parametrize(
    "script",
    [f"{name}.py" for name in ("orchestration-speed", "planning-speed", "forecast-check", "client-capacity")]
    + ["forecast-scaling.py", "serving-parity.py"],
)
def test_what_takes_minutes_refuses_a_folder_for_records_that_cannot_be(script: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    # One that cannot be made, and one that is there and takes no file, not even root's.
    for folder in (str(tmp_path / "file" / "results"), "/proc"):
        code, said = stopped(script, RESULTS_PATH=folder)
        assert (code, said.count("\n")) == (3, 1)
        assert said.startswith(f"refused: expected a folder for records that can be written, found {folder}: ")


def test_a_case_that_does_not_end_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_long(*_: object) -> None:
        raise subprocess.TimeoutExpired("naive-batch", 600)

    script = runpy.run_path(str(SUITE_DIR / "orchestration-speed.py"))
    monkeypatch.setitem(script["main"].__globals__, "_measure", too_long)
    monkeypatch.setitem(script["main"].__globals__, "_dataset", lambda _: "none")
    monkeypatch.setattr(config, "RESULTS_PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["orchestration-speed.py", "--engines", "1", "--strategies", "naive-batch"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as exit_:
        script["main"]()
    assert exit_.value.code == 2
    assert "failed: naive-batch, 1 engines: Command 'naive-batch' timed out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_case_that_lost_rows_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Daft 0.7.26 does with several partitions."""
    script = runpy.run_path(str(SUITE_DIR / "orchestration-speed.py"))

    def child(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        steps = np.zeros(served.STEPS, np.int32)
        steps[[1, 20]] = -1, 64
        steps.tofile(Path(command[-1]) / "engine-0")
        told = {"rows": 64, "ended_at": time.time(), "driver_cpu_s": 1.0}
        return subprocess.CompletedProcess(command, 0, script["MARK"] + json.dumps(told), "")

    monkeypatch.setattr(subprocess, "run", child)
    assert script["_measure"]("continuous-batch", 1, 64, "none")["rows"] == 64
    with pytest.raises(RuntimeError, match="expected 512 rows back, found 64"):
        script["_measure"]("continuous-batch", 1, 512, "none")


@pytest.mark.parametrize("script", ["orchestration-speed.py", "planning-speed.py"])
def test_knobs_that_no_run_would_start_with_measure_nothing(script: str) -> None:
    code, said = stopped(script, BLOCK_SIZE="0")
    assert (code, "expected BLOCK_SIZE of at least 1, found 0" in said) == (3, True)


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("probe-cost.py", ["--rounds", "0"], "--rounds: expected a whole number of at least 1, found '0'"),
        ("client-capacity.py", ["--rate", "0"], "--rate: expected a number above 0, found '0'"),
        ("serving-parity.py", ["--seconds", "nan"], "--seconds: expected a finite number of at least 0, found 'nan'"),
        ("forecast-scaling.py", ["0"], "rows: expected a whole number of at least 1, found '0'"),
        ("simulate.py", ["--engines", "0"], "--engines: expected a whole number of at least 1, found '0'"),
        ("simulate.py", ["--prefixes", "8", "-1"], "--prefixes: expected a whole number of at least 0, found '-1'"),
        ("simulate.py", ["--prefixes"], "--prefixes: expected at least one argument"),
        ("simulate.py", ["--strategies", "sideways"], "--strategies: invalid choice: 'sideways'"),
        ("simulate.py", ["--submit-rows-per-s", "-1"], "expected a finite number of at least 0, found '-1'"),
        ("orchestration-speed.py", ["--strategies", "sideways"], "--strategies: invalid choice: 'sideways'"),
        ("orchestration-speed.py", ["--rows", "x"], "--rows: expected a whole number of at least 1, found 'x'"),
        ("planning-speed.py", ["--tokens", "100"], "--tokens: expected a whole number of at least 256, found '100'"),
        ("planning-speed.py", ["--carry", "-1"], "--carry: expected a whole number of at least 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_by_name(script: str, arguments: list[str], said: str) -> None:
    code, heard = stopped(script, *arguments)
    assert said in heard
    assert code == 2
