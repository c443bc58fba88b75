"""Serving records written by hand, for tests of what is concluded from them. No server is involved."""

from typing import Any

from harness.serving import configurations, diagnosis, row_record
from harness.serving.figures import PERCENTILES
from harness.serving.targets import Targets

TARGETS = Targets(ttft_s=0.5, itl_s=0.05, e2e_s=None, error_share=0.01)


def spread(p50: float, p95: float, count: int = 200) -> dict[str, Any]:
    values = {50: p50, 90: p95 * 0.9, 95: p95, 99: p95 * 1.2}
    return {**{f"p{name}": values[name] for name in PERCENTILES}, "mean": p50 * 1.1, "count": count}


def histogram(mean_s: float = 0.01, count: int = 200) -> dict[str, Any]:
    return {"sum": mean_s * count, "count": count, "buckets": {"0.3": count - 20, "0.5": count - 5, "+Inf": count}}


def row(
    configuration: str = "baseline",
    rate: float = 10.0,
    ttft: float = 0.1,
    itl: float = 0.02,
    completed: int = 200,
    scorecard: str = "one",
    **changes: Any,
) -> dict[str, Any]:
    """A measured row; `changes` by key: `server`, `counts` and `client` are merged, the rest replaced."""
    (named,) = configurations.parse(configuration)
    made = row_record.new(named, scorecard, rate, vars(TARGETS))
    counts = {"offered": 0, "completed": completed, "failed": 0, "cancelled": 0, "refused": 0}
    counts |= {"accepted": completed, "attempts": completed} | changes.pop("counts", {})
    counts["offered"] = counts["offered"] or sum(counts[k] for k in ("completed", "failed", "cancelled", "refused"))
    latency = {"ttft_s": spread(ttft / 2, ttft, completed), "itl_s": spread(itl / 2, itl)}
    latency |= {name: spread(ttft / 2, ttft, completed) for name in ("tpot_s", "e2e_s", "sent_ttft_s", "sent_e2e_s")}
    made |= {
        "status": "ok",
        "rate": {"offered_rps": rate, "arrivals": "poisson", "burstiness": None, "seed": 1, "seconds": 20.0},
        "traffic": {"source": "mix", "version": 1, "fingerprint": "f", "families": {"chat": completed}},
        "settings": {"max_num_seqs": 64},
        "server_command": "python -m vllm.entrypoints.openai.api_server",
        "cache_state": "cold",
        "counts": counts,
        "causes": {"stalled": counts["failed"]} if counts["failed"] else {},
        "details": {},
        "window_s": 19.0,
        "wall_s": 20.0,
        "row_s": 21.0,
        "output_tokens": completed * 100,
        "wasted_tokens": 0,
        "latency": changes.pop("latency", latency),
        "families": {},
        "by_prompt_length": None,
        "client": {"lateness_s": spread(0.0001, 0.001), "unsent": 0, "held": True} | changes.pop("client", {}),
        "server": server_side(ttft) | changes.pop("server", {}),
        "before": {"running": 0, "waiting": 0, "kv_cache_usage": 0.0},
        "after": {"settled_s": 0.1, "running": 0, "waiting": 0, "kv_cache_usage": 0.0},
        "series": [],
        **changes,
    }
    made["violations"] = TARGETS.violations(made)
    made["diagnosis"] = vars(diagnosis.of(made, None))
    return made


def server_side(ttft: float) -> dict[str, Any]:
    return {
        **{"prefix_cache_queries": 1000, "prefix_cache_hits": 300, "preemptions": 0},
        **{"prompt_tokens": 1000, "generation_tokens": 20000, "finished": {"length": 200}},
        **{"queue_time": histogram(), "ttft": histogram(ttft / 2), "inter_token_latency": histogram()},
        **{"e2e_latency": histogram(), "running_max": 30.0, "waiting_max": 0.0, "kv_cache_usage_max": 0.3},
        **{"waiting_share": 0.0, "kv_cache_usage_while_waiting": None, "gpu_utilization_while_waiting": None},
        **{"gpu_utilization_mean": 0.9, "gpu_memory_high_bytes": 130_000_000_000},
    }


QUEUE = {"waiting_share": 0.8, "waiting_max": 40.0}
