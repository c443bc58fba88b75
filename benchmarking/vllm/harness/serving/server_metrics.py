"""What a vLLM server says of itself at /metrics: exact counters, and histograms, known to a bucket."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.engine_metrics import HISTOGRAMS, SCALARS

COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "preemptions", "prompt_tokens", "generation_tokens")
FINISHED = "vllm:request_success"
CACHE_INFO = "vllm:cache_config_info"
_LINE = re.compile(r"^(vllm:\w+?)(_total|_bucket|_sum|_count)?(?:\{([^\n]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Snapshot:
    """One reading: name and suffix → its samples as (labels, value), over all engines of the server."""

    samples: Mapping[tuple[str, str], list[tuple[dict[str, str], float]]]

    def total(self, name: str, suffix: str = "") -> float | None:
        found = self.samples.get((name, suffix)) or self.samples.get((name, "_total"))
        return sum(value for _, value in found) if found else None

    def scalar(self, key: str) -> float | None:
        """By the suite's name of the metric (engine_metrics.SCALARS)."""
        return self.total(SCALARS[key])

    def finished(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for labels, value in self.samples.get((FINISHED, "_total"), []):
            reason = labels.get("finished_reason", "unknown")
            counts[reason] = counts.get(reason, 0) + int(value)
        return counts

    def histogram(self, name: str) -> dict[str, Any]:
        buckets: dict[str, int] = {}
        for labels, value in self.samples.get((name, "_bucket"), []):
            buckets[labels["le"]] = buckets.get(labels["le"], 0) + int(value)
        return {"sum": self.total(name, "_sum"), "count": self.total(name, "_count"), "buckets": buckets}

    def cache_info(self) -> dict[str, str]:
        found = self.samples.get((CACHE_INFO, ""), [])
        return found[0][0] if found else {}


def parse(text: str) -> Snapshot:
    """Reads the Prometheus text format; other servers' metrics are left out."""
    samples: dict[tuple[str, str], list[tuple[dict[str, str], float]]] = {}
    for name, suffix, labels, value in _LINE.findall(text):
        if not suffix and name.endswith("_created"):
            continue
        samples.setdefault((name, suffix), []).append((dict(_LABEL.findall(labels)), float(value)))
    return Snapshot(samples)


def difference(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """What a row added to the counters and histograms; null where the server does not tell."""
    counted = {name: _less(after.scalar(name), before.scalar(name)) for name in COUNTERS}
    ended = {reason: count - before.finished().get(reason, 0) for reason, count in after.finished().items()}
    times = {name: _histogram(before.histogram(metric), after.histogram(metric)) for name, metric in HISTOGRAMS.items()}
    return {**counted, "finished": {reason: count for reason, count in ended.items() if count} or None, **times}


def quantile_bounds(histogram: Mapping[str, Any] | None, share: float) -> tuple[float, float | None] | None:
    """The bucket in which the quantile lies, (lower, upper); the last has no upper. None without samples."""
    if not histogram or not histogram["count"]:
        return None
    lower = 0.0
    for bound, count in sorted(((float(le), count) for le, count in histogram["buckets"].items())):
        if count >= share * histogram["count"]:
            return lower, None if math.isinf(bound) else bound
        lower = bound
    return lower, None


def _histogram(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    if after["count"] is None:
        return None
    buckets = {le: count - before["buckets"].get(le, 0) for le, count in after["buckets"].items()}
    return {
        "sum": after["sum"] - (before["sum"] or 0.0),
        "count": int(after["count"] - (before["count"] or 0)),
        "buckets": buckets,
    }


def _less(after: float | None, before: float | None) -> int | None:
    return None if after is None or before is None else int(after - before)
