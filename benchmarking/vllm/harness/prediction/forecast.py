"""What a strategy will do on a dataset: prefix-cache hits from the replay, and the time that its steps take at least.

limits = forecast.limits(knobs, kv_blocks)
forecast.forecast("ray-data", dataset, knobs, limits, cost)
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from harness.prediction import engine_state, feeding
from harness.prediction.block_cache import Replayed, replay
from harness.prediction.block_pool import new_pool
from harness.prediction.engine_state import Feed, Limits, Prompts, StepCost
from harness.prediction.feeding import Dataset, Knobs
from harness.prediction.progress_bar import ProgressBar


class Forecast(NamedTuple):
    """A strategy on all of its engines."""

    strategy: str
    kv_blocks: int  # of one engine
    queries: int  # prompt tokens looked up, as counted by the engines
    hits: int
    preemptions: int
    mean_running: float  # requests in a step, mean over the busiest engine's steps
    engine_s: list[float]  # least time of each engine's steps, one after the other
    compute_bound_s: float  # of the busiest engine: steps whose arithmetic takes longer than their memory traffic
    memory_bound_s: float  # of the busiest engine: the other steps

    @property
    def hit_rate(self) -> float | None:
        return self.hits / self.queries if self.queries else None

    @property
    def wall_s(self) -> float:
        """Least time until the last engine is done."""
        return max(self.engine_s, default=0.0)


class Job(NamedTuple):
    strategy: str
    knobs: Knobs
    limits: Limits


def limits(knobs: Mapping[str, Any], kv_blocks: int, on_gpu: bool = True, vllm_version: str | None = None) -> Limits:
    """The limits of each engine under `knobs`. `kv_blocks` excludes the null block.

    `vllm_version` is that of the engine whose counters the forecast is compared with; None for 0.27's counting.
    Raises ValueError where prefixes are not cached, which the replay always does.
    """
    if not knobs["ENABLE_PREFIX_CACHING"]:
        raise ValueError(
            "expected ENABLE_PREFIX_CACHING true, found false: without it no strategy finds anything; set it"
        )
    return Limits(
        kv_blocks=kv_blocks,
        max_num_seqs=knobs["MAX_NUM_SEQS"],
        max_num_batched_tokens=knobs["MAX_NUM_BATCHED_TOKENS"],
        max_tokens=knobs["OUTPUT_LEN"] if knobs["OUTPUT_LEN_DISTRIBUTION"] == "fixed" else knobs["OUTPUT_LEN_MAX"],
        async_scheduling=on_gpu,
        counts_retries=vllm_version is not None and _release(vllm_version) < (0, 27),
    )


def forecast(strategy: str, dataset: Dataset, knobs: Knobs, limits: Limits, cost: StepCost | None = None) -> Forecast:
    """One strategy at one KV capacity. Raises ValueError for a prompt that cannot fit in the KV cache."""
    return _sum(strategy, limits, _replay_all(feeding.feeds(strategy, dataset, knobs), dataset.prompts, limits, cost))


def run_all(jobs: Sequence[Job], dataset: Dataset, cost: StepCost | None) -> list[Forecast]:
    """Several at a time, one a core; says how far it is."""
    with ThreadPoolExecutor(os.cpu_count()) as threads, ProgressBar("replaying", len(jobs)) as progress:
        forecasts = []
        for done in threads.map(lambda job: forecast(job.strategy, dataset, job.knobs, job.limits, cost), jobs):
            forecasts.append(done)
            progress.advance(1)
    return forecasts


def _replay_all(feeds: list[Feed], prompts: Prompts, limits: Limits, cost: StepCost | None) -> list[Replayed]:
    """Each engine that has anything to do, on its own."""
    busy = [feed for feed in feeds if len(feed.rows)]
    sizes = [engine_state.pool_size(prompts, feed.rows, limits) for feed in busy]
    pool = new_pool(*map(max, zip(*sizes, strict=True))) if sizes else None
    return [replay(prompts, feed, limits, cost, pool) for feed in busy]


def _sum(strategy: str, limits: Limits, engines: list[Replayed]) -> Forecast:
    busiest = max(engines, key=lambda engine: engine.busy_s, default=None)
    return Forecast(
        strategy=strategy,
        kv_blocks=limits.kv_blocks,
        queries=sum(engine.queries for engine in engines),
        hits=sum(engine.hits for engine in engines),
        preemptions=sum(engine.preemptions for engine in engines),
        mean_running=busiest.mean_running if busiest else 0.0,
        engine_s=[engine.busy_s for engine in engines],
        compute_bound_s=busiest.compute_bound_s if busiest else 0.0,
        memory_bound_s=busiest.memory_bound_s if busiest else 0.0,
    )


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
