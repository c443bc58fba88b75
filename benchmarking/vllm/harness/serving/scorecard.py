"""Measures configurations one after another, each at rates that it finds itself, and records every row as it comes."""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import config
from harness.serving import diagnosis, rates, row, row_file, row_record, server, traffic, warmup
from harness.serving.client import Limits
from harness.serving.configurations import Configuration
from harness.serving.progress import Progress
from harness.serving.rates import Tried
from harness.serving.server import Server, ServerError
from harness.serving.targets import Targets
from harness.serving.traffic import Request

Record = dict[str, Any]

# What a row takes besides its arrivals and its drain.
OVERHEAD_S = 5.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is offered: a generator of requests or a trace, and where it is from."""

    source: str
    generator: traffic.Generator | None
    trace: Sequence[Request] = ()

    def at(self, rate_rps: float, seconds: float) -> list[tuple[float, Request]]:
        """The requests of one row: as many as arrive in `seconds` at that rate, or all of the trace that does."""
        count = max(2, round(rate_rps * seconds))
        requests = self.generator.take(count) if self.generator else list(self.trace[:count])
        return traffic.schedule(
            requests, config.SERVING_ARRIVALS, rate_rps, config.SERVING_SEED, config.SERVING_BURSTINESS
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """`rates_rps`: given rates, or None to find them."""

    configurations: Sequence[Configuration]
    workload: Workload
    warmup: Sequence[Request]
    targets: Targets
    scorecard_id: str
    results_path: Path
    rates_rps: Sequence[float] | None = None
    url: str | None = None
    repeat: bool = True

    @property
    def rows_each(self) -> int:
        return (len(self.rates_rps) if self.rates_rps else config.SERVING_RATES) + self.repeat


def limits() -> Limits:
    return Limits(
        config.SERVING_REQUEST_TIMEOUT_S,
        config.SERVING_DRAIN_S,
        config.SERVING_MAX_IN_FLIGHT,
        config.SERVING_RETRIES,
    )


def run(plan: Plan) -> list[Record]:
    """All rows of the plan, recorded as they come; a configuration whose server fails is a row that says so."""
    row_s = config.SERVING_SECONDS_PER_RATE + config.SERVING_DRAIN_S + OVERHEAD_S
    progress = Progress(len(plan.configurations) * plan.rows_each, row_s)
    found: list[Record] = []
    for configuration in plan.configurations:
        progress.say(f"{configuration.name}: starting the server" if plan.url is None else f"using {plan.url}")
        rows = list(_configuration(plan, configuration, progress))
        progress.skip(plan.rows_each - len([one for one in rows if one["status"] == "ok"]))
        found += rows
    return found


def _configuration(plan: Plan, configuration: Configuration, progress: Progress) -> Iterator[Record]:
    log = plan.results_path / "logs" / f"serving-{plan.scorecard_id}-{configuration.name}.log"
    try:
        if plan.url:
            yield from _rows(plan, configuration, server.existing(plan.url), progress)
            return
        with server.running(configuration, log, server.start_timeout_s()) as running:
            yield from _rows(plan, configuration, running, progress)
    except ServerError as error:
        progress.say(f"    {configuration.name} failed: {error}")
        record = row_record.new(configuration, plan.scorecard_id, None, dataclasses.asdict(plan.targets))
        yield _keep({**record, "error": str(error), "traffic": traffic.describe([], plan.workload.source)}, [], plan)


def _rows(plan: Plan, configuration: Configuration, running: Server, progress: Progress) -> Iterator[Record]:
    """Rows at rising, then closer rates; the best one again, to see how far a row repeats. Raises ServerError when the
    server is gone."""
    warmed = warmup.run(running, plan.warmup, configuration.at_once(), server.start_timeout_s())
    lost = "".join(f", {count} failed: {cause}" for cause, count in warmed["causes"].items())
    progress.say(f"    warm: {warmed['rate_rps']:.3g} requests/s with up to {configuration.at_once()} at once{lost}")
    common: Record = {"settings": server.settings(running), "warmup": warmed}
    if running.command:
        common["server_command"] = row_record.server_command(running.command)
    measured: list[Record] = []
    for rate_rps in _rates(plan, warmed["rate_rps"], measured):
        measured.append(_row(plan, configuration, running, rate_rps, measured, common, progress))
        yield measured[-1]
        if gone := running.why_gone():
            raise ServerError(gone)
    if plan.repeat and (best := _best(measured)):
        common["repeat_of"] = best["row_id"]
        yield _row(plan, configuration, running, best["rate"]["offered_rps"], measured, common, progress)


def _rates(plan: Plan, warm_rps: float, measured: Sequence[Record]) -> Iterator[float]:
    """The given rates, or those that follow from what was measured so far."""
    if plan.rates_rps:
        yield from plan.rates_rps
        return
    start = rates.rounded(rates.START_SHARE * warm_rps)
    while True:
        tried = [Tried(one["rate"]["offered_rps"], not one["violations"]) for one in measured]
        rate_rps = rates.following(tried, start, config.SERVING_RATES)
        if rate_rps is None:
            return
        yield rates.rounded(rate_rps)


def _row(
    plan: Plan,
    configuration: Configuration,
    running: Server,
    rate_rps: float,
    measured: Sequence[Record],
    common: Record,
    progress: Progress,
) -> Record:
    seconds = config.SERVING_SECONDS_PER_RATE
    timed = plan.workload.at(rate_rps, seconds)
    record = row_record.new(configuration, plan.scorecard_id, rate_rps, dataclasses.asdict(plan.targets))
    rate = {
        "offered_rps": rate_rps,
        "arrivals": config.SERVING_ARRIVALS,
        "burstiness": config.SERVING_BURSTINESS if config.SERVING_ARRIVALS == "gamma" else None,
        "seed": config.SERVING_SEED,
        "seconds": seconds,
    }
    with progress.row(configuration.name, rate_rps):
        found, outcomes = row.measure(running, timed, limits(), plan.targets)
    record |= {**common, **found, "rate": rate, "traffic": traffic.describe(timed, plan.workload.source)}
    record |= {
        "status": "ok",
        "diagnosis": dataclasses.asdict(diagnosis.of(record, diagnosis.neighbour(record, measured))),
    }
    progress.result(record)
    return _keep(record, row.requests_table(outcomes), plan)


def _keep(record: Record, requests: Sequence[Record], plan: Plan) -> Record:
    if wrong := row_record.problems(record):
        print(f"warning: row {record['row_id']} does not fit the format: {'; '.join(wrong)}", file=sys.stderr)
    row_file.append(record, requests, plan.results_path)
    return record


def _best(measured: Sequence[Record]) -> Record | None:
    """The highest rate at which the targets held; without one, the lowest rate."""
    holding = [one for one in measured if not one["violations"]]
    if holding:
        return max(holding, key=lambda one: float(one["rate"]["offered_rps"]))
    return min(measured, key=lambda one: float(one["rate"]["offered_rps"]), default=None)


def is_clean(found: Sequence[Record], planned: Sequence[Configuration]) -> bool:
    """Whether every configuration was measured and nothing failed but by a rate beyond capacity."""
    if any(one["status"] != "ok" or row.is_broken(one) for one in found):
        return False
    # Requests that time out at the lowest rate too are not shown to be too many: the server may be broken.
    lowest = {configuration.name: _lowest(found, configuration) for configuration in planned}
    return all(one is not None and not one["counts"]["failed"] for one in lowest.values())


def _lowest(found: Sequence[Record], configuration: Configuration) -> Record | None:
    rows = [one for one in found if one["configuration"] == configuration.name]
    return min(rows, key=lambda one: float(one["rate"]["offered_rps"]), default=None)


def seconds_at_most(plan: Plan) -> int:
    row_s = config.SERVING_SECONDS_PER_RATE + config.SERVING_DRAIN_S + OVERHEAD_S
    return math.ceil(len(plan.configurations) * plan.rows_each * row_s)
