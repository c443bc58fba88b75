"""However a run ends, there is a record that says why, and its processes are ended. No Ray, no engine."""

import errno
import io
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import config
import pyarrow as pa
import pytest
from engine_story import story
from harness import cluster, evidence, record_file, run, schema
from harness.clock import Clock
from harness.preflight.workload import Workload


class Ended(run.Run):
    """A run whose strategy has returned a table, or raised, and whose engines have told a story."""

    def __init__(self, end: Callable[[], Any], messages: list[dict[str, Any]] | None = None) -> None:
        super().__init__(Path("naive-batch.py"), lambda: pa.table({}))
        self._end, self._messages = end, messages or []

    def _prepare(self) -> None:
        self._catch_signals()
        self._workload = Workload(pa.array([1, 2]), 1, "0" * 32, 2, 16)

    def _generate(self) -> tuple[pa.Table, float]:
        self._started_at, self._write_s, self._node = self._clock.now() - 30, 0.0, "node"
        self._log.extend(self._messages)
        return self._end(), self._clock.now()


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[list[int]]]:
    """What cluster.disconnect was told to end, once for each call."""
    calls: list[list[int]] = []
    monkeypatch.setattr(config, "RESULTS_PATH", str(tmp_path))
    monkeypatch.setattr(cluster, "disconnect", lambda _, pids: calls.append(list(pids)))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def recorded(folder: Path) -> dict[str, Any]:
    (record,) = record_file.load(folder)
    assert schema.problems(record) == []
    return record


def counted(messages: list[dict[str, Any]], before: int = 0) -> list[dict[str, Any]]:
    """The story with counters of two requests of 16 tokens, after `before` others that looked up 320 tokens each."""

    def totals(requests: int) -> dict[str, Any]:
        sums = {"prefix_cache_queries": 320 * requests, "generation_tokens": 16 * requests}
        each = {"finished": {"length": requests}, "request_generation_tokens": {"+Inf": requests}}
        return dict.fromkeys(evidence.SUMMED, 0) | sums | each

    at = {"ready": totals(before), "sample": totals(before + 2)}
    return [{**said, "counters": at[said["kind"]]} if "counters" in said else said for said in messages]


class FullDisk(io.BytesIO):
    """Takes nothing, and keeps what it is given from being tried again."""

    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


BOTH_ROWS = pa.table({"id": [1, 2], "output": ["a", "b"]})


@pytest.mark.parametrize(
    ("messages", "table", "error"),
    [
        (counted(story("a")), BOTH_ROWS, None),
        (counted(story("a")), BOTH_ROWS.slice(1), "1 of 2 rows missing, first ids: 1"),
        (counted(story("a")) + story("b", ready=None), BOTH_ROWS, "2 engines were built, expected CONCURRENCY = 1"),
        (counted(story("a"), 3), BOTH_ROWS, "claims a cold prefix cache, but its engines had looked up 960 tokens"),
    ],
    ids=["good", "a lost row", "an engine a partition", "a warm cache"],
)
def test_a_run_that_fails_a_check_is_invalid_and_says_which(
    messages: list[dict[str, Any]],
    table: pa.Table,
    error: str | None,
    tmp_path: Path,
    left: list[Any],  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 1)
    status = Ended(lambda: table, messages).execute()
    assert (status, run.EXIT_CODES[status]) == (("invalid", 1) if error else ("ok", 0))
    (record,) = record_file.load(tmp_path)
    assert (error or "") in (record["error"] or "")


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
def test_a_run_during_which_the_clock_was_set_is_no_time(
    set_by_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 1)
    time_of_day = time.time

    def end() -> pa.Table:
        monkeypatch.setattr(time, "time", lambda: time_of_day() + set_by_s)
        return BOTH_ROWS

    assert Ended(end, counted(story("a"))).execute() == "invalid"
    record = recorded(tmp_path)
    assert f"this machine's clock moved by {set_by_s:+.1f} s" in record["error"]
    assert 30 <= record["wall_s"] < 40


