"""One thing that keeps a run from being fair or from finishing, in words that say what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

HEADLINE = "preflight: no engine was started"
# Follows the headline where what was found is the work of others, and may be gone the next time.
PASSING = ", for now"
FIRST = 5  # offending rows or ids that a message names


@dataclass(frozen=True)
class Problem:
    """`expected` and `found` make the sentence; `change` is the next step; `first` names the first offenders."""

    expected: str
    found: str
    change: str
    first: Sequence[str] = ()

    def __str__(self) -> str:
        offenders = f"; first: {', '.join(self.first[:FIRST])}" if self.first else ""
        return f"expected {self.expected}, found {self.found.removesuffix('.')}{offenders}. {self.change}"


class PreflightError(ValueError):
    """A run that must not start. `problems` holds every one that was found, not only the first; `passing` ones may be
    gone the next time."""

    def __init__(self, problems: Sequence[Problem | str], passing: bool = False) -> None:
        self.problems = list(problems)
        lines = [f"  {number}. {problem}" for number, problem in enumerate(problems, start=1)]
        super().__init__("\n".join([HEADLINE + PASSING * passing, *lines]))
