"""The plan of a comparison: which run comes when, and which of them the records already hold.

Each trial is a block: every strategy (and the twin of one, the A/A pair) once, in random order. A comparison's name
ends in a digest of what it compares and under which settings, so the records alone tell what an interrupted one still
lacks; the order follows from the name and is recorded with each run (COMPARISON_PLACE).
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness import machine
from harness.comparison.comparability import conditions
from harness.records import portable
from harness.schema import STATUSES, Record

STRATEGIES = (
    "naive-batch",
    "naive-batch-sorted",
    "continuous-batch",
    "continuous-batch-sorted",
    "prefix-bucketing",
    "prefix-bucketing-sorted",
    "ray-data",
    "prefix-planned",
)
TWIN_SUFFIX = "-again"


@dataclass(frozen=True)
class Trial:
    """One run of the plan; `place` counts from 1 within the block, `arm` is the label the run goes by."""

    comparison: str
    dataset: str
    number: int
    place: int
    arm: str
    strategy: str

    def overrides(self) -> dict[str, Any]:
        """The knobs that tell the run, and its record, where it belongs."""
        return {
            "INPUT_PATH": self.dataset,
            "COMPARISON_ID": self.comparison,
            "COMPARISON_TRIAL": self.number,
            "COMPARISON_PLACE": self.place,
            "COMPARISON_ARM": self.arm,
        }


def arms(strategies: Sequence[str], twin: str | None) -> dict[str, str]:
    """Label → strategy: every strategy under its own name, the twin once more under a second one."""
    labels = {strategy: strategy for strategy in strategies}
    return labels | ({twin + TWIN_SUFFIX: twin} if twin else {})


def plan(comparison: str, labels: Mapping[str, str], datasets: Sequence[str], trials: int) -> list[Trial]:
    """All runs in order: trial by trial, datasets and labels shuffled anew in each, the same for the same name."""
    runs = []
    for number in range(1, trials + 1):
        for dataset in _shuffled(datasets, f"{comparison} {number}"):
            order = _shuffled(list(labels), f"{comparison} {number} {portable(dataset)}")
            runs += [Trial(comparison, dataset, number, place, arm, labels[arm]) for place, arm in enumerate(order, 1)]
    return runs


def answered(runs: Sequence[Trial], records: Sequence[Record], retry_failed: bool = False) -> dict[Trial, Record]:
    """The runs that need not be done, with their records; with `retry_failed`, those with a valid one.

    A refused run never began: it is left to do as soon as what it was refused for is mended.
    """
    begun = [record for record in records if record.get("status") != "refused"]
    found = {trial: find(trial, begun, only_ok=retry_failed) for trial in runs}
    return {trial: record for trial, record in found.items() if record}


def find(trial: Trial, records: Sequence[Record], only_ok: bool = False) -> Record | None:
    """The newest record of a run."""
    known = trial.overrides()
    wanted = {name: portable(known[name]) for name in known if name != "COMPARISON_PLACE"}
    for record in reversed(_sound(records)):
        if all(record["config"].get(name) == value for name, value in wanted.items()):
            return record if record["status"] == "ok" or not only_ok else None
    return None


def digest(labels: Mapping[str, str], datasets: Sequence[str], knobs: Mapping[str, Any]) -> str:
    """What a comparison is about, in eight characters: its labels, datasets, settings and installed versions."""
    subject = [sorted(labels.items()), sorted(datasets), conditions(knobs), machine.versions()]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:8]


def names(records: Sequence[Record], subject: str) -> list[str]:
    """Comparisons about `subject`, newest first."""
    known = {str(record["config"].get("COMPARISON_ID")) for record in _sound(records)}
    return sorted((name for name in known if name.endswith(f"-{subject}")), reverse=True)


def new_name(subject: str) -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S.%f}-{subject}"


def _sound(records: Sequence[Record]) -> list[Record]:
    """Those that say which run they are of, and how it ended; the report names the others."""
    return [record for record in records if isinstance(record.get("config"), dict) and record.get("status") in STATUSES]


def _shuffled(items: Sequence[str], seed: str) -> list[str]:
    return random.Random(seed).sample(sorted(items), len(items))
