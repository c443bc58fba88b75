"""Why a row is as it is: the first cause whose signs are in its numbers, the evidence, and the one control to change.

A rule looks at the row's record and at the next lower rate of the same configuration; it answers with evidence or None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

# Requests wait in this share of the readings or more: a queue, not a moment.
QUEUE_SHARE = 0.2
# Below this share of its blocks the KV cache has room.
KV_FREE = 0.9
# A GPU below this utilisation has idle time that a queue could fill.
GPU_IDLE = 0.7
# Time to first token outside the engine, as a share of all of it, and in seconds, that is worth a look.
FRONT_END_SHARE, FRONT_END_S = 0.5, 0.05
GROWS = 2.0
# Readings come once a second and may miss the fullest step.
FULL = 0.95


@dataclass(frozen=True)
class Diagnosis:
    cause: str
    evidence: str
    change: str


@dataclass(frozen=True)
class Rule:
    cause: str
    signs: Callable[[Row, Row | None], tuple[str, str] | None]


def of(row: Row, lower: Row | None) -> Diagnosis:
    """`lower`: the row of the same configuration at the next lower rate, if there is one (`neighbour`)."""
    for rule in RULES:
        if found := rule.signs(row, lower):
            return Diagnosis(rule.cause, *found)
    if not row["violations"]:
        return Diagnosis("targets hold", _load(row), "none: offer more")
    return Diagnosis("no known sign", f"{_load(row)}; {'; '.join(row['violations'])}", "none: read the server's log")


def neighbour(row: Row, measured: Sequence[Row]) -> Row | None:
    """The measured row at the next lower rate that began with as much in the prefix cache: one that found there what
    others had paid for says nothing about where this one's throughput and concurrency come from."""
    lower = [one for one in measured if one["rate"]["offered_rps"] < row["rate"]["offered_rps"]]
    alike = [one for one in lower if one["cache_state"] == row["cache_state"]]
    return max(alike, key=lambda one: float(one["rate"]["offered_rps"]), default=None)


def _waits_for_admission(row: Row, _: Row | None) -> tuple[str, str] | None:
    refused = row["counts"]["refused"]
    if not refused or not _kv_is_free(row):
        return None
    return f"{refused} of {row['counts']['offered']} refused, KV at most {_kv(row)} used", "raise admission_limit"


def _waits_for_a_sequence(row: Row, _: Row | None) -> tuple[str, str] | None:
    limit, running = (row["settings"] or {}).get("max_num_seqs"), row["server"]["running_max"]
    if not _has_queue(row) or not _kv_is_free(row) or not limit or not running or running < FULL * limit:
        return None
    return (
        f"{_queue(row)}, {running:.0f} of {limit} sequences running, KV at most {_kv(row)} used",
        "raise max_num_seqs",
    )


def _waits_in_the_client(row: Row, _: Row | None) -> tuple[str, str] | None:
    late = row["client"]
    if late["held"]:
        return None
    p99 = late["lateness_s"]["p99"]
    evidence = f"p99 lateness {p99:.3g} s" if p99 is not None else "nothing was sent"
    return f"{evidence}, {late['unsent']} never sent", "give the client a core, or raise SERVING_MAX_IN_FLIGHT"


def _waits_in_the_front_end(row: Row, _: Row | None) -> tuple[str, str] | None:
    """Client's mean TTFT from sending against the engine's: tokenising and HTTP are the rest."""
    seen, told = row["latency"]["sent_ttft_s"]["mean"], _mean(row["server"].get("ttft"))
    if not row["violations"] or seen is None or told is None or not _kv_is_free(row):
        return None
    outside = seen - told
    if outside < FRONT_END_S or outside < FRONT_END_SHARE * seen:
        return None
    return f"mean TTFT {seen:.3g} s at the client, {told:.3g} s in the engine", "add API servers (--api-server-count)"


