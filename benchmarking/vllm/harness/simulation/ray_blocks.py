"""Ray Data in time (Ray 2.59): blocks go to actors, each actor works on several, on four batches of each.

A block goes to the actor that has the fewest; an actor that is ready first takes all that it may before the next one is
ready. Tokenising is a stage of its own that has run ahead by the time engines are ready.
"""

from collections import deque

import numpy as np
from harness.prediction import feeding
from harness.prediction.compiled import Int32s
from harness.prediction.feeding import RAY_BATCHES_A_BLOCK, Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play


class Actor:
    """One engine's blocks, and the batches of each that are not sent yet."""

    def __init__(self, engine: Engine, batch_size: int) -> None:
        self.engine, self._batch_size = engine, batch_size
        self._left: dict[int, deque[Int32s]] = {}
        self._open: dict[int, int] = {}  # batch of the engine: block
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._left)

    def take(self, block: Int32s, at_s: float) -> None:
        self._blocks += 1
        self._left[self._blocks] = deque(np.split(block, range(self._batch_size, len(block), self._batch_size)))
        for _ in range(RAY_BATCHES_A_BLOCK):
            self._send(self._blocks, at_s)

    def ended(self, batch: int, at_s: float) -> None:
        block = self._open.pop(batch)
        self._send(block, at_s)
        if not self._left[block] and block not in self._open.values():
            del self._left[block]

    def _send(self, block: int, at_s: float) -> None:
        if self._left[block]:
            self._open[self.engine.give(self._left[block].popleft(), at_s)] = block


def run(_strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    engines = fleet.engines(dataset.prompts, tokenises=False)
    actors = [Actor(engine, knobs["RAY_BATCH_SIZE"]) for engine in engines]
    blocks = deque(feeding.ray_blocks(dataset, knobs))
    most = feeding.ray_open_blocks(knobs)

    def more(number: int, ended: list[int], at_s: float) -> None:
        for batch in ended:
            actors[number].ended(batch, at_s)
        while blocks and len(actors[number]) < most:
            actors[number].take(blocks.popleft(), at_s)

    # Engines that are ready at the same moment share; the first one alone takes what it may.
    for at_s in sorted(set(fleet.ready_s)):
        ready = [number for number, ready_s in enumerate(fleet.ready_s) if ready_s == at_s]
        while blocks and any(len(actors[number]) < most for number in ready):
            actors[min(ready, key=lambda number: len(actors[number]))].take(blocks.popleft(), at_s)
    play(engines, more)
    return engines, max(engine.last_token_s() for engine in engines)
