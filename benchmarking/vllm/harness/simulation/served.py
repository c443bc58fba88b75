"""How many rows each instant engine answered, and when.

A file an engine in the folder INSTANT_ENGINES, written in place, so that nothing is lost when the process is killed.
"""

import os
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np

# 20 minutes in steps of 50 ms, from the time that the folder's name ends in.
STEP_S, STEPS = 0.05, 24_000
FOLDER = "INSTANT_ENGINES"


class Served:
    def __init__(self) -> None:
        folder = Path(os.environ[FOLDER])
        self._began_s = float(folder.name)
        self._counts = np.memmap(folder / uuid.uuid4().hex, np.int32, "w+", shape=(STEPS,))
        # Ready: the step before the first with rows, should there never be any.
        self._counts[self._step()] = -1

    def count(self, rows: int) -> None:
        step = self._step()
        self._counts[step] = max(int(self._counts[step]), 0) + rows

    def _step(self) -> int:
        return int((time.time() - self._began_s) / STEP_S)


class Summary(NamedTuple):
    """Seconds since the folder was made."""

    engines: int
    ready_s: float  # the last engine
    last_row_s: float
    rows: int
    rows_after_ready: int


def summary(folder: Path) -> Summary:
    """What all engines answered. Raises ValueError if none was built."""
    files = sorted(folder.iterdir())
    if not files:
        raise ValueError(f"{folder}: expected a file of each engine, found none; were the engines built elsewhere?")
    counts = np.array([np.fromfile(file, np.int32) for file in files])
    ready = int(max(np.flatnonzero(row)[0] for row in counts))
    rows = np.maximum(counts, 0).sum(axis=0)
    return Summary(
        engines=len(files),
        ready_s=ready * STEP_S,
        last_row_s=(int(np.flatnonzero(rows)[-1]) + 1) * STEP_S,
        rows=int(rows.sum()),
        rows_after_ready=int(rows[ready:].sum()),
    )
