"""What the results cost, all in: the GPUs of a run are paid from its first second to its last.

Start-up, idle engines, invalid and failed runs count; only the rows of valid runs are accepted. GPUs beyond
CONCURRENCY times GPUS_PER_ENGINE are somebody else's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.schema import Record


@dataclass(frozen=True)
class Cost:
    """GPU-seconds of a strategy's runs and what they brought; `complete` is false where a run's time is unknown."""

    gpu_s: float
    output_tokens: int
    accepted_rows: int
    complete: bool

    def per_million_tokens(self, price_per_hour: float | None) -> float | None:
        """Dollars a million output tokens; GPU-seconds when there is no price."""
        return _share(self.gpu_s * _rate(price_per_hour) * 1e6, self.output_tokens)

    def per_thousand_rows(self, price_per_hour: float | None) -> float | None:
        return _share(self.gpu_s * _rate(price_per_hour) * 1e3, self.accepted_rows)


def of(runs: Sequence[Record]) -> Cost:
    """The cost of all runs of one strategy under one set of conditions."""
    valid = [run for run in runs if run["status"] == "ok"]
    return Cost(
        gpu_s=sum(_gpus(run) * (run["wall_s"] or 0.0) for run in runs),
        output_tokens=sum((run["tokens"] or {}).get("output") or 0 for run in valid),
        accepted_rows=sum(run["rows"]["out"] for run in valid),
        complete=all(run["wall_s"] is not None for run in runs),
    )


def _gpus(run: Record) -> int:
    return int(run["config"].get("CONCURRENCY", 0) * run["config"].get("GPUS_PER_ENGINE", 0))


def _rate(price_per_hour: float | None) -> float:
    return 1.0 if price_per_hour is None else price_per_hour / 3600


def _share(amount: float, parts: int) -> float | None:
    return amount / parts if parts and amount else None
