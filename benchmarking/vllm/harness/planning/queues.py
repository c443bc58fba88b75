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
from harness.planning.window import Int64s, Window

# A group that is all that is left is cut down to pieces of this many rows: the prefix is computed again for each.
SMALLEST_PIECE = 8
# Share of its work by which an engine may have more or less, if no group is cut for it; idle engines even it out.
UNEVEN = 0.01


class Stretch(NamedTuple):
    """Rows of a window, from one place to before another."""

    window: Window
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def work(self) -> int:
        return int(self.window.work[self.end] - self.window.work[self.begin])


Queue = deque[Stretch]

# Rows that an engine has in hand beside those in flight, so that it never waits for the driver: few at the end, when
# what one engine has in hand no other can take over.
FEWEST_IN_HAND = 16


class Queues:
    def __init__(self, engines: int) -> None:
        self._queues: list[Queue] = [deque() for _ in range(engines)]

    def __len__(self) -> int:
        """Rows that no engine has been given."""
        return sum(stretch.rows for queue in self._queues for stretch in queue)

    def add(self, window: Window, engines: Sequence[int]) -> None:
        """Shares a window's rows out to `engines`, numbers of queues."""
        for engine, stretch in zip(engines, shares(window, len(engines)), strict=True):
            if stretch.rows:
                self._queues[engine].append(stretch)

    def is_low(self, engines: int, most_in_flight: int) -> bool:
        """Whether the next window is to be added."""
        return len(self) < 2 * most_in_flight * engines

    def in_hand(self, engines: int, most_in_flight: int, more_to_come: bool) -> int:
        """Rows that an engine should have in hand: less and less, once the last rows are planned."""
        rows = len(self)
        if more_to_come or engines == 1:
            return most_in_flight if rows else 0
        return min(max(rows // (2 * engines), FEWEST_IN_HAND), most_in_flight) if rows else 0

    def put_back(self, engine: int, stretches: Iterable[Stretch]) -> None:
        """Rows that were taken and have to be run again come first."""
        self._queues[engine].extendleft(reversed(list(stretches)))

    def take(self, engine: int, rows: int) -> list[Stretch]:
        """The next rows for an engine, at most so many; none only where no queue has any."""
        taken: list[Stretch] = []
        while rows and (self._queues[engine] or self._steal(engine)):
            stretch = self._queues[engine].popleft()
            if stretch.rows > rows:
                self._queues[engine].appendleft(stretch._replace(begin=stretch.begin + rows))
                stretch = stretch._replace(end=stretch.begin + rows)
            taken.append(stretch)
            rows -= stretch.rows
        return taken

    def _steal(self, engine: int) -> bool:
        busiest = max(self._queues, key=lambda queue: sum(stretch.work for stretch in queue))
        if not busiest:
            return False
        self._queues[engine] = _back_half(busiest)
        return True


def shares(window: Window, engines: int) -> list[Stretch]:
    """A window cut into one stretch an engine, equal in work; where a group ends, if that leaves them nearly equal."""
    return [Stretch(window, begin, end) for begin, end in pairwise(edges(window.work, window.groups, engines))]


def edges(work: Int64s, groups: Int64s, engines: int) -> list[int]:
    """Places where the engines' shares begin, and the end. `work` and `groups`: a window's."""
    rows = len(work) - 1
    fair = work[-1] / engines
    return [0, *(_cut(work, groups, (0, rows), share * fair, fair * UNEVEN) for share in range(1, engines)), rows]


def _cut(work: Int64s, groups: Int64s, within: tuple[int, int], wanted: float, tolerance: float) -> int:
    """The place before which there is so much work, moved to the nearest group's begin within the tolerance."""
    begin, end = within
    place = begin + int(np.searchsorted(work[begin : end + 1], wanted))
    after = int(np.searchsorted(groups, place, side="right"))
    nearest = [
        max([*groups[max(after - 1, 0) : after].tolist(), begin]),
        min([*groups[after : after + 1].tolist(), end]),
    ]
    near = [edge for edge in nearest if abs(work[edge] - wanted) <= tolerance]
    return min(near, key=lambda edge: abs(work[edge] - wanted), default=place)


def _back_half(queue: Queue) -> Queue:
    """Removes from the back of a queue, and returns, about half of its work."""
    half = sum(stretch.work for stretch in queue) / 2
    taken: Queue = deque()
    while queue and sum(stretch.work for stretch in taken) + queue[-1].work <= half:
        taken.appendleft(queue.pop())
    if queue and not taken:
        last = queue.pop()
        keep, give = _halves(last)
        queue.extend([keep] if keep.rows else [])
        taken.appendleft(give)
    return taken


def _halves(stretch: Stretch) -> tuple[Stretch, Stretch]:
    """Cut where a group ends; through the only group if it is worth computing its prefix twice."""
    window, begin, end = stretch
    middle = window.work[begin] + stretch.work / 2
    cut = _cut(window.work, window.groups, (begin, end), middle, float("inf"))
    if cut in (begin, end):
        cut = begin + stretch.rows // 2 if stretch.rows >= 2 * SMALLEST_PIECE else begin
    return stretch._replace(end=cut), stretch._replace(begin=cut)
