"""What an accepted response costs: the row's machines are paid from its first arrival to its last end, idle or not.

Work for refused, failed, cancelled and late answers, and for second attempts, is paid and brings nothing. A server's
start is left out: it is paid once, not at each rate.
"""

from typing import Any


def gpu_seconds(row: dict[str, Any]) -> float:
    """GPU-seconds; without a GPU, seconds of the machine."""
    return max(int(row["config"]["GPUS_PER_ENGINE"]), 1) * float(row["wall_s"])


def per_accepted(row: dict[str, Any], price_per_hour: float | None) -> float | None:
    """Dollars an accepted response, or GPU-seconds without a price; null where none was accepted."""
    accepted = row["counts"]["accepted"]
    rate = 1.0 if price_per_hour is None else price_per_hour / 3600
    return gpu_seconds(row) * rate / accepted if accepted else None
