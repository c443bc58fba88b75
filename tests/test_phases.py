"""Phases, waterfall and the number of engines from engine logs written by hand."""

import config
import pytest
from engine_story import log_of, story
from harness import evidence, phases, waterfall


def test_phases_are_cut_where_the_engines_say_and_add_up() -> None:
    log = log_of(story("a"), story("b", imported=3, ready=12, samples=((12, 0), (24, 1200))))
    assert phases.phases(log, 0, 25) == {
        "read_and_plan": 2,
        "engine_start": 10,
        "steady": 8,
        "tail": 4,
        "collect": 1,
    }


def test_tokens_of_an_early_engine_count_as_start_and_those_after_the_first_dry_one_as_tail() -> None:
    log = log_of(story("a"), story("b", imported=3, ready=12, samples=((12, 0), (24, 1200))))
    assert phases.phase_tokens(log, 0, 25) == pytest.approx({"engine_start": 200, "steady": 1600, "tail": 400})


def test_an_engine_that_got_no_work_leaves_no_steady_time() -> None:
    idle = story("b", samples=((10, 0), (20, 0)), last_token_at=None, first_scheduled_at=None)
    assert phases.phases(log_of(story("a"), idle), 0, 21)["steady"] == 0


def test_a_run_that_generated_nothing_has_no_steady_time_rather_than_none_of_it() -> None:
    silent = story("a", samples=((10, 0), (20, 0)), last_token_at=None, first_scheduled_at=None)
    found = phases.phases(log_of(silent), 0, 130)
    assert (found["engine_start"], found["steady"], found["tail"], found["collect"]) == (8, None, None, None)


def test_without_an_engine_in_sight_phases_are_unknown_and_not_zero() -> None:
    assert set(phases.phases(log_of(), 0, 25).values()) == {None}
    assert set(phases.phase_tokens(log_of(story("a", ready=None)), 0, 25).values()) == {None}
    assert waterfall.waterfall(log_of(), 0, 25) is None


def test_a_workers_clock_that_is_off_is_put_right_by_the_fastest_delivery() -> None:
    ahead = [{**message, "at": message["at"] + 1000, "received_at": message["at"]} for message in story("a")]
    moved = ("vllm_imported_at", "core_started_at", "ready_at")
    ahead = [{**m, **{key: m[key] + 1000 for key in moved if key in m}} for m in ahead]
    for message in ahead:
        if "values" in message:
            message["values"] = {**message["values"], "last_token_at": 1020, "first_scheduled_at": 1010}
    assert phases.phases(log_of(ahead), 0, 25) == pytest.approx(phases.phases(log_of(story("a")), 0, 25))


def test_the_waterfall_is_the_engines_mean_day_and_adds_up() -> None:
    a = story("a", samples=((11, 0), (20, 1000)), prefill_s=3, decode_s=5)
    b = story("b", imported=3, samples=((12, 0), (24, 1200)), prefill_s=4, decode_s=8)
    parts = waterfall.waterfall(log_of(a, b), 0, 25)
    assert parts == pytest.approx(
        {
            "read_and_plan": 2,
            "actor_wait": 0.5,
            "actor_start": 1.5,
            "core_start": 3,
            "weights": 1,
            "compile_capture": 2,
            "first_wait": 1.5,
            "prefill": 3.5,
            "decode": 6.5,
            "starved": 0.5,
            "tail": 2,
            "collect": 1,
            "write": 0,
            "unattributed": 0,
        }
    )


def test_idle_engine_seconds_and_imbalance_count_the_engine_that_ran_dry_first() -> None:
    a = story("a", prefill_s=3, decode_s=7)
    b = story("b", samples=((10, 0), (24, 3000)), prefill_s=4, decode_s=10)
    log = log_of(a, b)
    assert waterfall.idle_engine_s(log) == pytest.approx(4)
    assert waterfall.imbalance(log) == pytest.approx(1.5)


@pytest.mark.parametrize(("built", "right"), [(1, False), (2, True), (3, False), (8, False)])
def test_a_run_builds_exactly_concurrency_engines_and_never_one_a_partition(
    monkeypatch: pytest.MonkeyPatch, built: int, right: bool
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    problems = evidence.wrong_engine_count(log_of(*(story(f"engine {i}") for i in range(built))))
    assert problems == ([] if right else [f"{built} engines were built, expected CONCURRENCY = 2"])


def test_what_the_counters_say_of_a_feed_is_a_warning_by_engine() -> None:
    """max_num_seqs is 8: one engine never filled, one filled and preempted, one was given nothing, one was done before
    its probe looked."""

    def told(name: str, tokens: int, running: int, preemptions: int) -> list[dict[str, object]]:
        messages = story(name, samples=((10.0, 0), (20.0, tokens)), max_running=running)
        none = dict.fromkeys(evidence.SUMMED, 0) | {"finished": {}, "request_generation_tokens": {}}
        counters = {"ready": none, "sample": none | {"preemptions": preemptions}}
        return [{**said, "counters": counters[said["kind"]]} if "counters" in said else said for said in messages]

    log = log_of(told("starved", 1000, 7, 0), told("full", 1000, 8, 3), told("idle", 0, 0, 0), told("brief", 9, 0, 0))
    assert evidence.warnings(log) == [
        "engine starved never filled: at most 7 of max_num_seqs 8 running",
        "engine full preempted 3 requests: its KV cache was too small",
        "engine idle generated nothing: it was not ready in time, or no work was sent to it",
        "engine brief answered all between two looks of its probe: how full it was is not known",
    ]
    assert [evidence.engine_record(log, engine, 0.0)["max_running"] for engine in log.built()] == [7, 8, 0, None]


def test_a_finish_reason_that_only_one_engine_counted_is_not_dropped() -> None:
    def told(name: str, finished: dict[str, int]) -> list[dict[str, object]]:
        totals = dict.fromkeys(evidence.SUMMED, 0) | {"finished": finished}
        return [{**message, "counters": totals} if "counters" in message else message for message in story(name)]

    counters = evidence.counters_total(log_of(told("a", {"length": 2}), told("b", {"stop": 1})), 3)
    assert counters is not None
    assert counters["finished"] == {"length": 2, "stop": 1}
