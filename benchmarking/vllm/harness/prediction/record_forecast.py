"""A record beside what was possible: predicted hit rate, highest possible one, floor of the time.

settings = record_forecast.settings(record)
record_forecast.predict(record, data)               → Forecast, or None for a strategy without a model
record_forecast.possible_hit_rate(data.prompts)     → 0 to 1
record_forecast.floor_s(record, data.prompts, model)  → seconds, or None without a known GPU
record_forecast.bounds(record, data.prompts, model)   → a line of `bounds.jsonl`, which the report reads
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import record_file
from harness.prediction import feeding, forecast, gpus, prefix_tree, roofline
from harness.prediction.engine_state import Limits, Prompts
from harness.prediction.feeding import Dataset
from harness.prediction.forecast import Forecast
from harness.prediction.model_shape import ModelShape

Record = dict[str, Any]


def load(results: Path) -> list[Record]:
    """The records of a folder. Raises ValueError where there is none, or a line is no record."""
    records = record_file.load(results)
    if not records:
        raise ValueError(
            f"expected records in {results / record_file.FILE_NAME}, found none; run a strategy, or give "
            "--results, the folder that holds them"
        )
    return records


@contextmanager
def whole(record: Record) -> Iterator[None]:
    """Raises ValueError, by the run's id, where what is done with a record needs a part that it lacks or has null."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"run {record.get('run_id', 'without run_id')}: expected a whole record, as a run leaves it, found "
            f"{found}; restore its line or move it to another file"
        ) from error


def settings(record: Record) -> dict[str, Any]:
    """The run's knobs, with what its engines really ran with in place of what was asked for."""
    engine = record["engines"][0]["settings"]
    read_back = {name.upper(): engine.get(name) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    known = {name: value for name, value in read_back.items() if value is not None}
    return {**record["config"], **known, "CONCURRENCY": len(record["engines"])}


def limits(record: Record) -> Limits:
    """Raises ValueError if the engines' KV cache was not read back."""
    blocks = [engine["settings"].get("num_gpu_blocks") for engine in record["engines"]]
    if None in blocks:
        raise ValueError(f"run {record['run_id']}: expected num_gpu_blocks in each engine's settings, found {blocks}")
    # One of the blocks is vLLM's null block.
    return forecast.limits(settings(record), min(blocks) - 1, on_gpu(record), record["versions"]["vllm"])


def on_gpu(record: Record) -> bool:
    return bool(record["hardware"]["gpus"])


def predict(record: Record, data: Dataset) -> Forecast | None:
    """What the engines' counters should have counted; None for a strategy that feeding.py does not know."""
    if record["strategy"] not in feeding.STRATEGIES:
        return None
    return forecast.forecast(record["strategy"], data, settings(record), limits(record))


def counted_hit_rate(record: Record) -> float | None:
    counters = record["counters"] or {}
    queries, hits = counters.get("prefix_cache_queries"), counters.get("prefix_cache_hits")
    return hits / queries if queries and hits is not None else None


def generation_s(record: Record) -> float | None:
    """Seconds in which the engines generated."""
    phases = record["phases_s"] or {}
    steady, tail = phases.get("steady"), phases.get("tail")
    return steady + tail if steady is not None and tail is not None else None


def possible_hit_rate(prompts: Prompts) -> float | None:
    """Highest that any order on any engines can reach."""
    tokens = int(prompts.tokens.sum())
    return prefix_tree.possible_hits(prompts) / tokens if tokens else None


def floor_s(record: Record, prompts: Prompts, model: ModelShape) -> float | None:
    """Least seconds of generation on the run's GPUs; None where their rates are not known, as on CPU."""
    if not on_gpu(record):
        return None
    knobs = settings(record)
    cost = roofline.step_cost(model, gpus.find(record["hardware"]["gpus"][0]), knobs["GPUS_PER_ENGINE"])
    totals, outputs = prefix_tree.totals(prompts), int(prompts.outputs.sum())
    return roofline.floor(totals, outputs, cost, limits(record), knobs["CONCURRENCY"], knobs["BLOCK_SIZE"]).wall_s


def bounds(record: Record, prompts: Prompts, model: ModelShape) -> Record:
    """What the report shows beside the run."""
    return {
        "run_id": record["run_id"],
        "possible_hit_rate": possible_hit_rate(prompts),
        "floor_s": floor_s(record, prompts, model),
        "working_set_tokens": prefix_tree.working_set_tokens(prompts),
    }
