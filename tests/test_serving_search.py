"""A whole scorecard, rates found by itself, on a server whose capacity is known and that tells nothing of itself."""

import asyncio
import dataclasses

import config
import pytest
from answering import answering
from harness.serving import configurations, row_file, row_record, scorecard
from harness.serving.scorecard import Plan, Workload
from harness.serving.targets import Targets
from harness.serving.traffic import Request

SERVICE_S, AT_ONCE = 0.04, 4
CAPACITY_RPS = AT_ONCE / SERVICE_S


class Requests:
    """Equal requests, as many as are asked for."""

    def take(self, count):
        return [Request("chat", "word", 2)] * count


@pytest.fixture
def short_rows(monkeypatch):
    for name, value in {"SECONDS_PER_RATE": 1.0, "DRAIN_S": 4.0, "RATES": 5, "WARMUP_REQUESTS": 44}.items():
        monkeypatch.setattr(config, f"SERVING_{name}", value)


@pytest.mark.usefixtures("short_rows")
def test_rates_rise_until_the_targets_fail_and_none_beyond_the_servers_capacity_holds(tmp_path):
    inside = asyncio.Semaphore(AT_ONCE)

    async def four_at_once(_number, say):
        async with inside:
            await asyncio.sleep(SERVICE_S)
        say.whole()

    with answering(four_at_once) as address:
        found = scorecard.run(plan(address, tmp_path))
    rates = [one["rate"]["offered_rps"] for one in found]
    holding = [one["rate"]["offered_rps"] for one in found if not one["violations"]]
    failing = [one["rate"]["offered_rps"] for one in found if one["violations"]]
    assert len(set(rates)) == 5
    assert rates[-1] in rates[:-1]
    assert found[-1]["repeat_of"] is not None
    # A busy machine can make a low rate fail, but none can make a server do more than it does.
    assert min(rates) < 0.5 * CAPACITY_RPS
    assert all(rate < 1.3 * CAPACITY_RPS for rate in holding)
    assert failing
    assert row_file.load(tmp_path) == found
    assert [problem for one in found for problem in row_record.problems(one)] == []
    assert {one["cache_state"] for one in found} == {"unknown"}
    assert {one["server"]["preemptions"] for one in found} == {None}


@pytest.mark.usefixtures("short_rows")
def test_requests_that_fail_in_the_warm_up_are_counted_by_cause_and_said(tmp_path, capsys):
    async def cold(number, say):
        if 10 <= number < 20:
            say.refuse(500)
        else:
            say.whole()

    with answering(cold) as address:
        found = scorecard.run(dataclasses.replace(plan(address, tmp_path), rates_rps=[20.0], repeat=False))
    assert found[0]["warmup"]["causes"] == {"HTTP 500": 10}
    assert found[0]["counts"]["failed"] == 0
    assert "at once, 10 failed: HTTP 500" in capsys.readouterr().err


@pytest.mark.usefixtures("short_rows")
def test_a_server_that_is_not_there_is_a_row_that_says_so(tmp_path):
    (found,) = scorecard.run(plan("http://127.0.0.1:9", tmp_path))
    assert found["status"] == "failed"
    assert "expected an OpenAI-compatible server" in found["error"]
    assert row_record.problems(found) == []


def plan(address, folder):
    return Plan(
        configurations=configurations.parse("baseline"),
        workload=Workload("equal requests", Requests()),
        warmup=Requests().take(config.SERVING_WARMUP_REQUESTS),
        targets=Targets(ttft_s=0.25, itl_s=0.1, e2e_s=None, error_share=0.01),
        scorecard_id="one",
        results_path=folder,
        url=address,
    )
