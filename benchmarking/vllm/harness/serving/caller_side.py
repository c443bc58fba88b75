"""A row as its callers saw it: counts, latencies of the completed requests, and whether the client held the rate."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.serving import figures, outcome
from harness.serving.outcome import COMPLETED, RESULTS, Outcome
from harness.serving.targets import Targets
from harness.serving.traffic import Request

Timed = Sequence[tuple[float, Request]]
Record = dict[str, Any]

# The client held the rate where 99 % of the requests left within this many seconds of their time,
HELD_S = 0.05
# and within this share of the span of all arrivals: the rate that was sent is then off by no more.
HELD_SHARE = 0.02


def of(timed: Timed, outcomes: Sequence[Outcome], targets: Targets) -> Record:
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
    unsent = sum(found.sent_s is None for found in outcomes)
    limit = min(HELD_S, max(HELD_SHARE * window_s, 0.005))
    held = not unsent and (late["p99"] is None or late["p99"] <= limit)
    return {"lateness_s": late, "unsent": unsent, "held": held}


def _families(done: Sequence[Outcome]) -> list[str]:
    return sorted({found.family for found in done})
