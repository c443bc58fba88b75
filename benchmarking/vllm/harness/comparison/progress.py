"""The line that says what runs and how long the rest will take; on stderr, rewritten in place on a terminal."""

import sys
import time
from collections.abc import Sequence
from pathlib import PurePath

from harness.comparison.trials import Trial
from harness.schema import Record


class Progress:
    """Counts runs of a plan; the time left is the mean of the runs seen so far times what is left."""

    def __init__(self, planned: Sequence[Trial], todo: Sequence[Trial]) -> None:
        self._total = len(planned)
        self._done = len(planned) - len(todo)
        self._lives_s: list[float] = []
        self._began = time.monotonic()
        self._what = ""

    def begin(self, trial: Trial) -> None:
        self._began = time.monotonic()
        dataset = PurePath(trial.dataset).name.removesuffix(".parquet")
        self._what = f"[{self._done + 1}/{self._total}] trial {trial.number}, {dataset}, {trial.arm}"
        self._say(f"{self._what} ...", "" if sys.stderr.isatty() else "\n")

    def tick(self, elapsed_s: float) -> None:
        if sys.stderr.isatty():
            self._say(f"{self._what}: {elapsed_s:.0f} s so far; {self._left(elapsed_s)}", "")

    def end(self, record: Record) -> None:
        self._done += 1
        self._lives_s.append(time.monotonic() - self._began)
        if record["status"] == "refused":
            # In full: its first line only says that nothing was started.
            self._say(f"{self._what}: refused: {record['error']}", "\n")
            return
        wall = f", job {record['wall_s']:.1f} s" if record["status"] == "ok" else f": {_first_line(record)}"
        self._say(f"{self._what}: {record['status']}{wall}; {self._left(0.0)}", "\n")

    def skip(self) -> None:
        """A run that is left for another time."""
        self._done += 1

    def _left(self, elapsed_s: float) -> str:
        if not self._lives_s:
            return "time left unknown until the first run ends"
        mean_s = sum(self._lives_s) / len(self._lives_s)
        left_s = max(mean_s * (self._total - self._done) - elapsed_s, 0.0)
        return f"about {left_s / 60:.0f} min left" if left_s >= 90 else f"about {left_s:.0f} s left"

    def _say(self, text: str, end: str) -> None:
        start = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)


def _first_line(record: Record) -> str:
    return str(record["error"]).splitlines()[0]
