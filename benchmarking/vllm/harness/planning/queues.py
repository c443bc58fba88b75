"""Which rows each engine is to run next, on the driver.

Every engine has a queue of stretches of planned rows, cut by predicted work. It takes rows from the front. An engine
without any takes the back half of the largest queue: whole groups, so that a prefix stays with one engine, unless one
group is all that is left.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from harness.planning.window import Window

# A group that is all that is left is cut down to pieces of this many rows: the prefix is computed again for each.
SMALLEST_PIECE = 8


class Stretch(NamedTuple):
    """Rows of a window, from one place to before another."""

    window: Window
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def work(self) -> int:
        return int(self.window.work[self.end] - self.window.work[self.begin])


Queue = deque[Stretch]


class Queues:
    def __init__(self, engines: int) -> None:
        self._queues: list[Queue] = [deque() for _ in range(engines)]

    def __len__(self) -> int:
        """Rows that no engine has been given."""
        return sum(len(stretch) for queue in self._queues for stretch in queue)

    def add(self, window: Window, engines: Sequence[int]) -> None:
        """Shares a window's rows out to `engines`, numbers of queues."""
        for engine, stretch in zip(engines, shares(window, len(engines)), strict=True):
            if len(stretch):
                self._queues[engine].append(stretch)

    def put_back(self, engine: int, stretches: Iterable[Stretch]) -> None:
        """Rows that were taken and have to be run again come first."""
        self._queues[engine].extendleft(reversed(list(stretches)))

    def take(self, engine: int, rows: int) -> list[Stretch]:
        """The next rows for an engine, at most so many; none only where no queue has any."""
        taken: list[Stretch] = []
        while rows and (self._queues[engine] or self._steal(engine)):
            stretch = self._queues[engine].popleft()
            if len(stretch) > rows:
                self._queues[engine].appendleft(stretch._replace(begin=stretch.begin + rows))
                stretch = stretch._replace(end=stretch.begin + rows)
            taken.append(stretch)
            rows -= len(stretch)
        return taken

    def _steal(self, engine: int) -> bool:
        busiest = max(self._queues, key=lambda queue: sum(stretch.work for stretch in queue))
        if not busiest:
            return False
        self._queues[engine] = _back_half(busiest)
        return True


def shares(window: Window, engines: int) -> list[Stretch]:
    """A window cut into one stretch an engine, equal in work; where a group ends, if that leaves them nearly equal."""
    if not len(window):
        return []
    fair = window.work[-1] / engines
    cuts = [_cut(window, 0, len(window), share * fair, fair * 0.01) for share in range(1, engines)]
    edges = [0, *cuts, len(window)]
    return [Stretch(window, begin, end) for begin, end in pairwise(edges)]


def _cut(window: Window, begin: int, end: int, work: float, tolerance: float) -> int:
    """The place before which there is so much work, moved to the nearest group's begin within the tolerance."""
    place = begin + int(np.searchsorted(window.work[begin : end + 1], work))
    near = [edge for edge in _group_edges(window, begin, end, place) if abs(window.work[edge] - work) <= tolerance]
    return min(near, key=lambda edge: abs(window.work[edge] - work), default=place)


def _group_edges(window: Window, begin: int, end: int, place: int) -> list[int]:
    """The nearest begins of groups at or before a place and after it, within a stretch."""
    after = int(np.searchsorted(window.groups, place, side="right"))
    return [max(int(window.groups[after - 1]), begin), min([*window.groups[after : after + 1].tolist(), end])]


def _back_half(queue: Queue) -> Queue:
    """Removes from the back of a queue, and returns, about half of its work."""
    half = sum(stretch.work for stretch in queue) / 2
    taken: Queue = deque()
    while queue and sum(stretch.work for stretch in taken) + queue[-1].work <= half:
        taken.appendleft(queue.pop())
    if queue and not taken:
        last = queue.pop()
        keep, give = _halves(last)
        queue.extend([keep] if len(keep) else [])
        taken.appendleft(give)
    return taken


def _halves(stretch: Stretch) -> tuple[Stretch, Stretch]:
    """Cut where a group ends; through the only group if it is worth computing its prefix twice."""
    window, begin, end = stretch
    middle = window.work[begin] + stretch.work / 2
    cut = _cut(window, begin, end, middle, float("inf"))
    if cut in (begin, end):
        cut = begin + len(stretch) // 2 if len(stretch) >= 2 * SMALLEST_PIECE else begin
    return stretch._replace(end=cut), stretch._replace(begin=cut)
