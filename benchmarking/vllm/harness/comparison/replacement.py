"""Whether the datasets of a comparison that is continued are still those that its runs measured.

A path may hold other data by now. Runs of both would count as trials of one comparison, and one that is finished would
have nothing left to do.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from harness import schema
from harness.comparison.comparability import dataset_difference
from harness.data import dataset, storage
from harness.preflight.problem import Problem
from harness.records import portable
from harness.schema import Record


def problems(paths: Sequence[str], done: Sequence[Record]) -> Iterator[Problem]:
    """One for each of `paths` that holds other data than runs of the comparison measured, which are `done`."""
    known = [run for run in done if not schema.problems(run) and run["dataset"]]
    for path in paths:
        measured = [run for run in known if run["config"]["INPUT_PATH"] == portable(path)]
        if measured and (now := _now(path)):
            differences = [found for run in measured if (found := dataset_difference(run, now))]
            if differences:
                yield _replaced(path, len(differences), differences[-1])


def _replaced(path: str, runs: int, difference: list[str]) -> Problem:
    return Problem(
        f"in {path} the dataset that finished runs of this comparison measured ({runs})",
        f"another one ({'; '.join(difference)}, then and now)",
        "To continue, put that one back; --new begins a comparison of this one. --report shows those runs, which stay "
        "results of their dataset",
    )


def _now(path: str) -> dict[str, Any] | None:
    """What a run would record of the dataset; None where it cannot be read, which runs that are left say in full."""
    print(f"reading {path}, to see whether it still holds what was measured", file=sys.stderr)
    try:
        batches = dataset.read_batches(path, ["id", "prompt"])
        fingerprint = dataset.fingerprint(dataset.telling(batches, "{:,} rows read"))
        files = len(dataset.files(*storage.filesystem(path)))
    except (storage.StorageError, ValueError, TypeError, pa.ArrowException) as error:
        print(f"whether it does is not known: {error}", file=sys.stderr)
        return None
    return {"config": {}, "dataset": {"name": portable(path), "fingerprint": fingerprint, "files": files}}
