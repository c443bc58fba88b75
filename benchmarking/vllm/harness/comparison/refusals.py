"""What need not be tried again in one go of a comparison, because it was refused and nothing in between mends it.

Preflight looks at settings, machine and dataset, and never at the strategy: what it refuses once it refuses for every
strategy on that dataset. Anything else that is refused (a package that one script imports) is so for that strategy.
"""

from harness.comparison.trials import Trial
from harness.preflight.problem import HEADLINE
from harness.schema import Record


class Refusals:
    """Datasets and strategies that were refused since the comparison was started or continued."""

    def __init__(self) -> None:
        self._datasets: set[str] = set()
        self._strategies: set[tuple[str, str]] = set()

    def note(self, trial: Trial, record: Record) -> None:
        """Remembers what a record's refusal is good for; what passes by itself (GPUs that others hold), for nothing."""
        if record["status"] != "refused":
            return
        reason = str(record["error"]).splitlines()[0]
        if reason == HEADLINE:
            self._datasets.add(trial.dataset)
        elif not reason.startswith(HEADLINE):
            self._strategies.add((trial.strategy, trial.dataset))

    def rules_out(self, trial: Trial) -> bool:
        return trial.dataset in self._datasets or (trial.strategy, trial.dataset) in self._strategies
