"""A run's clock: the time of day, looked at once and counted on from there, so that nobody can set it in between.

The engines' messages carry the time of day itself. Where that was set, or stood still as a laptop sleeps, a run's
seconds are not those of its work.
"""

import time

# NTP steps a clock that is off by more than 0.128 s; what it slews, both of the clocks below follow. Where a machine's
# two clocks do not run quite alike, so small a share of a run moves no figure.
STEP_S = 0.1
DRIFT = 1e-4
# A busy machine stops a process for tenths of a second between two looks; the closest of so many pairs counts.
LOOKS = 20


class Clock:
    def __init__(self) -> None:
        self._offset_s, self._began = _offset_s(), time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._offset_s + time.monotonic()

    def step(self) -> str | None:
        """What happened to the time of day since this clock began; None where it just passed."""
        step_s = _offset_s() - self._offset_s
        if abs(step_s) < STEP_S + DRIFT * (time.monotonic() - self._began):
            return None
        return f"this machine's clock moved by {step_s:+.1f} s beyond what passed: it was set, or slept"


def _offset_s() -> float:
    """Time of day less the time since the machine's start."""
    looks = []
    for _ in range(LOOKS):
        before = time.monotonic()
        now = time.time()
        looks.append((time.monotonic() - before, now - before))
    return min(looks)[1]
