"""Which rate to offer next: up from well below capacity until the targets fail, then closer to the edge."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

GROWTH = 2.0
# The first rate, as a share of what the warm-up reached.
START_SHARE = 0.25


@dataclass(frozen=True)
class Tried:
    rate_rps: float
    holds: bool


def following(tried: Sequence[Tried], start_rps: float, count: int) -> float | None:
    """The next rate in requests/s, or None after `count` rates.

    Doubles while the targets hold, halves while none did, else takes the geometric middle between the highest rate
    below the first failure and that failure.
    """
    if len(tried) >= count:
        return None
    if not tried:
        return start_rps
    failed = [one.rate_rps for one in tried if not one.holds]
    if not failed:
        return max(one.rate_rps for one in tried) * GROWTH
    below = [one.rate_rps for one in tried if one.holds and one.rate_rps < min(failed)]
    return math.sqrt(max(below) * min(failed)) if below else min(failed) / GROWTH


def rounded(rate_rps: float) -> float:
    """Three digits: a rate that can be typed again."""
    return float(f"{rate_rps:.3g}")
