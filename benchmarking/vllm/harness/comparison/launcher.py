"""Runs one trial in a fresh process, and makes sure that whatever happens to it becomes a record.

Only one trial runs at a time on a results folder. Its process holds the same lock as its comparison, so when a
comparison is killed, the trial that outlives it is waited for and counted, not run a second time beside itself.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import record_file, records
from harness.comparison.trials import Trial, find
from harness.overrides import PREFIX, REFUSED
from harness.schema import Record

LOGS = "logs"
POLL_S = 0.5
TERMINATE_S = 20.0
TAIL_LINES = 15


@contextmanager
def exclusive(results_path: Path, patience_s: float) -> Iterator[int]:
    """Holds the results folder's lock; yields its descriptor, which trials inherit.

    Waits for another comparison, or a trial that outlived one; raises TimeoutError after `patience_s`.
    """
    path = results_path / LOGS / "comparison.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        _acquire(file.fileno(), path, patience_s)
        yield file.fileno()


@dataclass(frozen=True)
class Launcher:
    """Runs trials whose records go to `results_path`; each inherits `lock` and gets `timeout_s` seconds.

    Once `stop` is set the running process is killed, leaves no record, and KeyboardInterrupt is raised.
    """

    results_path: Path
    lock: int
    timeout_s: float
    stop: threading.Event

    def run(self, trial: Trial, script: Path, on_tick: Callable[[float], None]) -> Record:
        """Runs a trial to its end and returns its record, written here when the process left none."""
        log = log_path(trial, self.results_path)
        before = len(record_file.load(self.results_path))
        started_at, started = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        end = self._wait(self._start(trial, script, log), on_tick)
        record = find(trial, record_file.load(self.results_path)[before:])
        if record is None:
            error = f"{end}, and left no record. Its log, {log}, ends:\n{_tail(log)}"
            record = _without_record(trial, script, started_at, time.monotonic() - started, error)
            if end == _exit(REFUSED):
                # A script that misses a package says so before there is a harness to record it.
                record |= {"status": "refused", "wall_s": None}
            record_file.append(record, self.results_path)
        return record

    def _start(self, trial: Trial, script: Path, log: Path) -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, str(script)],
                env={**os.environ, **environment(trial)},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                # Its own group: a Ctrl-C reaches this process alone, which then ends the whole group.
                start_new_session=True,
                pass_fds=(self.lock,),
            )

    def _wait(self, process: subprocess.Popen[bytes], on_tick: Callable[[float], None]) -> str:
        """Waits for the process's end and says how it came."""
        started = time.monotonic()
        try:
            while (elapsed_s := time.monotonic() - started) < self.timeout_s:
                if self.stop.is_set():
                    raise KeyboardInterrupt
                with suppress(subprocess.TimeoutExpired):
                    return _exit(process.wait(timeout=POLL_S))
                on_tick(elapsed_s)
            # Asked first, so that the harness can still record what it saw.
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATE_S)
            return f"did not end within TRIAL_TIMEOUT_S={self.timeout_s:g} s, was stopped"
        finally:
            # Also what is left of the group after a regular end, and everything on an interrupt.
            _signal(process, signal.SIGKILL)
            process.wait()


def environment(trial: Trial) -> dict[str, str]:
    return {PREFIX + name: str(value) for name, value in trial.overrides().items()}


def log_path(trial: Trial, results_path: Path) -> Path:
    dataset = Path(trial.dataset).stem
    return results_path / LOGS / trial.comparison / f"{dataset}-{trial.number}-{trial.place}-{trial.arm}.log"


def _acquire(file: int, path: Path, patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up:
                raise TimeoutError(
                    f"{path} is still held after {patience_s:.0f} s by another comparison or by a trial that outlived "
                    f"one. See who holds it with `fuser -v {path}` and end that process"
                ) from error
            if not told:
                print("waiting for the trial of another or an interrupted comparison to end", file=sys.stderr)
                told = True
            time.sleep(0.2)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _exit(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def _without_record(trial: Trial, script: Path, started_at: str, lived_s: float, error: str) -> Record:
    """A failed run's record: what is known from outside; `wall_s` is the life of its process."""
    record = records.new(script)
    config = {name: records.portable(value) for name, value in trial.overrides().items()}
    return {
        **record,
        "started_at": started_at,
        "command": f"python {script.name}",
        "status": "failed",
        "error": error,
        "wall_s": round(lived_s, 3),
        "config": {**record["config"], **config},
    }
