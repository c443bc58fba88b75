"""A record's run, simulated under what its engines really ran with, beside what it measured.

Taken from the record: limits, knobs, when each engine was ready, and what chance gave each of several engines of
naive-batch-sorted (static_batches.py). Everything after that is predicted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from harness.comparison.comparability import disturbances
from harness.prediction import record_forecast
from harness.prediction.engine_state import StepCost
from harness.prediction.feeding import Dataset
from harness.prediction.record_forecast import Record
from harness.simulation import job
from harness.simulation.fitting import Measured
from harness.simulation.fleet import Fleet
from harness.simulation.outcome import Outcome
from harness.simulation.step_time import Efficiency, step_time

# LLM and AsyncLLM send all rows of these at once, so that the engine's counters show how fast they arrive.
ALL_AT_ONCE = ("continuous-batch", "continuous-batch-sorted", "prefix-bucketing", "prefix-bucketing-sorted")


def can_simulate(record: Record) -> bool:
    """Whether it is a whole run, in one go, of a strategy that is simulated, on GPUs that cache, with its phases."""
    whole = record["status"] == "ok" and not disturbances(record)
    known = record["strategy"] in job.STRATEGIES and record_forecast.on_gpu(record)
    caches = record["config"]["ENABLE_PREFIX_CACHING"]
    return bool(whole and known and caches) and (record["phases_s"] or {}).get("steady") is not None


def knobs(record: Record) -> dict[str, Any]:
    """The record's, with what they meant when it was made.

    Until DATASET_FILES became a knob, Ray Data made a block of each of the dataset's files, whatever RAY_BLOCKS said.
    """
    found = record_forecast.settings(record)
    blocks = found["RAY_BLOCKS"] if "DATASET_FILES" in found else files(record)
    chance = {"ENGINE_ROWS": _rows_by_engine(record)} if record["strategy"] == "naive-batch-sorted" else {}
    return {**found, "RAY_BLOCKS": blocks, **chance}


def _rows_by_engine(record: Record) -> list[int]:
    """Rows that each engine finished, in the order of `fleet`."""
    engines = sorted(record["engines"], key=lambda engine: float(engine["timeline_s"]["ready"]))
    return [sum(engine["after"]["finished"].values()) for engine in engines]


def files(record: Record) -> int:
    """Files of its dataset; all had eight before their number was recorded."""
    return int(record["dataset"].get("files", 8))


def simulate(record: Record, dataset: Dataset, least: StepCost, efficiency: Efficiency) -> Outcome:
    return job.simulate(record["strategy"], dataset, knobs(record), fleet(record, least, efficiency))


def traces(record: Record, dataset: Dataset, least: StepCost, efficiency: Efficiency) -> list[Any]:
    ran, _ = job.engines_after(record["strategy"], dataset, knobs(record), fleet(record, least, efficiency))
    return [engine.trace() for engine in ran]


def fleet(record: Record, least: StepCost, efficiency: Efficiency) -> Fleet:
    """The record's engines, in the order in which they were ready: that in which peers number them is not recorded."""
    loading = min(engine["timeline_s"]["vllm_imported"] for engine in record["engines"])
    ready = sorted(engine["timeline_s"]["ready"] - loading for engine in record["engines"])
    nodes = len({engine["node"] for engine in record["engines"]})
    return Fleet(
        ready_s=ready,
        engines_a_node=-(-len(ready) // nodes),
        limits=record_forecast.limits(record),
        time=step_time(least, efficiency),
        front_end_s_a_token=efficiency.front_end_s_a_token,
    )


def measured(record: Record) -> Measured:
    return Measured(record["waterfall_s"]["prefill"], record["waterfall_s"]["decode"])


def front_end_s_a_token(records: Sequence[Record], results: Path) -> float:
    """Seconds in which a front end makes a token's id and sends it off, in the fastest stretch that samples show.

    An engine's samples say how many requests had arrived; the first that shows some comes late, so the least is taken.
    Raises ValueError without a run that sends all of its rows at once.
    """
    found = []
    for record in records:
        if record["strategy"] in ALL_AT_ONCE:
            with record_forecast.whole(record):
                found += _arrivals(record, results)
    if not found:
        raise ValueError(
            f"expected a record of one of {list(ALL_AT_ONCE)} with its time series, to see how fast requests arrive; "
            "found none"
        )
    return min(found)


def _arrivals(record: Record, results: Path) -> list[float]:
    """Seconds a prompt token, from the engine's readiness to each sample before all rows are there."""
    samples = pq.read_table(results / "timeseries" / f"{record['run_id']}.parquet").to_pylist()
    ready = {engine["engine"]: engine["timeline_s"]["ready"] for engine in record["engines"]}
    tokens_a_row = record["tokens"]["prompt"] / record["rows"]["in"]
    return [
        (sample["t_s"] - ready[sample["engine"]]) / ((sample["running"] + sample["waiting"]) * tokens_a_row)
        for sample in samples
        if sample["running"] + sample["waiting"] >= record["rows"]["in"] / len(ready) / 10
    ]