def _prefill_interferes(row: Row, _: Row | None) -> tuple[str, str] | None:
    lengths, itl = row["by_prompt_length"], row["latency"]["itl_s"]
    if not row["violations"] or _has_queue(row) or not lengths or not itl["p50"]:
        return None
    short, long = lengths["shortest"], lengths["longest"]
    if long["ttft_s"] < GROWS * short["ttft_s"] or itl["p95"] < GROWS * itl["p50"]:
        return None
    evidence = (
        f"median TTFT {short['ttft_s']:.3g} s at {short['prompt_tokens']:.0f} prompt tokens, {long['ttft_s']:.3g} s at "
        f"{long['prompt_tokens']:.0f}; ITL p95 {itl['p95'] / itl['p50']:.1f} times its median"
    )
    stalls = any("ITL" in text for text in row["violations"])
    return evidence, "lower max_num_batched_tokens" if stalls else "raise max_num_batched_tokens"


def _is_past_its_concurrency(row: Row, lower: Row | None) -> tuple[str, str] | None:
    if lower is None or not row["violations"] or row["server"]["preemptions"]:
        return None
    now, before = (one["output_tokens"] / one["wall_s"] for one in (row, lower))
    if now <= before or _gpu_is_idle(row):
        return None
    evidence = f"{before:,.0f} → {now:,.0f} output tokens/s, and {'; '.join(row['violations'])}"
    running = None if lower["violations"] else lower["server"]["running_max"]
    return evidence, f"set admission_limit near {running:.0f}" if running else "set admission_limit as at lower rates"


def _is_preempted(row: Row, lower: Row | None) -> tuple[str, str] | None:
    now = row["server"]["preemptions"]
    before = lower["server"]["preemptions"] if lower else 0
    if not now or now <= (before or 0):
        return None
    return f"{before or 0} → {now} preemptions, KV at most {_kv(row)} used", "raise kv_cache_memory_bytes"


def _is_host_bound(row: Row, _: Row | None) -> tuple[str, str] | None:
    if not _has_queue(row) or not _gpu_is_idle(row):
        return None
    used = row["server"]["gpu_utilization_while_waiting"]
    return f"{_queue(row)}, GPU {used:.0%} used meanwhile", "give the server more cores (--api-server-count)"


def _is_full(row: Row, _: Row | None) -> tuple[str, str] | None:
    if not row["violations"] or not _has_queue(row):
        return None
    return f"{_queue(row)}; {'; '.join(row['violations'])}", "set admission_limit, or add an engine"


RULES = (
    Rule("requests wait while KV memory is free: admission limit", _waits_for_admission),
    Rule("requests wait while KV memory is free: sequence limit", _waits_for_a_sequence),
    Rule("requests wait while KV memory is free: client", _waits_in_the_client),
    Rule("requests wait while KV memory is free: tokenising and HTTP", _waits_in_the_front_end),
    Rule("TTFT grows on long prompts: prefill interference", _prefill_interferes),
    Rule("throughput up, p95 worse: past the target's concurrency", _is_past_its_concurrency),
    Rule("preemptions rise: KV pressure", _is_preempted),
    Rule("GPU idle while requests wait: host-bound", _is_host_bound),
    Rule("requests wait while the engine is busy: past its capacity", _is_full),
)


def _has_queue(row: Row) -> bool:
    return (row["server"]["waiting_share"] or 0.0) >= QUEUE_SHARE


def _queue(row: Row) -> str:
    server = row["server"]
    return f"up to {server['waiting_max']:.0f} waiting in {server['waiting_share']:.0%} of the readings"


def _kv_is_free(row: Row) -> bool:
    used = row["server"]["kv_cache_usage_max"]
    return used is None or used < KV_FREE


def _kv(row: Row) -> str:
    used = row["server"]["kv_cache_usage_max"]
    return "an unknown share" if used is None else f"{used:.0%}"


def _gpu_is_idle(row: Row) -> bool:
    used = row["server"]["gpu_utilization_while_waiting"]
    return used is not None and used < GPU_IDLE


def _mean(histogram: Row | None) -> float | None:
    return histogram["sum"] / histogram["count"] if histogram and histogram["count"] else None


def _load(row: Row) -> str:
    running = row["server"]["running_max"]
    told = f", up to {running:.0f} running" if running is not None else ""
    return f"{row['counts']['completed']} of {row['counts']['offered']} completed{told}"
