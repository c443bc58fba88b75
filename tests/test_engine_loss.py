"""Engines that go away with their node or process: logs written by hand, and a Ray that says what it is told."""

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import config
import pytest
from engine_story import log_of, story
from harness import engine_loss
from harness.engine_log import EngineLog
from harness.engine_loss import EngineLosses
from harness.watchdog import Watchdog


@pytest.fixture
def raylet() -> Iterator[socket.socket]:
    """Something that listens as a node's raylet does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "WATCHDOG_STALL_S", 30.0)


def two_engines(quiet_s: float, running: int = 8) -> EngineLog:
    """Engines a and b on nodes of their own; a was heard `quiet_s` ago, with requests in flight and 5 answered."""
    now = time.time()
    log = log_of(story("a", ready=now - 100, running=running), story("b", ready=now - 100, running=running))
    for name, silent_s in (("a", quiet_s), ("b", 0.0)):
        log.engines[name].update(heard_at=now - silent_s, node_id=f"id-of-{name}", node=f"10.0.0.{name}")
        log.engines[name]["after"] = {"finished": {"length": 5}}
    return log


def nodes(raylet: socket.socket, **alive: bool) -> Any:
    host, port = raylet.getsockname()
    known = {"NodeManagerAddress": host, "NodeManagerPort": port}
    return lambda: {f"id-of-{name}": {"Alive": here, **known} for name, here in alive.items()}


def test_a_node_that_ray_calls_dead_is_named_with_its_engine_and_rows(
    monkeypatch: pytest.MonkeyPatch, raylet: socket.socket
) -> None:
    monkeypatch.setattr(engine_loss, "_nodes", nodes(raylet, a=False, b=True))
    log = two_engines(quiet_s=6)
    EngineLosses(log, rows=96).look()
    (loss,) = log.losses
    assert loss.startswith("node 10.0.0.a (id id-of-a) is gone")
    assert "engine a: when last heard, 8 requests in flight and 5 answered there" in loss
    assert loss.endswith("5 of 96 rows answered elsewhere")
    assert "waiting for the strategy" in log.notes[-1]


def test_a_node_whose_raylet_refuses_is_gone_before_ray_misses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        known = nodes(closed, a=True, b=True)()
    monkeypatch.setattr(engine_loss, "_nodes", lambda: known)
    log = two_engines(quiet_s=6)
    EngineLosses(log, rows=96).look()
    assert ["node 10.0.0.a" in loss for loss in log.losses] == [True]


def test_a_late_probe_is_no_loss(monkeypatch: pytest.MonkeyPatch, raylet: socket.socket) -> None:
    monkeypatch.setattr(engine_loss, "_nodes", nodes(raylet, a=True, b=True))
    log = two_engines(quiet_s=20)
    losses = EngineLosses(log, rows=96)
    losses.look()
    assert log.losses == []
    assert losses.overdue() is None


def test_an_engine_that_still_talks_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_loss, "_nodes", lambda: pytest.fail("asked"))
    EngineLosses(two_engines(quiet_s=2), rows=96).look()


def test_a_loss_is_found_right_after_a_failure_and_named_once(
    monkeypatch: pytest.MonkeyPatch, raylet: socket.socket
) -> None:
    monkeypatch.setattr(engine_loss, "_nodes", nodes(raylet, b=True))  # Ray has forgotten a's node
    log = two_engines(quiet_s=0)
    losses = EngineLosses(log, rows=96)
    losses.look(after_failure=True)
    losses.look(after_failure=True)
    assert len(log.losses) == 1


@pytest.mark.parametrize(
    ("state", "reason", "lost"),
    [("DEAD", "WORKER_DIED", True), ("DEAD", "OUT_OF_SCOPE", False), ("RESTARTING", "WORKER_DIED", True)],
)
def test_a_killed_process_is_a_loss_and_one_dropped_by_its_owner_is_not(
    state: str, reason: str, lost: bool, monkeypatch: pytest.MonkeyPatch, raylet: socket.socket
) -> None:
    import ray._private.state
    from ray.core.generated import gcs_pb2

    told = gcs_pb2.ActorTableData()
    context = told.death_cause.actor_died_error_context
    context.reason = type(context).Reason.Value(reason)
    actor = {"State": state, "NumRestarts": 0, "DeathCause": told.death_cause}
    monkeypatch.setattr(ray._private.state, "actors", lambda _: actor)
    monkeypatch.setattr(engine_loss, "_nodes", nodes(raylet, a=True, b=True))
    log = two_engines(quiet_s=6)
    log.engines["a"]["actor_id"] = "ab"
    EngineLosses(log, rows=96).look()
    assert [f"process on node 10.0.0.a was killed ({reason})" in loss for loss in log.losses] == [True] * lost


def test_an_engine_whose_actor_ray_could_not_create_ends_the_run_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, raylet: socket.socket
) -> None:
    """As where a GPU's memory is taken: the process ends before its probe can say so, and Daft waits without an end."""
    import ray._private.state
    from ray.core.generated import gcs_pb2

    told, fine = gcs_pb2.ActorTableData(), gcs_pb2.ActorTableData()
    told.death_cause.creation_task_failure_context.formatted_exception_string = "Traceback:\n\nValueError: no memory\n"
    causes = {"01": told.death_cause, "02": fine.death_cause}
    monkeypatch.setattr(ray._private.state, "actors", lambda name: {"State": "DEAD", "DeathCause": causes[name]})
    monkeypatch.setattr(engine_loss, "_nodes", nodes(raylet, a=True, b=True))
    log = log_of(story("a", ready=None)[:1], story("b", ready=None))
    for name, actor_id in (("a", "01"), ("b", "02")):
        log.engines[name].update(node_id=f"id-of-{name}", in_actor=actor_id, heard_at=time.time() - 6)
    losses = EngineLosses(log, rows=96)
    losses.look()
    assert log.losses == []
    dog = Watchdog(log, None, 5000, lambda _: None, losses)
    assert dog.verdict() == "engine a did not start: ValueError: no memory"


def test_a_long_silence_with_requests_in_flight_ends_the_run_and_names_the_engine() -> None:
    log = two_engines(quiet_s=31)
    dog = Watchdog(log, None, 5000, lambda _: None, EngineLosses(log, rows=96))
    assert "nothing heard of engine a (31 s) (WATCHDOG_STALL_S)" in str(dog.verdict())


def test_an_engine_that_was_let_go_after_its_work_may_be_silent() -> None:
    log = two_engines(quiet_s=31, running=0)
    assert EngineLosses(log, rows=96).overdue() is None


def test_a_stall_after_a_loss_says_what_was_lost() -> None:
    log = two_engines(quiet_s=0)
    log.losses.append("node 10.0.0.a is gone")
    dog = Watchdog(log, None, 5000, lambda _: None, None)
    dog.verdict()
    dog.moved_at -= 31
    assert "no token generated for 31 s (WATCHDOG_STALL_S) after 2000 of 5000: node 10.0.0.a is gone" in str(
        dog.verdict()
    )


def test_the_actor_that_holds_an_engine_is_remembered_by_its_id() -> None:
    handle = SimpleNamespace(_actor_id=b"\x0a")
    told = story("a")
    for message in told:
        if message["kind"] == "ready":
            message["actor"] = handle
    assert log_of(told).engines["a"]["actor_id"] == "0a"
