"""Forecasts against real engines: engine builds and settings, and what each comes to.

Small enough for two cores: the local model, some hundred prompts, few generated tokens.
"""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import config
import pyarrow as pa
import pyarrow.parquet as pq
from harness import machine, overrides
from harness.data import prompts
from harness.data.prompts import Shape
from harness.prediction import feeding, forecast, model_shape, prompt_set
from harness.prediction.forecast import Forecast

# vLLM takes ten seconds to import: after what can be refused.
if TYPE_CHECKING:
    from harness.prediction.engine_feed import Counted
    from vllm import LLM

TOLERANCE = 0.02  # of the hit rate: two percentage points
MAX_MODEL_LEN = 512


class Build(NamedTuple):
    """An engine. A KV cache of `kv_blocks` includes vLLM's null block."""

    name: str
    block_size: int
    kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Setting(NamedTuple):
    """A dataset of `shape` under a strategy on a number of engines."""

    build: Build
    shape: Shape
    output_len: int
    strategy: str
    engines: int


ROOMY = Build("roomy", 16, 4096, 32, 512)  # holds everything
TIGHT = Build("tight", 16, 257, 32, 512)  # holds 32 requests and some of the prefixes
COARSE = Build("coarse", 32, 129, 32, 512)  # the same memory in blocks of 32
CROWDED = Build("crowded", 16, 65, 16, 256)  # less than its requests grow to: they are preempted
BUILDS = (ROOMY, TIGHT, COARSE, CROWDED)

FEW, SOME, MANY = (Shape(480, prefixes, 48, 48) for prefixes in (4, 24, 80))
LONG = Shape(480, 40, 96, 64)
GROWING = Shape(160, 16, 48, 16)

SETTINGS = (
    Setting(ROOMY, SOME, 2, "naive-batch", 1),
    Setting(ROOMY, FEW, 2, "continuous-batch", 2),
    Setting(ROOMY, MANY, 2, "continuous-batch", 2),
    Setting(ROOMY, MANY, 2, "prefix-bucketing", 2),
    Setting(ROOMY, SOME, 2, "ray-data", 1),
    Setting(TIGHT, MANY, 4, "naive-batch", 1),
    Setting(TIGHT, MANY, 4, "naive-batch-sorted", 2),
    Setting(TIGHT, FEW, 4, "continuous-batch", 1),
    Setting(TIGHT, SOME, 4, "continuous-batch", 1),
    Setting(TIGHT, MANY, 4, "continuous-batch", 1),
    Setting(TIGHT, MANY, 4, "continuous-batch", 2),
    Setting(TIGHT, MANY, 4, "continuous-batch-sorted", 2),
    Setting(TIGHT, SOME, 4, "prefix-bucketing", 1),
    Setting(TIGHT, MANY, 4, "prefix-bucketing", 2),
    Setting(TIGHT, MANY, 4, "ray-data", 2),
    Setting(COARSE, LONG, 4, "naive-batch", 2),
    Setting(COARSE, LONG, 4, "continuous-batch", 1),
    Setting(COARSE, LONG, 4, "prefix-bucketing", 2),
    Setting(COARSE, LONG, 4, "ray-data", 1),
    Setting(COARSE, LONG, 4, "perfect-placement", 2),
    Setting(CROWDED, GROWING, 40, "naive-batch", 1),
    Setting(CROWDED, GROWING, 40, "continuous-batch", 1),
    Setting(CROWDED, GROWING, 40, "continuous-batch-sorted", 2),
    Setting(CROWDED, GROWING, 40, "prefix-bucketing", 2),
    Setting(CROWDED, GROWING, 40, "ray-data", 1),
)


def start(build: Build, model: Path) -> "LLM":
    """A CPU engine of this build; checks that it has the blocks asked for."""
    from vllm import LLM

    llm = LLM(
        model=str(model),
        max_model_len=MAX_MODEL_LEN,
        block_size=build.block_size,
        kv_cache_memory_bytes=build.kv_blocks * build.block_size * model_shape.read(str(model)).kv_token_bytes,
        max_num_seqs=build.max_num_seqs,
        max_num_batched_tokens=build.max_num_batched_tokens,
        enforce_eager=True,
        disable_log_stats=False,
    )
    found = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    if found != build.kv_blocks:
        raise RuntimeError(f"{build.name}: expected {build.kv_blocks} KV blocks, the engine has {found}")
    return llm


