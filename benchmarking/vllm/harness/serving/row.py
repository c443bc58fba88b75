"""One row of the scorecard: one configuration at one offered rate, measured from both sides."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.serving import caller_side, client, prefix_cache, server_metrics
from harness.serving.caller_side import Timed
from harness.serving.client import Limits, Planned
from harness.serving.outcome import OVERLOAD_CAUSES, Outcome
from harness.serving.server import Server
from harness.serving.server_metrics import Snapshot
from harness.serving.targets import Targets
from harness.serving.traffic import Request
from harness.serving.watch import Watch

Record = dict[str, Any]

# Cancelled requests leave the engine at its next step; this bounds the wait for it.
SETTLE_S = 10.0
POLL_S = 0.1


def measure(server: Server, timed: Timed, limits: Limits, targets: Targets) -> tuple[Record, list[Outcome]]:
    """Offers `timed` and returns the measured part of the row's record, and the requests behind it."""
    settle(server)
    cache_state = prefix_cache.empty_and_prove(server)
    plan = [planned(server, at, request) for at, request in timed]
    before = prefix_cache.snapshot(server)
    started = time.perf_counter()
    with Watch(server.endpoint, gpus=server.process is not None) as watch:
        outcomes = client.offer(server.endpoint, plan, limits)
    settled_s = settle(server)
    after = prefix_cache.snapshot(server)
    series = watch.series()
    row = {
        "cache_state": cache_state,
        **caller_side.of(timed, outcomes, targets),
        "server": {**server_metrics.difference(before, after), **high_water(series)},
        "after": {"settled_s": settled_s, **_gauges(after)},
        "before": _gauges(before),
        "series": series,
        "row_s": time.perf_counter() - started,
    }
    return {**row, "violations": targets.violations(row)}, outcomes


def planned(server: Server, at: float, request: Request) -> Planned:
    """The request as bytes. `ignore_eos` makes lengths exact; running usage tells how many tokens a chunk holds."""
    body = {
        "model": server.model,
        "prompt": request.prompt,
        "max_tokens": request.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    message = server.endpoint.request("/v1/completions", json.dumps(body).encode())
    return Planned(at, message, request.family, request.output_len, request.cancel_after)


def high_water(series: Sequence[Record]) -> Record:
    """Extremes of the readings, and what held while requests waited; null where nothing was read."""
    seen = [reading for reading in series if reading["waiting"] is not None]
    waiting = [reading for reading in seen if reading["waiting"] > 0]
    return {
        "running_max": _extreme(seen, "running"),
        "waiting_max": _extreme(seen, "waiting"),
        "kv_cache_usage_max": _extreme(seen, "kv_cache_usage"),
        "waiting_share": len(waiting) / len(seen) if seen else None,
        "kv_cache_usage_while_waiting": _extreme(waiting, "kv_cache_usage"),
        "gpu_utilization_while_waiting": _mean(waiting, "gpu_utilization"),
        "gpu_utilization_mean": _mean(series, "gpu_utilization"),
        "gpu_memory_high_bytes": _extreme(series, "gpu_memory_bytes"),
    }


def settle(server: Server) -> float | None:
    """Seconds until nothing runs or waits in the server; null if that did not come, or cannot be seen."""
    started = time.perf_counter()
    while time.perf_counter() - started < SETTLE_S:
        now = prefix_cache.snapshot(server)
        running, waiting = now.scalar("running"), now.scalar("waiting")
        if running is None or waiting is None:
            return None
        if running + waiting == 0:
            return time.perf_counter() - started
        time.sleep(POLL_S)
    return None


def is_broken(row: Record) -> bool:
    """Whether something failed that a rate beyond the server's capacity does not explain."""
    return any(cause not in OVERLOAD_CAUSES for cause in row["causes"]) or row["counts"]["completed"] == 0


def requests_table(outcomes: Sequence[Outcome]) -> list[Record]:
    """One line a request, for the Parquet file beside the record."""
    return [
        {**{key: value for key, value in asdict(found).items() if key != "gaps"}, **_gap_figures(found)}
        for found in outcomes
    ]


def _gap_figures(found: Outcome) -> Record:
    return {"itl_max_s": max(found.gaps, default=None), "chunks": len(found.gaps) + (found.first_s is not None)}


def _gauges(snapshot: Snapshot) -> Record:
    return {name: snapshot.scalar(name) for name in ("running", "waiting", "kv_cache_usage")}


def _extreme(series: Sequence[Record], name: str) -> float | None:
    return max((reading[name] for reading in series if reading[name] is not None), default=None)


def _mean(series: Sequence[Record], name: str) -> float | None:
    known = [reading[name] for reading in series if reading[name] is not None]
    return sum(known) / len(known) if known else None
