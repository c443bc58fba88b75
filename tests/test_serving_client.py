"""The load client against servers that answer well, badly, late or not at all: each request counts, none is 0 ms."""

import asyncio
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from answering import Say, answering
from harness.serving import caller_side, priority, row
from harness.serving.client import Limits, Planned, offer
from harness.serving.connection import Endpoint
from harness.serving.row import is_broken
from harness.serving.targets import Targets
from harness.serving.traffic import Request

SUITE = Path(row.__file__).resolve().parents[2]
TARGETS = Targets(ttft_s=0.5, itl_s=0.1, e2e_s=None, error_share=0.01)
QUICK = Limits(request_timeout_s=2, drain_s=5)


def load(address, count, gap_s=0.002, limits=QUICK, output_len=2, cancel_after=None):
    """`count` equal requests, `gap_s` apart: their outcomes, and the row's client side."""
    message = Endpoint(address).request("/v1/completions", b"{}")
    plan = [Planned(i * gap_s, message, "chat", output_len, cancel_after) for i in range(count)]
    outcomes = offer(Endpoint(address), plan, limits)
    timed = [(request.at_s, Request("chat", "x", output_len)) for request in plan]
    return outcomes, caller_side.of(timed, outcomes, TARGETS)


def adds_up(side):
    counts = side["counts"]
    kinds = ("completed", "failed", "cancelled", "refused")
    return counts["offered"] == sum(counts[name] for name in kinds) and sum(side["causes"].values()) == counts["failed"]


async def well(_number, say: Say):
    say.whole()


def test_first_token_is_the_first_chunk_with_text_and_usage_is_none():
    async def role_first(_number, say):
        say.head()
        await asyncio.sleep(0.01)
        say.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for wait_s, text in ((0.19, "A"), (0.02, "B")):
            await asyncio.sleep(wait_s)
            say.event({"choices": [{"index": 0, "delta": {"content": text}}]})
        await asyncio.sleep(0.68)
        say.usage(2)
        say.done()

    with answering(role_first) as address:
        (found,), side = load(address, 1, limits=Limits(5, 5))
    assert found.result == "completed"
    # Not 0.01 (the role), not 0.9 (the usage); what lies between is a busy machine.
    assert 0.19 < found.ttft_s < 0.4
    assert found.gaps == [found.e2e_s - found.ttft_s]
    assert 0.01 < found.gaps[0] < 0.2
    assert side["wall_s"] > 0.85


def test_usage_in_the_last_chunk_is_no_token():
    async def usage_with_the_end(_number, say):
        say.head()
        say.token("A")
        await asyncio.sleep(0.02)
        say.token("B and C")
        await asyncio.sleep(0.5)
        usage = {"prompt_tokens": 3, "completion_tokens": 3}
        say.event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage})
        say.done()

    with answering(usage_with_the_end) as address:
        (found,), _ = load(address, 1, output_len=3)
    assert (found.result, found.tokens, found.prompt_tokens, len(found.gaps)) == ("completed", 3, 3, 1)
    assert found.e2e_s < 0.5


def test_a_token_without_printable_text_counts_where_the_server_counts_it():
    async def counted(_number, say):
        say.head()
        for tokens, text in ((1, ""), (3, "ab")):
            await asyncio.sleep(0.02)
            usage = {"prompt_tokens": 3, "completion_tokens": tokens}
            say.event({"choices": [{"index": 0, "text": text}], "usage": usage})
        say.usage(3)
        say.done()

    with answering(counted) as address:
        (found,), _ = load(address, 1, output_len=3)
    assert (found.result, found.tokens, found.prompt_tokens, len(found.gaps)) == ("completed", 3, 3, 1)
    assert found.ttft_s < found.e2e_s


def test_latency_counts_from_the_scheduled_arrival_where_the_client_queues():
    async def slow(_number, say):
        await asyncio.sleep(0.19)
        say.whole()

    with answering(slow) as address:
        outcomes, side = load(address, 40, 1 / 40, Limits(5, 5, max_in_flight=4))
    assert side["counts"]["completed"] == 40
    # 40 / 4 x 0.19 s, less 39/40 s: 0.93 s on a machine with nothing else to do. Its own time in the server is 0.19 s.
    assert 0.9 < outcomes[-1].e2e_s < 2.5
    assert outcomes[-1].lateness_s > 0.7
    assert outcomes[0].lateness_s < 0.2
    assert not side["client"]["held"]
    assert side["latency"]["sent_ttft_s"]["p50"] < 0.6


