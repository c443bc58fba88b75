"""Percentiles of a row, and whether its sample is large enough to certify them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Requests that MLPerf's early stopping wants before it certifies a percentile (MLPerf Inference rules, early stopping,
# 99 % confidence).
CERTIFYING_COUNTS = {90: 64, 95: 130, 99: 662}
PERCENTILES = (50, 90, 95, 99)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """p50 to p99, interpolated linearly as `vllm bench serve` does, mean and count; null for an empty sample."""
    names = [f"p{percentile}" for percentile in PERCENTILES]
    if not values:
        return {**dict.fromkeys((*names, "mean")), "count": 0}
    found = np.percentile(np.asarray(values), PERCENTILES)
    return {**dict(zip(names, map(float, found), strict=True)), "mean": float(np.mean(values)), "count": len(values)}


def is_certified(percentile: int, requests: int) -> bool:
    """Whether that many requests suffice for the percentile; those of no rule (the median) always do."""
    return requests >= CERTIFYING_COUNTS.get(percentile, 1)
