"""What runs, how long the rest will take at most, and each row's result; on stderr."""

import sys
import threading
import time
from typing import Any

from harness.report.tables import figure


class Progress:
    """`planned`: rows of all configurations; `row_s`: what one takes at most."""

    def __init__(self, planned: int, row_s: float) -> None:
        self._planned, self._row_s, self._done = planned, row_s, 0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def row(self, configuration: str, rate_rps: float) -> "Ticker":
        self._done += 1
        left_s = max(self._planned - self._done + 1, 1) * self._row_s
        place = f"[{self._done}/{self._planned}]"
        return Ticker(f"{place} {configuration} at {rate_rps:g}/s, at most {left_s / 60:.1f} min left")

    def skip(self, rows: int) -> None:
        self._done += rows

    def result(self, row: dict[str, Any]) -> None:
        counts, latency = row["counts"], row["latency"]
        lost = counts["failed"] + counts["refused"]
        kept = "holds" if not row["violations"] else "; ".join(row["violations"])
        self.say(
            f"    {counts['completed']} of {counts['offered']} completed, {lost} failed or refused, p95 TTFT "
            f"{figure(latency['ttft_s']['p95'])} s, ITL {figure(latency['itl_s']['p95'])} s: {kept}"
        )


class Ticker:
    """A line that counts seconds on a terminal, or one line elsewhere."""

    def __init__(self, text: str) -> None:
        self._text, self._stop = text, threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True, name="progress")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _tick(self) -> None:
        if not sys.stderr.isatty():
            print(self._text, file=sys.stderr, flush=True)
            return
        began = time.monotonic()
        while not self._stop.wait(1.0):
            print(f"\r\033[K{self._text}: {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
        print(f"\r\033[K{self._text}", file=sys.stderr, flush=True)
