"""Warms a server up and finds out about what it can do: requests of another seed, many at once."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.serving import prefix_cache, row
from harness.serving.client import Limits, offer
from harness.serving.outcome import CANCELLED, COMPLETED
from harness.serving.server import Server, ServerError
from harness.serving.traffic import Request

# First requests pay for lazy initialisation; they are sent alone and not timed.
FIRST = 4


def run(server: Server, requests: Sequence[Request], at_once: int, timeout_s: float) -> dict[str, Any]:
    """`at_once`: requests in flight at most. Returns requests, seconds and rate of the timed part, and the failures and
    refusals of all of it by cause.

    Raises ServerError where the server answers none.
    """
    head, rest = requests[:FIRST], requests[FIRST:]
    limits = Limits(timeout_s, timeout_s, at_once, 0)
    prefix_cache.send_canary(server)
    causes: Counter[str] = Counter()
    for part in (head, rest):
        found = offer(server.endpoint, [row.planned(server, 0.0, request) for request in part], limits)
        done = [one for one in found if one.result in (COMPLETED, CANCELLED)]
        causes.update(str(one.cause) for one in found if one not in done)
        if not done:
            first = found[0]
            raise ServerError(
                f"none of {len(found)} warm-up requests was answered: {first.cause} ({first.detail[:200]}). "
                f"{server.why_gone() or 'Look into the log of the server.'}"
            )
    seconds = max(one.ended_s for one in done if one.ended_s is not None)
    return {"requests": len(done), "seconds": seconds, "rate_rps": len(done) / seconds, "causes": dict(causes)}
