"""What a strategy and the harness tell each other beyond the table of answers, where a run outlives trouble.

Most strategies leave this empty: they fail with their first engine and keep nothing. One run a process, so there is
one of these.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Continuity:
    """`fingerprint` is set by the harness before the strategy is called, all else by the strategy."""

    fingerprint: str | None = None  # of the dataset
    survives_engines: bool = False  # the strategy itself sees to engines that die
    lost_engines: list[str] = field(default_factory=list)  # why each was lost
    redone_rows: int = 0  # given to an engine that was lost, and to another one afterwards
    continued_rows: int = 0  # taken over from an earlier run that was killed
    continued_tokens: int = 0  # output tokens of those
    given_up: dict[str, str] = field(default_factory=dict)  # id of a row that cannot run → why
    starting_since: float | None = None  # while the only engines are replacements that are not ready
    answers_written: Callable[[], None] | None = None  # called when the run's answers are where the user wants them

    def starting_s(self) -> float:
        """Seconds for which no engine could work because all that are left are still starting; 0 otherwise."""
        return time.time() - self.starting_since if self.starting_since is not None else 0.0

    @property
    def disturbed(self) -> bool:
        """Whether the run's time is not that of the work it was given."""
        return bool(self.lost_engines or self.continued_rows)


current = Continuity()
