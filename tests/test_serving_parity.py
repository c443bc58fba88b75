"""The comparison with vLLM's own load generator is made of whole turns on a cold cache, or not at all."""

import runpy

import pytest
from answering import answering
from harness.overrides import SUITE_DIR
from harness.serving import prefix_cache
from harness.serving.connection import Endpoint
from harness.serving.server import Server
from harness.serving.traffic import Request

PARITY = runpy.run_path(str(SUITE_DIR / "serving-parity.py"))
TIMED = [(0.01 * i, Request("chat", "word", 2)) for i in range(10)]


def test_a_load_of_which_some_failed_is_not_compared():
    async def some(number, say):
        if number % 4 == 3:
            say.refuse(500)
        else:
            say.whole()

    with answering(some) as address, pytest.raises(SystemExit, match="suite: expected 10 completed requests, found "):
        PARITY["ours"](Server(Endpoint(address), "model"), TIMED)


def test_a_turn_on_a_warm_cache_is_not_compared(monkeypatch):
    monkeypatch.setattr(prefix_cache, "empty_and_prove", lambda _: prefix_cache.WARM)
    with pytest.raises(SystemExit, match="found it still warm"):
        PARITY["turn"](Server(Endpoint("http://localhost:1"), "model"), TIMED, 1)
