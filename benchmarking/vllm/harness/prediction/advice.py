"""From forecasts to advice: what to run, how much faster it is than naive-batch, and what would change that.

Time of a strategy: the least time of its busiest engine's steps.

Range of a speed-up. Steps are bound by arithmetic or by memory. Kernels reach neither rate in full, and not the same
share of both, so the speed-up is computed again with each of the two at half its rate. And static batches may or may
not wait for their prompts to be tokenised one after the other: in the committed H200 records (vLLM 0.26) the engine
works while `LLM.generate` still tokenises and none was idle, so the expectation leaves that time out and the range
covers it. An engine spends further time between steps, much the same in all strategies, which pulls a true speed-up
towards 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from harness.prediction.feeding import Knobs
from harness.prediction.forecast import Forecast

NAIVE = "naive-batch"
BOUND = "perfect-placement"  # not a strategy that can be run, but the bound of them
LOWEST_EFFICIENCY = 0.5
# Below this gain a comparison of real runs would hardly tell the two apart.
WORTHWHILE = 1.03
SAME_HIT_RATE = 0.01
ARRIVAL_ORDER = ("naive-batch", "continuous-batch", "ray-data")


class Timed(NamedTuple):
    """A forecast with its time and its speed-up over naive-batch."""

    forecast: Forecast
    wall_s: float
    speedup: float
    lowest: float
    highest: float


class Advice(NamedTuple):
    best: Timed  # the simplest of those that are as good as the fastest
    worthwhile: bool  # whether it gains anything over naive-batch
    order_gain: float  # what sorting, bucketing or routing gains over the best that takes prompts as they come
    reasons: list[str]
    gpu_hours: float
    naive_gpu_hours: float
    pays_from_rows: int | None  # None: never
    saved_s: float  # on this dataset, less what planning takes
    partial_batches: bool  # naive-batch's hold fewer prompts than NAIVE_BATCH_SIZE, for want of prompts


def timed(forecasts: Sequence[Forecast], front_end_s: float) -> list[Timed]:
    """`front_end_s`: seconds that one engine's share of the prompts takes to tokenise one by one."""
    naive = next(forecast for forecast in forecasts if forecast.strategy == NAIVE)
    return [_timed(forecast, naive, front_end_s) for forecast in forecasts]


def _timed(forecast: Forecast, naive: Forecast, front_end_s: float) -> Timed:
    rates = (1.0, LOWEST_EFFICIENCY)
    ratios = [
        _ratio(_seconds(naive, *case), _seconds(forecast, *case)) for case in product((0.0, front_end_s), rates, rates)
    ]
    return Timed(forecast, _seconds(forecast, 0.0, 1.0, 1.0), ratios[0], min(ratios), max(ratios))


def _seconds(forecast: Forecast, front_end_s: float, compute_share: float, memory_share: float) -> float:
    """Time when arithmetic and memory reach these shares of their rates."""
    steps_s = forecast.compute_bound_s / compute_share + forecast.memory_bound_s / memory_share
    return steps_s + (front_end_s if forecast.strategy.startswith(NAIVE) else 0.0)


def _ratio(slow_s: float, fast_s: float) -> float:
    return slow_s / fast_s if fast_s else 1.0


def advise(
    results: Sequence[Timed],
    possible_hit_rate: float,
    rows: int,
    gpus: int,
    start_s: float,
    plan_s: float,
    knobs: Knobs,
) -> Advice:
    """`start_s`: until engines are up. `plan_s`: to find order and placement, before the first request."""
    runnable = {result.forecast.strategy: result for result in results if result.forecast.strategy != BOUND}
    naive, best = runnable[NAIVE], _simplest_of_the_fastest(runnable.values())
    worthwhile = best.speedup >= WORTHWHILE
    arrival_s = min(runnable[name].wall_s for name in ARRIVAL_ORDER)
    # Arrival order needs no plan.
    saved_s = naive.wall_s - best.wall_s - (0.0 if best.forecast.strategy in ARRIVAL_ORDER else plan_s)
    saved_s_a_row = saved_s / rows if rows else 0.0
    naive_batch = -(-rows // knobs["NAIVE_PARTITIONS"])
    partial = naive_batch < knobs["NAIVE_BATCH_SIZE"]
    return Advice(
        best if worthwhile else naive,
        worthwhile,
        _ratio(arrival_s, min(result.wall_s for result in runnable.values())),
        [*_reasons(naive, best, possible_hit_rate), *_fuller_steps(naive, best, naive_batch if partial else None)],
        best.wall_s * gpus / 3600,
        naive.wall_s * gpus / 3600,
        int(start_s / saved_s_a_row) + 1 if worthwhile and saved_s_a_row > 0 else None,
        saved_s,
        partial,
    )


def _simplest_of_the_fastest(results: Iterable[Timed]) -> Timed:
    """Strategies that would hardly be told apart are equally fast; arrival order comes before any other."""
    fastest = min(result.wall_s for result in results)
    tied = [result for result in results if result.wall_s <= fastest * WORTHWHILE]
    return min(tied, key=lambda result: (result.forecast.strategy not in ARRIVAL_ORDER, result.wall_s))


def _reasons(naive: Timed, best: Timed, possible: float) -> Iterable[str]:
    found, better = naive.forecast.hit_rate or 0.0, best.forecast.hit_rate or 0.0
    elsewhere = best.speedup >= WORTHWHILE and abs(better - found) < SAME_HIT_RATE
    gain = "; the gain is not the cache's" if elsewhere else ""
    if possible < 0.01:
        yield f"The prompts share next to nothing: at most {possible:.1%} of their tokens can be cached{gain}."
    elif found > 0.95 * possible:
        yield f"{NAIVE} already finds {found:.1%} of the prompt tokens in the cache, of {possible:.1%} possible{gain}."
    elif elsewhere:
        yield f"{NAIVE} and {best.forecast.strategy} find {found:.1%} of {possible:.1%} possible in the cache{gain}."
    else:
        yield f"{NAIVE} finds {found:.1%} of the prompt tokens in the cache, {best.forecast.strategy} {better:.1%}."
        yield f"At most {possible:.1%} can be found."


def _fuller_steps(naive: Timed, best: Timed, partial_batch: int | None) -> Iterable[str]:
    """`partial_batch`: prompts in a batch of naive-batch where that is less than NAIVE_BATCH_SIZE."""
    running = naive.forecast.mean_running, best.forecast.mean_running
    if best.speedup < WORTHWHILE or running[1] <= 1.2 * running[0]:
        return
    few = f": NAIVE_PARTITIONS leaves its batches {partial_batch:,} of the prompts" if partial_batch else ""
    counts = f"{running[1]:.0f} in {best.forecast.strategy}, {running[0]:.0f} in {NAIVE}"
    yield f"Requests a step, on average: {counts}{few}."


def changes(cases: Mapping[str, Sequence[Timed]]) -> list[dict[str, Any]]:
    """What the answer would be in other cases, by their description."""
    rows = []
    for case, results in cases.items():
        best = _simplest_of_the_fastest([result for result in results if result.forecast.strategy != BOUND])
        worthwhile = best.speedup >= WORTHWHILE
        rows.append({"case": case, "best": best.forecast.strategy if worthwhile else NAIVE, "speedup": best.speedup})
    return rows
