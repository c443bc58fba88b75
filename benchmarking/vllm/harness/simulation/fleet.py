"""The engines of a simulated job, their nodes, and when each is ready."""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.prediction.engine_state import Limits, Prompts
from harness.simulation.engine import Engine
from harness.simulation.step_time import StepTime


class Fleet(NamedTuple):
    """Equal engines on equal nodes. Times in seconds since the job began."""

    ready_s: list[float]  # of each engine
    engines_a_node: int
    limits: Limits
    time: StepTime
    front_end_s_a_token: float  # LLM's and AsyncLLM's own tokenising
    submit_s_a_row: float = 0.0  # Daft's provider: handing rows to an engine's actor, one submission after the other

    def engines(self, prompts: Prompts, tokenises: bool = True) -> list[Engine]:
        front_end_s = self.front_end_s_a_token if tokenises else 0.0
        return [Engine(prompts, self.limits, self.time, ready_s, front_end_s) for ready_s in self.ready_s]

    def nodes(self) -> list[list[int]]:
        """Engines of each node."""
        engines, size = range(len(self.ready_s)), self.engines_a_node
        return [list(engines[start : start + size]) for start in range(0, len(engines), size)]


def play(engines: Sequence[Engine], more: Callable[[int, list[int], float], None]) -> None:
    """Runs all engines to the end, in order of time. `more(engine, ended, seconds)` may give that engine more work."""
    events: list[tuple[float, int, list[int]]] = []
    for number in range(len(engines)):
        _push(events, engines, number)
    while events:
        at_s, number, ended = heapq.heappop(events)
        more(number, ended, at_s)
        _push(events, engines, number)


def _push(events: list[tuple[float, int, list[int]]], engines: Sequence[Engine], number: int) -> None:
    ended = engines[number].run()
    if ended:
        heapq.heappush(events, (ended[0][1], number, [batch for batch, _ in ended]))


def spread_starts(engines: int, start_s: float, spread_s: float) -> list[float]:
    """Ready evenly between `start_s` and `spread_s` later; neighbours in number are not neighbours in time."""
    order = sorted(range(engines), key=lambda number: (number * 0.6180339887) % 1)
    ready = [0.0] * engines
    for place, number in enumerate(order):
        ready[number] = start_s + spread_s * place / max(engines - 1, 1)
    return ready
