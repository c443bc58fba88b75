"""One strategy on a fleet of simulated engines.

job.simulate("prefix-bucketing", dataset, knobs, fleet) -> Outcome
"""

from collections.abc import Callable

from harness.prediction.engine_state import Limits
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation import placement, planned, provider, ray_blocks, static_batches
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet
from harness.simulation.outcome import Outcome, outcome

STRATEGIES: dict[str, Callable[[str, Dataset, Knobs, Fleet], tuple[list[Engine], float]]] = {
    "naive-batch": static_batches.run,
    "naive-batch-sorted": static_batches.run,
    "continuous-batch": provider.run,
    "continuous-batch-sorted": provider.run,
    "prefix-bucketing": provider.run,
    "prefix-bucketing-sorted": provider.run,
    "ray-data": ray_blocks.run,
    "prefix-planned": planned.run,
    "perfect-placement": placement.run,
}


def engines_after(strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines when all is done, and when the rows were back.

    Raises ValueError for a strategy without a simulation, or a prompt that cannot fit in the KV cache.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: expected one of {list(STRATEGIES)}")
    require_fit(dataset, fleet.limits)
    return STRATEGIES[strategy](strategy, dataset, {**knobs, "CONCURRENCY": len(fleet.ready_s)}, fleet)


def simulate(strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> Outcome:
    return outcome(strategy, *engines_after(strategy, dataset, knobs, fleet))


def require_fit(dataset: Dataset, limits: Limits) -> None:
    """Raises ValueError where an engine would wait for ever for a prompt that it has no room for."""
    prompts, blocks = dataset.prompts, limits.kv_blocks
    longest = int((prompts.tokens + prompts.outputs).max(initial=0))
    if -(-longest // prompts.block_size) > blocks:
        raise ValueError(
            f"expected every prompt with its output to fit in the KV cache of {blocks} blocks of {prompts.block_size} "
            f"tokens, found one of {longest} tokens; give the engine more KV cache or leave the row out"
        )
