"""Perfect placement in time: each engine has its run of the sorted prompts in its queue from the start, as token ids
made ahead of the engines."""

from harness.prediction import feeding
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play


def run(_strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    engines = fleet.engines(dataset.prompts, tokenises=False)
    for engine, feed in zip(engines, feeding.perfect_placement(dataset, knobs), strict=True):
        if len(feed.rows):
            engine.give(feed.rows, engine.ready_s)
    play(engines, lambda *_: None)
    return engines, max(engine.last_token_s() for engine in engines)
