"""compare.py from the outside, over fake strategies that only sleep and record a synthetic run: no engine."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import config
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import record_file, records, schema
from harness.comparison import replacement, trials
from harness.data import dataset
from harness.preflight.problem import HEADLINE, PASSING
from synthetic import record

SUITE = Path(record_file.__file__).resolve().parents[1]
TESTS = Path(__file__).parent

FAKE = '''"""A fake strategy: no engine, no prompts; it sleeps and records a synthetic run."""
import json, os, pathlib, signal, sys, time
import config
from harness import overrides, record_file, records
from harness.data import dataset
from synthetic import failed, record

STRATEGY, KIND, REFUSAL = {name!r}, {kind!r}, {refusal!r}
print("a line for the log", file=sys.stderr)
if KIND == "hangs":
    time.sleep(60)
if KIND == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep({sleep_s})
knobs = {{name: records.portable(value) for name, value in overrides.knob_values(config).items()}}
made = record(STRATEGY, {wall_s}, {wall_s} / 2, config=knobs)
if pathlib.Path(config.INPUT_PATH).is_dir():
    fingerprint = dataset.fingerprint(dataset.read_batches(config.INPUT_PATH, ["id", "prompt"]))
    made["dataset"] |= {{"fingerprint": fingerprint, "files": 1}}
made["started_at"] = time.strftime("%Y-%m-%dT%H:%M:%S") + f".{{time.time_ns() % 10**9:09d}}+00:00"
if KIND == "refused":
    made = failed(STRATEGY, REFUSAL, config=knobs) | {{"status": "refused", "wall_s": None}}
if KIND == "fails":
    made = failed(STRATEGY, "an engine died", config=knobs)
record_file.append(made, config.RESULTS_PATH)
print(json.dumps(made))
sys.exit(0 if made["status"] == "ok" else 1)
'''


@pytest.fixture
def suite(tmp_path):
    """A copy of the suite's folder with fake strategies in it."""
    folder = tmp_path / "suite"
    shutil.copytree(SUITE / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (SUITE / "compare.py", SUITE / "config.py", TESTS / "synthetic.py"):
        shutil.copy(file, folder)
    kinds = {"fake-fast": 20.0, "fake-slow": 30.0, "fake-fails": 10.0, "fake-dies": 10.0, "fake-hangs": 10.0}
    for name, wall_s in kinds.items():
        fake(folder, name, name.removeprefix("fake-"), wall_s)
    return folder


def fake(folder, name, kind, wall_s=10.0, refusal=""):
    text = FAKE.format(name=name, kind=kind, wall_s=wall_s, sleep_s=0.05, refusal=refusal)
    (folder / f"{name}.py").write_text(text)


def start(suite, *arguments, **knobs):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BENCH_")}
    # No store is asked for what it holds.
    environ |= {f"BENCH_{name}": str(value) for name, value in ({"INPUT_PATH": "one.parquet"} | knobs).items()}
    environ |= {"BENCH_RESULTS_PATH": str(suite / "results"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "compare.py", *arguments]
    return subprocess.Popen(command, cwd=suite, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compare(suite, *arguments, **knobs):
    process = start(suite, *arguments, **knobs)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def stored(suite):
    return record_file.load(suite / "results")


def cells(suite):
    knobs = [made["config"] for made in stored(suite)]
    return Counter((k["INPUT_PATH"], k["COMPARISON_ID"], k["COMPARISON_TRIAL"], k["COMPARISON_ARM"]) for k in knobs)


TWO = ("--strategies", "fake-fast", "fake-slow")


def test_a_comparison_runs_every_strategy_and_a_twin_in_each_block_and_ends_in_the_reports_path(suite):
    code, out, err = compare(suite, *TWO, "--datasets", "one.parquet", "two.parquet", "--trials", "2")
    assert code == 0, err
    assert len(cells(suite)) == 12
    assert set(cells(suite).values()) == {1}
    assert out.splitlines()[-1] == f"report: {suite / 'results' / 'report.html'}"
    assert "fake-fast-again" in out
    assert "[12/12] trial 2" in err
    assert "--trials 2 gives times but cannot say who wins: that takes --trials 3\n" in err
    assert "left" in err
    for made in stored(suite):
        assert schema.problems(made) == []


def test_one_strategy_or_enough_trials_are_not_called_too_few(suite):
    _, _, err = compare(suite, "--strategies", "fake-fast", "--datasets", "one.parquet", "--trials", "1")
    assert "who wins" not in err
    _, _, err = compare(suite, *TWO, "--datasets", "one.parquet", "--trials", "3")
    assert "who wins" not in err


def test_the_order_is_random_within_blocks_recorded_and_follows_from_the_comparisons_name():
    labels = trials.arms([f"s{i}" for i in range(6)], "s0")
    runs = trials.plan("a-name", labels, ["one", "two"], 4)
    assert runs == trials.plan("a-name", labels, ["two", "one"], 4)
    blocks = [[trial.arm for trial in runs[i : i + 7]] for i in range(0, len(runs), 7)]
    assert len({tuple(block) for block in blocks}) == len(blocks) == 8
    assert all(sorted(block) == sorted(labels) for block in blocks)
    assert [trial.place for trial in runs[:7]] == [1, 2, 3, 4, 5, 6, 7]
    assert [trial.number for trial in runs] == sorted(trial.number for trial in runs)
    assert runs[0].overrides()["COMPARISON_PLACE"] == 1


def test_runs_happen_one_after_another_in_the_planned_order(suite):
    compare(suite, *TWO, "--datasets", "one.parquet", "--trials", "2")
    made = stored(suite)
    planned = trials.plan(
        made[0]["config"]["COMPARISON_ID"],
        trials.arms(TWO[1:], "fake-fast"),
        [made[0]["config"]["INPUT_PATH"]],
        2,
    )
    assert [trial.arm for trial in planned] == [run["config"]["COMPARISON_ARM"] for run in made]
    assert [trial.place for trial in planned] == [run["config"]["COMPARISON_PLACE"] for run in made]


def test_more_trials_add_to_a_comparison_a_complete_one_is_only_reported_and_new_starts_another(suite):
    one = ("--strategies", "fake-fast", "--datasets", "one.parquet", "--trials")
    compare(suite, *one, "1")
    assert "2 of 4 runs are left" in compare(suite, *one, "2")[2]
    assert "0 of 4 runs are left; --new runs it again" in compare(suite, *one, "2")[2]
    assert len(cells(suite)) == 4
    assert len({name for _, name, _, _ in cells(suite)}) == 1
    compare(suite, *one, "1", "--new")
    assert len({name for _, name, _, _ in cells(suite)}) == 2


def test_a_dataset_that_was_replaced_under_its_path_continues_no_comparison(suite):
    """Neither a finished one, which would have nothing left to do, nor one with runs left, which would mix the two."""
    path = suite / "data"
    path.mkdir()
    one = ("--strategies", "fake-fast", "--twin", "none", "--datasets", str(path), "--trials")
    write_dataset(path, "an old prompt")
    compare(suite, *one, "1")
    write_dataset(path, "a new prompt")
    for number in ("1", "2"):
        code, out, err = compare(suite, *one, number)
        assert (code, out, len(stored(suite))) == (3, "", 1)
        assert f"in {path} the dataset that finished runs of this comparison measured (1), found another one (" in err
        assert "To continue, put that one back; --new begins a comparison of this one" in err


def test_runs_of_the_same_dataset_are_continued_also_where_it_cannot_be_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(config, "PROGRESS_INTERVAL_S", 0.0)  # as of a dataset that is read for minutes
    write_dataset(tmp_path, "a prompt")
    fingerprint = dataset.fingerprint(dataset.read_batches(tmp_path, ["id", "prompt"]))

    def problems(**measured):
        run = record(config={"INPUT_PATH": records.portable(str(tmp_path))}, dataset={"files": 1, **measured})
        return [str(problem) for problem in replacement.problems([str(tmp_path)], [run, {}, run])]

    assert problems(fingerprint=fingerprint) == []
    assert "\n1 rows read" in capsys.readouterr().err
    (other,) = problems(fingerprint="0" * 32)
    assert "of this comparison measured (2), found another one (dataset: 400_0-5_16 (00000000) / " in other
    assert "(files: 8 / 1, then and now)" in problems(fingerprint=fingerprint, files=8)[0]
    (tmp_path / "a.parquet").unlink()
    assert problems(fingerprint="0" * 32) == []
    assert "whether it does is not known: " in capsys.readouterr().err


def write_dataset(folder, prompt):
    pq.write_table(pa.table({"id": [1], "prompt": [prompt]}), folder / "a.parquet")


def test_another_setting_is_another_comparison(suite):
    one = ("--strategies", "fake-fast", "--twin", "none", "--trials", "1")
    compare(suite, *one, MAX_NUM_SEQS=8)
    _, _, err = compare(suite, *one[:-1], "2", MAX_NUM_SEQS=16)
    assert "2 of 2 runs are left" in err
    assert sorted(Counter(made["config"]["MAX_NUM_SEQS"] for made in stored(suite)).items()) == [(8, 1), (16, 2)]


def test_failed_runs_are_results_and_are_repeated_only_on_request(suite):
    arguments = ("--strategies", "fake-fast", "fake-fails", "--trials", "1")
    code, out, _ = compare(suite, *arguments)
    assert code == 1
    assert "Runs that are no result" in out
    assert "an engine died" in out
    _, _, err = compare(suite, *arguments, "--retry-failed")
    assert "1 of 3 runs are left" in err
    assert Counter(made["strategy"] for made in stored(suite)) == {"fake-fast": 2, "fake-fails": 2}


def test_a_process_that_dies_without_a_record_gets_one_that_says_how_it_ended(suite):
    code, _, _ = compare(suite, "--strategies", "fake-dies", "--twin", "none", "--trials", "1")
    (made,) = stored(suite)
    assert code == 1
    assert made["status"] == "failed"
    assert made["error"].startswith("was ended by SIGKILL, and left no record. Its log, ")
    assert made["error"].endswith("a line for the log")
    assert made["config"]["COMPARISON_ARM"] == "fake-dies"
    assert schema.problems(made) == []


def test_a_process_that_hangs_is_stopped_and_recorded(suite):
    began = time.monotonic()
    code, _, _ = compare(suite, "--strategies", "fake-hangs", "--twin", "none", "--trials", "1", TRIAL_TIMEOUT_S=1)
    assert time.monotonic() - began < 15
    assert code == 1
    assert stored(suite)[0]["error"].startswith("did not end within TRIAL_TIMEOUT_S=1 s, was stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_running_trial_and_records_nothing_of_it(suite, number):
    process = start(suite, "--strategies", "fake-hangs", "--twin", "none", "--trials", "1")
    child = wait_for_child(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command continues" in err
    assert not Path(f"/proc/{child}").exists()
    assert stored(suite) == []


def wait_for_child(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(200):
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError("compare.py started no trial within 10 s")


def test_kills_at_random_moments_lose_no_finished_record_corrupt_none_and_repeat_none(suite):
    dice = random.Random(0)
    arguments = (*TWO, "--datasets", "one.parquet", "--trials", "10")
    seen: list[str] = []
    for _ in range(10):
        process = start(suite, *arguments)
        wait_for_child(process.pid)
        time.sleep(dice.uniform(0.0, 0.5))
        assert process.poll() is None, "the comparison ended before it was killed"
        process.kill()
        process.wait()
        now = [made["run_id"] for made in stored(suite)]
        assert now[: len(seen)] == seen
        seen = now
    assert seen
    code, _, err = compare(suite, *arguments)
    assert code == 0, err
    assert len(cells(suite)) == 30
    assert set(cells(suite).values()) == {1}
    assert [made["run_id"] for made in stored(suite)][: len(seen)] == seen
    assert [problem for made in stored(suite) for problem in schema.problems(made)] == []


def test_a_trial_that_outlives_its_comparison_is_waited_for_and_counted(suite):
    script, end = suite / "fake-slow.py", suite / "end"
    waiting = f"while not pathlib.Path({str(end)!r}).exists(): time.sleep(0.05)"
    script.write_text(script.read_text().replace("time.sleep(0.05)", waiting))
    arguments = ("--strategies", "fake-slow", "--twin", "none", "--trials", "1")
    process = start(suite, *arguments)
    child = wait_for_child(process.pid)
    process.kill()
    process.wait()
    assert Path(f"/proc/{child}").exists()
    process = start(suite, *arguments[:-1], "2")
    assert process.stderr is not None
    assert "waiting for the trial of another or an interrupted comparison to end" in process.stderr.readline()
    end.touch()
    assert "1 of 2 runs are left" in process.communicate(timeout=60)[1]
    assert set(cells(suite).values()) == {1}


def test_half_a_line_left_by_a_killed_run_is_moved_aside_before_the_next_one(suite):
    arguments = ("--strategies", "fake-fast", "--twin", "none", "--trials")
    compare(suite, *arguments, "1")
    path = suite / "results" / "records.jsonl"
    path.write_bytes(path.read_bytes() + b'{"schema": 1, "run_')
    _, _, err = compare(suite, *arguments, "2")
    assert "left by a killed run; moved to" in err
    assert len(stored(suite)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategies", "no-such"), "no strategy no-such: expected"),
        ((*TWO, "--twin", "fake-fails"), "--twin fake-fails: expected one of --strategies, or none"),
        ((*TWO, "--datasets", "/a/one.parquet", "/b/one.parquet"), "expected different names, which records keep"),
        ((*TWO, "--trials", "0"), "--trials 0: expected 1 or more"),
        ((*TWO, "--datasets", ""), "--datasets: expected a file or folder, found an empty text"),
    ],
)
def test_a_wrong_option_says_what_was_expected(suite, arguments, message):
    code, _, err = compare(suite, *arguments)
    assert code == 2
    assert message in err


def test_check_accepts_good_records_and_names_a_bad_one(suite):
    compare(suite, "--strategies", "fake-fast", "--twin", "none", "--trials", "1")
    assert compare(suite, "--check")[:2] == (0, "1 records, 0 problems\n")
    path = suite / "results" / "records.jsonl"
    made = json.loads(path.read_text())
    path.write_text(json.dumps({**made, "status": "fine"}) + "\n")
    code, out, _ = compare(suite, "--check")
    assert code == 1
    assert f"run {made['run_id']}: status: expected one of" in out


def test_the_terminal_shows_the_reports_table(suite):
    _, out, _ = compare(suite, *TWO, "--trials", "1")
    again = compare(suite, "--report")[1]
    assert again == out
    page = (suite / "results" / "report.md").read_text().splitlines()
    head = next(i for i, line in enumerate(page) if line.startswith("| strategy |"))
    shown = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page[head : head + 5]]
    table = _terminal_table(out.splitlines(), rows=3)
    assert {row[0] for row in table[1:]} == {"fake-fast", "fake-fast-again", "fake-slow"}
    assert table == [shown[0], *shown[2:]]


def _terminal_table(lines, rows):
    """The first table, cell by cell; a heading's lines stand above each other over a rule of dashes."""
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    head = next(i for i in range(rule, 0, -1) if not lines[i - 1])
    columns = [match.span() for match in re.finditer("-+", lines[rule])]
    cells = [[line[begin:end].strip() for begin, end in columns] for line in lines[head : rule + 1 + rows]]
    heading = [" ".join(filter(None, parts)) for parts in zip(*cells[: rule - head], strict=True)]
    return [heading, *cells[rule - head + 1 :]]


MISSING = f"{HEADLINE}\n  1. expected a dataset, found none. Set INPUT_PATH"


def refused_runs(suite):
    return Counter(made["strategy"] for made in stored(suite) if made["status"] == "refused")


def test_what_preflight_refuses_is_said_once_and_tried_with_no_other_strategy_or_trial(suite):
    for name in TWO[1:]:
        fake(suite, name, "refused", refusal=MISSING)
    code, out, err = compare(suite, *TWO, "--datasets", "one.parquet", "--trials", "3")
    assert (code, out) == (3, "")
    assert refused_runs(suite).total() == 1
    assert err.count("expected a dataset, found none. Set INPUT_PATH") == 1
    assert err.splitlines()[-1].startswith("refused: 9 of 9 runs are left to do, for what is said above. Mend it; ")
    for name in TWO[1:]:
        fake(suite, name, name)
    code, _, err = compare(suite, *TWO, "--datasets", "one.parquet", "--trials", "3")
    assert "9 of 9 runs are left" in err
    assert code == 0, err


def test_a_dataset_that_is_refused_stops_no_run_on_another(suite):
    script = "if config.INPUT_PATH.endswith('one.parquet'):\n    KIND = 'refused'\nif KIND == 'refused'"
    for name in TWO[1:]:
        fake(suite, name, "works", refusal=MISSING)
        path = suite / f"{name}.py"
        path.write_text(path.read_text().replace('if KIND == "refused"', script))
    code, out, err = compare(suite, *TWO, "--datasets", "one.parquet", "two.parquet", "--trials", "2")
    assert code == 3
    assert refused_runs(suite).total() == 1
    assert sum(made["status"] == "ok" for made in stored(suite)) == 6
    assert "report: " in out
    assert "refused: 6 of 12 runs are left to do" in err


def test_a_refusal_of_one_strategy_stops_that_one_alone(suite):
    (suite / "fake-misses.py").write_text("import config\nimport a_package_that_nobody_has\n")
    code, _, err = compare(suite, "--strategies", "fake-misses", "fake-fast", "--trials", "2")
    assert code == 3
    assert refused_runs(suite) == {"fake-misses": 1}
    (made,) = (made for made in stored(suite) if made["status"] == "refused")
    assert schema.problems(made) == []
    assert "expected the package a_package_that_nobody_has, found it nowhere" in made["error"]
    assert sum(made["status"] == "ok" for made in stored(suite)) == 2
    assert "refused: 4 of 6 runs are left to do" in err


def test_a_refusal_that_may_pass_is_tried_again(suite):
    fake(suite, "fake-busy", "refused", refusal=MISSING.replace(HEADLINE, HEADLINE + PASSING))
    compare(suite, "--strategies", "fake-busy", "fake-fast", "--twin", "none", "--trials", "2")
    assert refused_runs(suite) == {"fake-busy": 2}
    assert sum(made["status"] == "ok" for made in stored(suite)) == 2


@pytest.mark.parametrize("option", ["--check", "--report"])
def test_a_results_folder_without_records_is_refused_by_name_and_left_alone(suite, option):
    code, out, err = compare(suite, option)
    folder = suite / "results"
    assert (code, out) == (3, "")
    assert f"refused: expected records in {folder / 'records.jsonl'}, found no such folder. Set RESULTS_PATH" in err
    assert not folder.exists()
    folder.mkdir()
    assert "found no such file. Set RESULTS_PATH" in compare(suite, option)[2]
    (folder / "records.jsonl").touch()
    assert "found an empty file. Set RESULTS_PATH" in compare(suite, option)[2]
    assert [path.name for path in folder.iterdir()] == ["records.jsonl"]


def test_a_results_folder_that_cannot_be_written_is_refused_before_any_trial(suite):
    (suite / "results").touch()
    code, out, err = compare(suite, *TWO)
    assert (code, out) == (3, "")
    assert "expected a folder for records that can be written, found " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("name", "wanted"), [("records.jsonl", "file"), ("timeseries", "folder"), ("logs", "folder")])
def test_what_has_the_name_of_something_that_runs_write_is_refused_before_any_trial(suite, name, wanted):
    (suite / "results").mkdir()
    in_the_way = suite / "results" / name
    in_the_way.touch() if wanted == "folder" else in_the_way.mkdir()
    code, out, err = compare(suite, *TWO)
    assert (code, out) == (3, "")
    assert f"refused: preflight: no engine was started\n  1. expected a {wanted} {name} in RESULTS_PATH" in err


@pytest.mark.parametrize("option", ["--check", "--report"])
def test_records_that_are_no_file_are_refused(suite, option):
    (suite / "results" / "records.jsonl").mkdir(parents=True)
    code, _, err = compare(suite, option)
    assert (code, err.startswith("refused: expected records in ")) == (3, True)


def test_damaged_records_stop_no_comparison_and_answer_none_of_its_runs(suite):
    compare(suite, *TWO)
    path = suite / "results" / "records.jsonl"
    with path.open("a") as file:
        for damage in ({"config": None}, {"config": [1]}, {"status": None}, {"status": ["ok"]}):
            file.write(json.dumps({**stored(suite)[0], **damage}) + "\n")
        file.write(json.dumps({"schema": 1}) + "\n")
    code, _, err = compare(suite, *TWO)
    assert "0 of" in err
    assert (code, "Traceback" in err) == (0, False)


def test_a_comparison_does_not_start_itself(suite):
    code, _, _ = compare(suite, "--strategies", "compare", "--twin", "none", "--trials", "1")
    assert (code, [made["status"] for made in stored(suite)]) == (1, ["failed"])
    assert "COMPARISON_ID" in stored(suite)[0]["error"]


def test_a_terminal_without_the_reports_characters_shows_their_codes(suite, monkeypatch):
    compare(suite, *TWO)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, out, _ = compare(suite, "--report")
    assert code == 0
    assert r"\xf7" in out


def test_a_stdout_that_takes_no_more_ends_a_check_in_one_line(suite):
    compare(suite, *TWO)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "compare.py", "--check"]
        environ = {**os.environ, "BENCH_RESULTS_PATH": str(suite / "results"), "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(command, cwd=suite, env=environ, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("refused: [Errno 28] No space left on device")


def test_check_names_a_run_that_is_there_twice_and_the_report_counts_it_once(suite):
    compare(suite, "--strategies", "fake-fast", "--twin", "none", "--trials", "1")
    path = suite / "results" / "records.jsonl"
    path.write_text(2 * path.read_text())
    run_id = stored(suite)[0]["run_id"]
    code, out, _ = compare(suite, "--check")
    assert (code, out.splitlines()[0]) == (1, f"run {run_id}: 2 lines have this run_id, expected one")
    compare(suite, "--report")
    left_out = f"Left out: record {run_id[:8]} does not fit the format (the run is there before)"
    assert left_out in (suite / "results" / "report.md").read_text()
