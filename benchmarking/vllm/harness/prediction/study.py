"""All forecasts that an advice needs: strategies at the GPU's KV capacity, at others, on more and fewer engines."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from harness.prediction import advice, feeding, forecast, prefix_tree, roofline
from harness.prediction.advice import Timed
from harness.prediction.engine_state import Limits, Prompts
from harness.prediction.forecast import Forecast, Job
from harness.prediction.gpus import Gpu
from harness.prediction.model_shape import ModelShape
from harness.prediction.prompt_set import PromptSet
from harness.prediction.roofline import Floor

# Parts and multiples of the GPU's KV capacity.
SCALES = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
# Routing sorts what it buffers, so sorting before it is not worth an eighth of the replays here.
ADVISED = tuple(strategy for strategy in feeding.STRATEGIES if strategy != "prefix-bucketing-sorted")
CHOSEN, ENGINES = "as given", ("engine", "engines")

Knobs = Mapping[str, Any]


class Study(NamedTuple):
    kv_tokens: int  # of one engine
    results: list[Timed]  # at that capacity
    curves: dict[str, list[tuple[float, float]]]  # strategy → KV tokens, hit rate
    changes: list[dict[str, Any]]
    floor: Floor


def run(prompts: PromptSet, knobs: Knobs, model: ModelShape, gpu: Gpu, kv_tokens: int) -> Study:
    """Raises ValueError if a prompt does not fit in the KV cache."""
    cost = roofline.step_cost(model, gpu, knobs["GPUS_PER_ENGINE"])
    data = prompts.data
    cases = _cases(knobs, kv_tokens // knobs["BLOCK_SIZE"], _fewest_blocks(data.prompts))
    jobs = [Job(strategy, *setting) for setting in cases.values() for strategy in ADVISED]
    forecasts = iter(forecast.run_all(jobs, data, cost))
    results = {case: [next(forecasts) for _ in ADVISED] for case in cases}
    timed = {case: _timed(results[case], prompts, cases[case][0]) for case in cases}
    totals, limits = prefix_tree.totals(data.prompts), cases[CHOSEN][1]
    outputs = int(data.prompts.outputs.sum())
    floor = roofline.floor(totals, outputs, cost, limits, knobs["CONCURRENCY"], knobs["BLOCK_SIZE"])
    others = {case: result for case, result in timed.items() if case != CHOSEN}
    return Study(kv_tokens, timed[CHOSEN], _curves(results, knobs), advice.changes(others), floor)


def _cases(knobs: Knobs, kv_blocks: int, fewest_blocks: int) -> dict[str, tuple[Knobs, Limits]]:
    """Settings by their description; the chosen one is always among them, however small."""
    cases = {CHOSEN: (knobs, forecast.limits(knobs, kv_blocks))}
    for scale in SCALES:
        blocks = int(kv_blocks * scale)
        if scale != 1 and blocks >= fewest_blocks:
            name = f"{scale:g} times" if scale > 1 else f"1/{1 / scale:.0f} of"
            cases[f"{name} the KV cache"] = knobs, forecast.limits(knobs, blocks)
    engines = knobs["CONCURRENCY"]
    for count in sorted({1, max(1, engines // 2), engines * 2} - {engines}):
        other = dict(knobs) | {"CONCURRENCY": count}
        cases[f"{count} engine{'s' * (count > 1)}"] = other, forecast.limits(other, kv_blocks)
    return cases


def _fewest_blocks(prompts: Prompts) -> int:
    longest = int((prompts.tokens + prompts.outputs).max())
    return -(-longest // prompts.block_size)


def _timed(results: Sequence[Forecast], prompts: PromptSet, knobs: Knobs) -> list[Timed]:
    tokens = int(prompts.data.prompts.tokens.sum())
    return advice.timed(results, prompts.front_end_s_a_token * tokens / knobs["CONCURRENCY"])


def _curves(results: Mapping[str, Sequence[Forecast]], knobs: Knobs) -> dict[str, list[tuple[float, float]]]:
    """From the cases with the chosen engines, by capacity."""
    curves: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in ADVISED}
    with_chosen_engines = (forecasts for case, forecasts in results.items() if not case.endswith(ENGINES))
    for result in chain.from_iterable(with_chosen_engines):
        curves[result.strategy].append((result.kv_blocks * knobs["BLOCK_SIZE"], result.hit_rate or 0.0))
    return {strategy: sorted(curve) for strategy, curve in curves.items()}
