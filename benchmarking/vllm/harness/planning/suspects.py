"""Rows that were in an engine when it died: one of them may have killed it.

The first time all of them simply run again, among others. Those that were there a second time run a few together, and
those that were there when that killed an engine too run alone; one that kills an engine while alone is given up.
"""

from collections import Counter, deque
from collections.abc import Sequence

FEW = 16


class Suspects:
    def __init__(self) -> None:
        self._deaths: Counter[int] = Counter()
        self._pieces: deque[list[int]] = deque()

    def __bool__(self) -> bool:
        """Whether rows wait to be run apart from the others."""
        return bool(self._pieces)

    def take(self) -> list[int]:
        """The next rows to run with no other in the engine."""
        return self._pieces.popleft()

    def died(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """`rows` were in an engine that died. Returns those to run as usual, and those to give up."""
        self._deaths.update(rows)
        again = [row for row in rows if self._deaths[row] == 1]
        apart = [row for row in rows if self._deaths[row] == 2]
        alone = [row for row in rows if self._deaths[row] > 2]
        if len(rows) == 1 and alone:
            return [], alone
        self._pieces += [apart[start : start + FEW] for start in range(0, len(apart), FEW)]
        self._pieces += [[row] for row in alone]
        return again, []