def test_failures_are_counted_by_cause_and_are_in_no_percentile():
    async def half_of_them_badly(number, say):
        kind = number % 8
        if kind == 0:
            say.refuse(400)
        elif kind == 2:
            say.head()
            say.token()
            say.cut()
        elif kind == 4:
            say.head()
            say.token()
            say.event({"error": {"message": "engine is dead"}})
            say.done()
        elif kind == 6:
            say.head()
            await asyncio.sleep(60)
        else:
            await asyncio.sleep(0.02)
            say.whole()

    with answering(half_of_them_badly) as address:
        outcomes, side = load(address, 104)
    assert side["counts"] | {"attempts": 0, "accepted": 0} == {
        **{"offered": 104, "completed": 52, "failed": 52, "cancelled": 0, "refused": 0},
        **{"attempts": 0, "accepted": 0},
    }
    assert side["causes"] == {"HTTP 400": 13, "stream cut": 13, "error event": 13, "stalled": 13}
    assert adds_up(side)
    assert is_broken(side)
    assert side["latency"]["ttft_s"]["count"] == side["latency"]["e2e_s"]["count"] == 52
    assert min(one.ttft_s for one in outcomes if one.result == "completed") >= 0.02
    assert "engine is dead" in side["details"]["error event"]


def test_an_empty_stream_is_a_failure_and_no_zero_in_ttft():
    async def mostly_empty(number, say):
        if number % 5 < 3:
            say.head()
            if number % 5 == 0:
                say.usage(2)  # which is no token either, though it counts some
            say.done()
        else:
            await asyncio.sleep(0.01)
            say.whole()

    with answering(mostly_empty) as address:
        outcomes, side = load(address, 50)
    assert side["causes"] == {"empty stream": 30}
    assert side["counts"]["completed"] == 20
    assert min(one.ttft_s for one in outcomes if one.ttft_s is not None) >= 0.01


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b'data: {"choices": [{"text": "\xff\xfe"}]}\n\n', "broken UTF-8"),
        (b'data: {"choices": [\n\n', "broken JSON"),
        (b"data: 17\n\n", "broken JSON"),
    ],
)
def test_a_broken_stream_is_a_failure_by_name(sent, cause):
    async def broken(_number, say):
        say.head()
        say.token()
        say.raw(sent)
        say.done()

    with answering(broken) as address:
        _, side = load(address, 10)
    assert side["causes"] == {cause: 10}


def test_characters_and_events_that_are_cut_between_packets_are_whole_again():
    async def in_pieces(_number, say):
        say.head()
        data = 'data: {"choices": [{"text": "héé"}]}\n\ndata: {"choices": [{"text": "ö"}]}\n\n'.encode()
        for at in range(0, len(data), 7):
            say.raw(data[at : at + 7])
            await asyncio.sleep(0.002)
        say.usage(2)
        say.done()

    with answering(in_pieces) as address:
        (found,), _ = load(address, 1)
    assert (found.result, found.tokens, len(found.gaps)) == ("completed", 2, 1)


@pytest.mark.parametrize(("asked", "cause"), [(9, "short output"), (1, "long output")])
def test_fewer_or_more_tokens_than_asked_is_a_failure(asked, cause):
    with answering(well) as address:
        _, side = load(address, 5, output_len=asked)
    assert side["causes"] == {cause: 5}
    assert side["details"][cause] == f"{asked} tokens asked for, 2 came"


def test_an_answer_without_its_done_is_cut():
    async def forgets(_number, say):
        say.head()
        say.token()
        say._write(b"0\r\n\r\n")

    with answering(forgets) as address:
        _, side = load(address, 5)
    assert side["causes"] == {"stream cut": 5}


def test_a_server_that_never_answers_ends_in_counted_failures_and_a_bounded_row():
    async def never(_number, _say):
        await asyncio.sleep(60)

    started = time.perf_counter()
    with answering(never) as address:
        _, side = load(address, 30, limits=Limits(request_timeout_s=0.3, drain_s=0.6))
    assert time.perf_counter() - started < 3
    assert side["causes"] == {"no answer in time": 30}
    assert adds_up(side)


def test_what_is_still_open_when_the_row_ends_is_counted():
    async def never(_number, _say):
        await asyncio.sleep(60)

    with answering(never) as address:
        _, side = load(address, 30, limits=Limits(60, 0.3, max_in_flight=4))
    assert side["causes"] == {"unfinished at the row's end": 30}
    assert side["client"]["unsent"] == 26
    assert not side["client"]["held"]