def test_a_process_that_is_stopped_between_two_looks_at_the_clock_saw_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s = itertools.accumulate(itertools.cycle([0.3, 0.4, 0.5, *[0.001] * 9]))
    monkeypatch.setattr(time, "time", lambda: 1e9 + next(passed_s))
    monkeypatch.setattr(time, "monotonic", lambda: next(passed_s))
    clock = Clock()
    for _ in range(10):
        assert clock.step() is None


@pytest.mark.usefixtures("left")
def test_a_run_that_fails_for_an_engine_that_died_names_it_whoever_notices_first(tmp_path: Path) -> None:
    """vLLM itself says of a core that dies while it starts only that one failed, within a second."""
    dead = {"kind": "dead", "at": 8.0, "received_at": 8.0, "engine": "b", "node": "node", "pid": 1}

    def fail() -> None:
        raise RuntimeError("Engine core initialization failed")

    assert Ended(fail, [*story("a"), *story("b", ready=None), dead]).execute() == "failed"
    died, why = "engine b died: its core process is gone", "RuntimeError: Engine core initialization failed"
    assert recorded(tmp_path)["error"] == f"{died}; {why}{run.WHERE_IT_SAYS_WHY}"


@pytest.mark.usefixtures("left")
def test_a_run_that_fails_while_an_engine_starts_names_it_and_where_vllm_says_why(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    assert Ended(fail, [*story("a"), *story("b", ready=None)]).execute() == "failed"
    error = recorded(tmp_path)["error"]
    assert error.startswith("engine b was starting; RuntimeError: Engine core initialization failed. See root cause")
    assert error.endswith(" (why: see worker-*-PID.out among the logs of Ray's session on the engine's node)")


@pytest.mark.usefixtures("left")
def test_a_failed_run_says_the_innermost_error_that_has_a_message(tmp_path: Path) -> None:
    """Ray Data 2.59 raises what went wrong from a SystemException that says nothing."""

    def fail() -> None:
        try:
            raise ValueError("a wrong value") from KeyError()
        except ValueError as error:
            raise RuntimeError("the actor died") from error

    assert Ended(fail).execute() == "failed"
    assert recorded(tmp_path)["error"] == "ValueError: a wrong value"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_is_recorded_with_the_signal_that_stopped_it(
    number: signal.Signals, tmp_path: Path, left: list[Any]
) -> None:
    def stop() -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as Ray does

    dead = {"kind": "dead", "at": 8.0, "received_at": 8.0, "engine": "a", "node": "node", "pid": 1}
    assert Ended(stop, [*story("a", ready=None), dead]).execute() == "failed"
    assert recorded(tmp_path)["error"] == f"stopped by {number.name}"
    assert len(left) == 1


def test_a_run_under_nohup_goes_on_when_its_terminal_is_gone(left: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 1)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def hang_up() -> pa.Table:
        os.kill(os.getpid(), signal.SIGHUP)
        return BOTH_ROWS

    assert Ended(hang_up, counted(story("a"))).execute() == "ok"
    assert len(left) == 1


def test_a_second_signal_does_not_cost_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: list[Any]
) -> None:
    show = config.print_benchmark_results
    impatient = lambda record: (os.kill(os.getpid(), signal.SIGINT), show(record))  # noqa: E731
    monkeypatch.setattr(config, "print_benchmark_results", impatient)
    assert Ended(lambda: os.kill(os.getpid(), signal.SIGTERM)).execute() == "failed"
    assert "stopped by SIGTERM" in recorded(tmp_path)["error"]
    assert len(left) == 1


def test_a_table_that_cannot_be_checked_is_a_failed_run_and_not_a_lost_one(tmp_path: Path, left: list[Any]) -> None:
    assert Ended(lambda: pa.table({"id": [1, 2]})).execute() == "failed"
    record = recorded(tmp_path)
    assert "expected columns id and output" in record["error"]
    assert record["wall_s"] > 29
    assert len(left) == 1


