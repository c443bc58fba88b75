"""The server's prefix cache between rows: emptied where the server allows it, and its state proved by counters.

A canary, one fixed prompt, is in the cache from the warm-up on. Sent again after an accepted reset it must find
nothing: that proves a cold cache. Everything else is warm, since something was sent before, and is not compared.
"""

import json
import time

from harness.serving import server_metrics
from harness.serving.http_call import call
from harness.serving.server import Server
from harness.serving.server_metrics import Snapshot

COLD, WARM, UNKNOWN = "cold", "warm", "unknown"
# Longer than a KV block on any platform (128 tokens on CPU by default).
CANARY = "the canary sings " * 40
RESET_TRIES = 20
TRY_AGAIN_S = 0.1


def snapshot(server: Server) -> Snapshot:
    answer = call(server.endpoint, "GET", "/metrics")
    return server_metrics.parse(answer.text if answer.is_ok else "")


def empty_and_prove(server: Server) -> str:
    """Resets the cache and returns COLD, WARM, or UNKNOWN (the server does not count, or did not answer)."""
    was_reset = _reset(server)
    before = snapshot(server)
    if before.scalar("prefix_cache_queries") is None or not send_canary(server):
        return UNKNOWN
    found = server_metrics.difference(before, _after(server, before))
    if not found["prefix_cache_queries"]:
        return UNKNOWN
    return COLD if was_reset and not found["prefix_cache_hits"] else WARM


def _reset(server: Server) -> bool:
    for _ in range(RESET_TRIES):
        answer = call(server.endpoint, "POST", "/reset_prefix_cache", timeout_s=30)
        # vLLM refuses while a request still holds blocks, and says so.
        if not (answer.is_ok and '"success":false' in answer.text):
            return answer.is_ok
        time.sleep(TRY_AGAIN_S)
    return False


def send_canary(server: Server) -> bool:
    body = json.dumps({"model": server.model, "prompt": CANARY, "max_tokens": 1, "temperature": 0}).encode()
    return call(server.endpoint, "POST", "/v1/completions", body, timeout_s=60).is_ok


def _after(server: Server, before: Snapshot) -> Snapshot:
    """The counters once they have moved: the engine publishes a step's figures after its answer is out."""
    for _ in range(RESET_TRIES):
        after = snapshot(server)
        if after.scalar("prefix_cache_queries") != before.scalar("prefix_cache_queries"):
            return after
        time.sleep(TRY_AGAIN_S)
    return after
