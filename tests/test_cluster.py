"""How a run joins Ray. Nothing here starts one."""

import socket
import time

import pytest
from harness import cluster


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_is_gone_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}.*RAY_ADDRESS=local") as caught:
        cluster.connect()
    assert caught.value.__cause__ is None  # what a record names is the innermost error
    assert time.monotonic() - started < 10