def test_half_of_an_engines_story_does_not_cost_the_record(tmp_path: Path, left: list[Any]) -> None:
    def fail() -> None:
        raise RuntimeError("the node is gone")

    without_import = [message for message in story("a") if message["kind"] != "importing"]
    assert Ended(fail, without_import).execute() == "failed"
    record = recorded(tmp_path)
    assert record["error"] == "RuntimeError: the node is gone"
    assert "what the engines said is incomplete" in record["warnings"][0]
    assert record["phases_s"] is None
    assert len(left) == 1


def test_a_full_disk_leaves_the_record_on_stdout_and_no_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left: list[Any]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record_file, "append", full)
    monkeypatch.setattr(config, "PROBE_INTERVAL_S", 0.0)
    table = pa.table({"id": [1, 2], "output": ["a", "b"], "output_tokens": [16, 16]})
    assert Ended(lambda: table).execute() == "failed"
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["status"] == "ok"
    assert "No space left on device" in said.err
    assert len(left) == 1


def test_a_stdout_that_takes_no_more_changes_neither_how_the_run_ended_nor_its_record(
    tmp_path: Path, left: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 1)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(FullDisk()))
    assert Ended(lambda: BOTH_ROWS, counted(story("a"))).execute() == "ok"
    assert ([record["status"] for record in record_file.load(tmp_path)], len(left)) == (["ok"], 1)
    monkeypatch.setattr(sys, "stdout", None)  # as `>&-` leaves it
    assert Ended(lambda: BOTH_ROWS, counted(story("a"))).execute() == "ok"


def test_a_stderr_that_takes_no_more_costs_neither_the_record_nor_the_exit_code(
    tmp_path: Path, left: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `> run.log 2>&1` on a full disk, where the first thing said used to end the run, and each of its threads."""
    ends: dict[int, Callable[[], Any]] = {0: lambda: BOTH_ROWS, 2: lambda: 1 / 0}
    monkeypatch.setattr(config, "CONCURRENCY", 1)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(FullDisk(), write_through=True))
    for expected, end in ends.items():
        monkeypatch.setattr(run, "Run", lambda *_, end=end: Ended(end, counted(story("a"))))
        with pytest.raises(SystemExit) as ended:
            run.run("naive-batch.py", lambda: pa.table({}))
        assert ended.value.code == expected
        print("said", file=sys.stderr)
    assert [record["status"] for record in record_file.load(tmp_path)] == ["ok", "failed"]
    assert len(left) == 2


def test_all_processes_of_an_engine_are_ended_and_on_this_node_alone(left: list[Any]) -> None:
    elsewhere = [{**message, "node": "another", "pid": 99} for message in story("b")]
    Ended(lambda: os.kill(os.getpid(), signal.SIGTERM), [*story("a"), *elsewhere]).execute()
    assert left == [[1, 2, 3]]


def test_what_libraries_print_is_kept_off_stdout_also_after_the_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray prints what its nodes complain of, on the driver's stdout, whenever it hears of it."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(cluster, "disconnect", lambda *_: print("a raylet complains"))
    monkeypatch.setattr(run, "Run", lambda *_: Ended(lambda: print("a library talks")))
    with pytest.raises(SystemExit):
        run.run("naive-batch.py", lambda: pa.table({}))
    output, errors = capsys.readouterr()
    assert json.loads(output.splitlines()[-1])["strategy"] == "naive-batch"
    assert "talks" not in output
    assert "a library talks" in errors
    assert "a raylet complains" in errors


def test_a_run_that_keeps_its_answers_says_in_which_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "OUTPUT_PATH", f"{tmp_path}/answers")
    Ended(pa.table)._write(pa.table({"id": [1], "output": ["a"]}))
    (file,) = (tmp_path / "answers").iterdir()
    assert capsys.readouterr().err == f"answers: {file}\n"
