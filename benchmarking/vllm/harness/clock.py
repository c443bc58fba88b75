"""A run's clock: the time of day, looked at once and counted on from there, so that nobody can set it in between.

The engines' messages carry the time of day itself. Where that was set, or stood still as a laptop sleeps, a run's
seconds are not those of its work.
"""

import time

# NTP steps a clock that is off by more than 0.128 s; what it slews, both of the clocks below follow.
STEP_S = 0.1


class Clock:
    def __init__(self) -> None:
        self._time, self._tick = time.time(), time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._time + time.monotonic() - self._tick

    def step(self) -> str | None:
        """What happened to the time of day since this clock began; None where it just passed."""
        step_s = time.time() - self.now()
        if abs(step_s) < STEP_S:
            return None
        return f"this machine's clock moved by {step_s:+.1f} s beyond what passed: it was set, or slept"