def check(llm: "LLM", setting: Setting, model: Path, folder: Path) -> dict[str, Any]:
    """One setting on a running engine, several engines one after the other; a record of prediction and count."""
    from harness.prediction import engine_feed

    knobs = _knobs(setting)
    loaded = prompt_set.load(_dataset(setting.shape, model, folder), str(model), knobs, cache=None)
    starts = loaded.tokens.starts
    prompts_ids = [loaded.tokens.ids[begin:end].tolist() for begin, end in itertools.pairwise(starts)]
    feeds = feeding.feeds(setting.strategy, loaded.data, knobs)
    counted = [engine_feed.serve(llm, prompts_ids, setting.output_len, feed) for feed in feeds if len(feed.rows)]
    limits = forecast.limits(knobs, setting.build.kv_blocks - 1, on_gpu=False, vllm_version=machine.versions()["vllm"])
    predicted = forecast.forecast(setting.strategy, loaded.data, knobs, limits)
    return _record(setting, predicted, engine_feed.Counted(*map(sum, zip(*counted, strict=True))))


def difference(record: dict[str, Any]) -> float:
    """Predicted less counted hit rate."""
    return float(record["predicted"]["hit_rate"] - record["counted"]["hit_rate"])


def _record(setting: Setting, predicted: Forecast, counted: "Counted") -> dict[str, Any]:
    figures = {
        "predicted": _figures(predicted.queries, predicted.hits, predicted.preemptions),
        "counted": _figures(counted.queries, counted.hits, counted.preemptions),
    }
    names = {"build": setting.build._asdict(), "shape": vars(setting.shape)}
    versions = {name: machine.versions()[name] for name in ("vllm", "torch")}
    return {"schema": 1, **setting._asdict(), **names, **figures, "versions": versions}


def _figures(queries: int, hits: int, preemptions: int) -> dict[str, float]:
    return {"queries": queries, "hits": hits, "hit_rate": hits / queries, "preemptions": preemptions}


def _knobs(setting: Setting) -> dict[str, Any]:
    """The suite's knobs at the size of these datasets."""
    build = setting.build
    engine = {
        "BLOCK_SIZE": build.block_size,
        "MAX_NUM_SEQS": build.max_num_seqs,
        "MAX_NUM_BATCHED_TOKENS": build.max_num_batched_tokens,
        "MAX_MODEL_LEN": MAX_MODEL_LEN,
        "CONCURRENCY": setting.engines,
        "OUTPUT_LEN": setting.output_len,
        "OUTPUT_LEN_DISTRIBUTION": "fixed",
    }
    feeding_sizes = {
        "NAIVE_PARTITIONS": 2,
        "NAIVE_BATCH_SIZE": 48,
        "CONTINUOUS_PARTITIONS": 1,
        "CONTINUOUS_BATCH_SIZE": 32,
        "RAY_BLOCKS": 4,
        "RAY_BATCH_SIZE": 4,
        "RAY_MAX_CONCURRENT_BATCHES": 8,
        "ROUTER_MAX_BUFFER_SIZE": 100,
        "ROUTER_MIN_BUCKET_SIZE": 4,
        "ROUTER_LOAD_BALANCE_THRESHOLD": 32,
    }
    return overrides.knob_values(config) | engine | feeding_sizes


def _dataset(shape: Shape, model: Path, folder: Path) -> Path:
    """The dataset's Parquet file, made if it is not there."""
    file = folder / f"{shape.rows}-{shape.prefixes}-{shape.prefix_len}-{shape.suffix_len}.parquet"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        from transformers import AutoTokenizer

        words = prompts.words(AutoTokenizer.from_pretrained(model))
        pq.write_table(pa.Table.from_batches(prompts.sample(shape, words, 1)), file)
    return file