def test_a_server_that_dies_in_the_middle_ends_in_counted_failures():
    async def dies(number, say):
        if number < 20:
            say.whole()
        else:
            say.die()

    with answering(dies) as address:
        _, side = load(address, 60, 0.005)
    assert side["counts"]["completed"] == 20
    assert side["counts"]["failed"] == 40
    assert set(side["causes"]) <= {"connection lost", "no connection", "stream cut", "no answer in time"}
    assert adds_up(side)


def test_nobody_listening_is_a_failure_of_every_request():
    with answering(well) as address:
        pass
    _, side = load("http://127.0.0.1:9", 10)
    assert side["causes"] == {"no connection": 10}
    assert address


def test_a_refused_caller_comes_back_after_the_servers_time_and_both_tries_are_one_request():
    seen = []

    async def first_refused(number, say):
        seen.append(time.perf_counter())
        if number == 0:
            say.refuse(retry_after_s=0.2)
        else:
            say.whole()

    with answering(first_refused) as address:
        (found,), side = load(address, 1, limits=Limits(2, 2, retries=1))
    assert (found.result, found.attempts, len(found.gaps)) == ("completed", 2, 1)
    assert seen[1] - seen[0] == pytest.approx(0.3, abs=0.1)
    assert found.ttft_s > 0.2
    assert side["counts"]["attempts"] == 2


def test_a_caller_refused_for_good_is_refused_not_failed():
    async def full(_number, say):
        say.refuse(retry_after_s=0.01)

    with answering(full) as address:
        _, side = load(address, 10, limits=Limits(2, 2, retries=2))
    assert (side["counts"]["refused"], side["counts"]["failed"], side["counts"]["attempts"]) == (10, 0, 30)
    assert adds_up(side)


def test_a_cancelled_request_is_neither_success_nor_failure_and_its_connection_is_closed():
    gone = []

    async def endless(_number, say):
        say.head()
        with_text = 0
        while not say._writer.transport.is_closing():
            say.token()
            with_text += 1
            await asyncio.sleep(0.01)
        gone.append(with_text)

    with answering(endless) as address:
        _, side = load(address, 8, output_len=100, cancel_after=3)
        until = time.perf_counter() + 5
        while len(gone) < 8 and time.perf_counter() < until:
            time.sleep(0.05)
    assert side["counts"]["cancelled"] == 8
    assert side["wasted_tokens"] == 24
    assert side["latency"]["ttft_s"]["count"] == 0
    assert len(gone) == 8


def test_a_burst_of_ten_times_the_rate_loses_no_request_from_the_count():
    inside = collections.Counter()

    async def one_in_four(number, say):
        if inside["now"] >= 8:
            say.refuse(retry_after_s=0.05)
            return
        inside["now"] += 1
        await asyncio.sleep(0.02)
        inside["now"] -= 1
        if number % 7 == 0:
            say.cut()
        else:
            say.whole()

    with answering(one_in_four) as address:
        outcomes, side = load(address, 400, 0.001, limits=Limits(1, 1.5, retries=1))
    assert adds_up(side)
    assert len(outcomes) == 400
    assert all(side["counts"][name] for name in ("completed", "failed", "refused"))


def test_the_clients_priority_is_raised_only_while_it_runs():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with priority.raised():
        assert os.getpriority(os.PRIO_PROCESS, 0) <= before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_the_servers_priority_is_lowered_where_the_clients_may_not_be_raised(monkeypatch):
    def forbidden(_which, _who, value):
        if value < 0:
            raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    assert priority.lowered(["serve"]) == ["nice", "-n", "10", "serve"]


@pytest.mark.slow
def test_the_client_holds_500_requests_a_second_and_2000_streams_on_one_core(tmp_path):
    # The best of three: what else runs on the machine is not the client's.
    rows = [capacity(str(tmp_path), "--rate", "500", "--streams", "2000", "--seconds", "10") for _ in range(3)]
    best = min(rows, key=lambda found: found["lateness_p99_ms"])
    assert best["streams_open"] >= 1950
    assert best["completed"] == 5000
    assert best["sent_rps"] == pytest.approx(best["offered_rps"], rel=0.02)
    assert best["lateness_p99_ms"] < 5


def capacity(folder, *options):
    command = [sys.executable, str(SUITE / "client-capacity.py"), "--client", "suite", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"BENCH_RESULTS_PATH": folder}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["suite"]
