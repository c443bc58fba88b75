"""The watchdog on engine logs written by hand: it gives up with a reason, and only when nothing can finish any more."""

import time

import config
import pytest
from engine_story import log_of, story
from harness.watchdog import Watchdog


def watchdog(log: object, expected_tokens: int = 2000) -> Watchdog:
    return Watchdog(log, None, expected_tokens, lambda _: None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "WATCHDOG_STALL_S", 30.0)
    monkeypatch.setattr(config, "WATCHDOG_START_S", 60.0)


def test_engines_that_stop_generating_are_given_up_with_the_time_and_the_setting() -> None:
    dog = watchdog(log_of(story("a", ready=time.time() - 100)))
    assert dog.verdict() is None
    dog.moved_at -= 31
    assert "no token generated for 31 s (WATCHDOG_STALL_S) after 1000 of 2000" in str(dog.verdict())


def test_engines_that_still_generate_are_left_alone() -> None:
    log = log_of(story("a", ready=time.time() - 100))
    dog = watchdog(log)
    assert dog.verdict() is None
    dog.moved_at -= 31
    log.engines["a"]["latest"]["generation_tokens"] = 1001
    assert dog.verdict() is None


def test_engines_that_never_come_up_are_given_up() -> None:
    dog = watchdog(log_of(story("a", ready=None)))
    assert dog.verdict() is None
    dog.started_at -= 61
    assert "0 of 2 engines ready after 61 s" in str(dog.verdict())
    assert "are there CPUs for ray-data's stages (about 8, RAY_NUM_CPUS)" in str(dog.verdict())


def test_a_slow_start_is_no_stall() -> None:
    dog = watchdog(log_of(story("a", ready=None)))
    dog.started_at -= 59
    dog.moved_at -= 59
    assert dog.verdict() is None


def test_a_dead_engine_is_named_unless_all_work_was_done() -> None:
    dead = [{"kind": "dead", "at": 21.0, "received_at": 21.0, "engine": "a", "node": "node", "pid": 1}]
    for busy in ({"running": 3}, {"waiting": 3}):
        assert "engine a died" in str(watchdog(log_of(story("a", **busy), dead)).verdict())
    assert "engine a died" in str(watchdog(log_of(story("a", ready=None), dead)).verdict())
    assert watchdog(log_of(story("a", running=3), dead), expected_tokens=1000).verdict() is None


def test_an_engine_that_was_ended_with_nothing_left_to_do_did_not_die() -> None:
    """Ray Data ends an engine that has answered its share while the others still generate."""
    dead = [{"kind": "dead", "at": 21.0, "received_at": 21.0, "engine": "a", "node": "node", "pid": 1}]
    log = log_of(story("a"), story("b", ready=time.time() - 100, running=3), dead)
    assert watchdog(log).verdict() is None


def test_without_a_probe_silence_is_no_sign_of_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "PROBE_INTERVAL_S", 0.0)
    dog = watchdog(log_of())
    dog.started_at -= 3600
    assert dog.verdict() is None


def test_an_engine_whose_probe_failed_is_named_as_unseen_and_not_as_stalled() -> None:
    lost = {
        "kind": "lost",
        "at": 11.0,
        "received_at": 11.0,
        "engine": "a",
        "node": "node",
        "pid": 1,
        "error": "OSError: x",
    }
    dog = watchdog(log_of(story("a", ready=time.time() - 100), [lost]))
    assert dog.verdict() is None
    dog.moved_at -= 31
    assert "the probe failed in engine a (OSError: x)" in str(dog.verdict())


def test_rows_that_are_run_again_and_again_are_given_up_with_both_token_counts() -> None:
    log = log_of(story("a", ready=time.time() - 100))
    assert watchdog(log, expected_tokens=500).verdict() is None
    log.losses.append("node 10.0.0.3 is gone")
    verdict = str(watchdog(log, expected_tokens=499).verdict())
    assert "generated 1000 tokens where 499 were asked for, and the rows are not back: node 10.0.0.3 is gone" in verdict


def test_a_run_with_nothing_left_to_generate_is_no_runaway() -> None:
    log = log_of(story("a", ready=time.time() - 100, samples=((10.0, 0),)))
    assert watchdog(log, expected_tokens=0).verdict() is None
