"""One row of the scorecard: one configuration at one offered rate, measured from both sides."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.serving import client, figures, outcome, prefix_cache, server_metrics
from harness.serving.client import Limits, Planned
from harness.serving.outcome import COMPLETED, OVERLOAD_CAUSES, RESULTS, Outcome
from harness.serving.server import Server
from harness.serving.server_metrics import Snapshot
from harness.serving.targets import Targets
from harness.serving.traffic import Request
from harness.serving.watch import Watch

Timed = Sequence[tuple[float, Request]]
Record = dict[str, Any]

# The client held the rate where 99 % of the requests left within this many seconds of their time,
HELD_S = 0.05
# and within this share of the span of all arrivals: the rate that was sent is then off by no more.
HELD_SHARE = 0.02
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
        **client_side(timed, outcomes, targets),
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


def client_side(timed: Timed, outcomes: Sequence[Outcome], targets: Targets) -> Record:
    """Counts, latencies of completed requests alone, and how late the client was."""
    done = [found for found in outcomes if found.result == COMPLETED]
    window_s = max((at for at, _ in timed), default=0.0)
    wall_s = max([window_s, *(found.ended_s for found in outcomes if found.ended_s is not None)])
    results = Counter(found.result for found in outcomes)
    causes = Counter(found.cause for found in outcomes if found.cause and found.result == outcome.FAILED)
    return {
        "counts": {
            "offered": len(outcomes),
            **{name: results[name] for name in RESULTS},
            "accepted": sum(targets.accept(found) for found in done),
            "attempts": sum(found.attempts for found in outcomes),
        },
        "causes": dict(causes),
        "details": {found.cause: found.detail for found in outcomes if found.cause and found.detail},
        "window_s": window_s,
        "wall_s": wall_s,
        "output_tokens": sum(found.tokens for found in done),
        "wasted_tokens": sum(found.tokens for found in outcomes if found.result != COMPLETED),
        "latency": latencies(done),
        "families": {name: latencies([one for one in done if one.family == name]) for name in _families(done)},
        "by_prompt_length": by_prompt_length(done),
        "client": lateness(outcomes, window_s),
    }


def latencies(done: Sequence[Outcome]) -> Record:
    """Seconds. `sent_*` count from the moment of sending, as `vllm bench serve` does."""
    sent = [(found, found.sent_s) for found in done if found.sent_s is not None]
    return {
        "ttft_s": figures.spread([found.ttft_s for found in done if found.ttft_s is not None]),
        "itl_s": figures.spread([gap for found in done for gap in found.gaps]),
        "tpot_s": figures.spread([found.tpot_s for found in done if found.tpot_s is not None]),
        "e2e_s": figures.spread([found.e2e_s for found in done if found.e2e_s is not None]),
        "sent_ttft_s": figures.spread([one.first_s - at for one, at in sent if one.first_s is not None]),
        "sent_e2e_s": figures.spread([one.last_s - at for one, at in sent if one.last_s is not None]),
    }


def by_prompt_length(done: Sequence[Outcome]) -> Record | None:
    """Median TTFT of the quarter with the shortest and of that with the longest prompts; null for small samples."""
    known = sorted((one.prompt_tokens, one.ttft_s) for one in done if one.prompt_tokens and one.ttft_s is not None)
    if len(known) < 8:
        return None
    quarter = len(known) // 4
    short, long = known[:quarter], known[-quarter:]
    return {
        name: {
            "prompt_tokens": figures.spread([float(tokens) for tokens, _ in part])["p50"],
            "ttft_s": figures.spread([ttft for _, ttft in part])["p50"],
        }
        for name, part in (("shortest", short), ("longest", long))
    }


def lateness(outcomes: Sequence[Outcome], window_s: float) -> Record:
    """Whether the client held the offered rate, and how late it was where it was."""
    late = figures.spread([found.lateness_s for found in outcomes if found.lateness_s is not None])
    unsent = sum(found.sent_s is None and found.cause != "no connection" for found in outcomes)
    limit = min(HELD_S, max(HELD_SHARE * window_s, 0.005))
    held = not unsent and (late["p99"] is None or late["p99"] <= limit)
    return {"lateness_s": late, "unsent": unsent, "held": held}


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


def _families(done: Sequence[Outcome]) -> list[str]:
    return sorted({found.family for found in done})


def _extreme(series: Sequence[Record], name: str) -> float | None:
    return max((reading[name] for reading in series if reading[name] is not None), default=None)


def _mean(series: Sequence[Record], name: str) -> float | None:
    known = [reading[name] for reading in series if reading[name] is not None]
    return sum(known) / len(known) if known else None
