"""A progress bar on stderr: one line that is redrawn on a terminal, a line every tenth elsewhere."""

import sys
import time

WIDTH = 30


class ProgressBar:
    """`with ProgressBar("tokenising", total) as progress: progress.advance(n)`; rates are in units a second."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self._started = time.perf_counter()
        self._tenth = 0
        self._drawn_at = 0.0

    def __enter__(self) -> "ProgressBar":
        # At once: what takes long may take long for its first tenth.
        print(self._line(self._started), end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def advance(self, amount: int) -> None:
        self.done += amount
        now = time.perf_counter()
        tenth = 10 * self.done // max(self.total, 1)
        if sys.stderr.isatty():
            if now - self._drawn_at > 0.1 or self.done >= self.total:
                self._drawn_at = now
                print(f"\r{self._line(now)}", end="", file=sys.stderr, flush=True)
        elif tenth > self._tenth:
            print(self._line(now), file=sys.stderr, flush=True)
        self._tenth = tenth

    def _line(self, now: float) -> str:
        share = self.done / max(self.total, 1)
        bar = "#" * round(WIDTH * share)
        rate = self.done / max(now - self._started, 1e-9)
        return f"{self.label} [{bar:<{WIDTH}}] {self.done:,}/{self.total:,} {rate:,.0f}/s"
