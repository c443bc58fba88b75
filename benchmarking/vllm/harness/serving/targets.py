"""The service's targets: which requests are accepted, and whether a row holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import config
from harness.serving.outcome import COMPLETED, Outcome


@dataclass(frozen=True)
class Targets:
    """Seconds at the 95th percentile; `error_share` of the requests that were not cancelled; none: no such target."""

    ttft_s: float
    itl_s: float
    e2e_s: float | None
    error_share: float

    def accept(self, found: Outcome) -> bool:
        """A completed request within the targets, its mean time a token standing for its inter-token latency."""
        if found.result != COMPLETED or found.ttft_s is None or found.e2e_s is None:
            return False
        in_time = self.e2e_s is None or found.e2e_s <= self.e2e_s
        return in_time and found.ttft_s <= self.ttft_s and (found.tpot_s is None or found.tpot_s <= self.itl_s)

    def violations(self, row: Mapping[str, Any]) -> list[str]:
        """What of a row's record is beyond the targets, with both figures; empty where it holds."""
        counts = row["counts"]
        kept = counts["offered"] - counts["cancelled"]
        lost = counts["failed"] + counts["refused"]
        limits = (("TTFT", "ttft_s", self.ttft_s), ("ITL", "itl_s", self.itl_s), ("end to end", "e2e_s", self.e2e_s))
        found = [
            f"p95 {name} {value:.3g} s, target {limit:g} s"
            for name, key, limit in limits
            if limit is not None and (value := row["latency"][key]["p95"]) is not None and value > limit
        ]
        if kept and lost / kept > self.error_share:
            found.append(f"{lost} of {kept} failed or refused, target {self.error_share:.1%}")
        return found if counts["completed"] else [*found, "no request was completed"]


def configured() -> Targets:
    return Targets(
        config.SERVING_TTFT_TARGET_S,
        config.SERVING_ITL_TARGET_S,
        config.SERVING_E2E_TARGET_S,
        config.SERVING_ERROR_TARGET,
    )
