"""The dataset before any engine starts: is every row fit to be asked, and what is asked of the engines in all?

One policy for every strategy: a dataset with a bad row is refused as a whole. Left to themselves the strategies differ:
one fails, one waits for ever, one returns fewer rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from harness.data import dataset, storage
from harness.data.storage import StorageError
from harness.preflight import endpoint, prompt_tokens
from harness.preflight.deadline import within
from harness.preflight.problem import Problem
from harness.preflight.row_scan import Ints, Limit, RowScan

# A store that gives no rows for this long, in seconds, counts as unreachable.
READ_TIMEOUT_S = 20.0
COLUMNS = {"id": "whole numbers or text", "prompt": "text"}
STORE = "Set INPUT_PATH to a dataset that this machine can read, and S3_ENDPOINT_URL to its store if it is not AWS"


@dataclass(frozen=True)
class Workload:
    """What a run asks of its engines. `output_lengths`: one number for every row, or one for each of `ids`.
    `prompt_tokens`: of all prompts, as engines count them; None where that is not known without encoding them.
    `state`: of the dataset's files before they were read (dataset.state)."""

    ids: Any  # pa.Array
    files: int
    fingerprint: str
    prompt_bytes: int
    output_lengths: int | Ints
    prompt_tokens: int | None = None
    state: Any = None

    @property
    def rows(self) -> int:
        return len(self.ids)


def read(tokenizer: Any, limit: Limit, varying: bool) -> tuple[Workload | None, list[Problem]]:
    """One pass over config.INPUT_PATH: the workload, or None and what is wrong with it."""
    scan = RowScan(tokenizer, limit, varying)
    if silent := _silent_store():
        return None, [_unreadable(silent)]
    try:
        state = _state()
        # It takes long where every prompt is encoded.
        for batch in dataset.telling(_batches(), "preflight: {:,} rows checked"):
            if wrong := _wrong_types(batch, scan):
                return None, [wrong]
            scan.add(batch)
    except TimeoutError as error:
        return None, [_unreadable(f"{_where()}: {error}")]
    except StorageError as error:
        return None, [_unreadable(str(error))]
    except ValueError as error:
        # It was read, and is not what was expected; the store is not to blame.
        return None, [_unreadable(str(error), "Set INPUT_PATH to other files, or change these")]
    if not scan.rows:
        return None, [Problem("rows in INPUT_PATH", f"none in {config.INPUT_PATH}", "Set INPUT_PATH to a dataset")]
    problems = list(scan.problems())
    return (None if problems else replace(_workload(scan), state=state)), problems


def changed(asked: Workload) -> str | None:
    """That the dataset is not what preflight read any more: a strategy reads it later, and may have met either. None
    also where its files cannot be looked at, as a store that has gone away since."""
    try:
        if asked.state is None or _state() == asked.state:
            return None
    except (StorageError, TimeoutError):
        return None
    try:
        now = dataset.fingerprint(dataset.telling(_batches(), "changed dataset: {:,} rows read"))
    except (StorageError, TimeoutError, ValueError) as error:
        now = f"none ({error})"
    if now == asked.fingerprint:
        return None
    return (
        f"the dataset was changed during the run: expected fingerprint {asked.fingerprint}, found {now}. Run it again"
    )


def _state() -> list[tuple[str, int, int]]:
    return within(READ_TIMEOUT_S, lambda: dataset.state(config.INPUT_PATH))


def _workload(scan: RowScan) -> Workload:
    lengths = np.array(scan.output_lengths) if scan.varying else config.OUTPUT_LEN
    files = len(dataset.files(*storage.filesystem(config.INPUT_PATH)))
    fingerprint = dataset.fingerprint_of(scan.digest)
    tokens = scan.prompt_tokens if scan.varying else prompt_tokens.made(fingerprint, scan.tokenizer, scan.first_prompts)
    return Workload(pa.concat_arrays(scan.ids), files, fingerprint, scan.prompt_bytes, lengths, tokens)


def _batches() -> Iterator[pa.RecordBatch]:
    """The dataset's batches, each within its time."""
    batches = dataset.read_batches(config.INPUT_PATH, list(COLUMNS))
    while (batch := within(READ_TIMEOUT_S, lambda: next(batches, None))) is not None:
        yield batch


def _wrong_types(batch: pa.RecordBatch, scan: RowScan) -> Problem | None:
    ids, prompts = (batch.schema.field(name).type for name in COLUMNS)
    fits = (pa.types.is_integer(ids) or _is_text(ids)) and _is_text(prompts)
    if fits and (not scan.ids or scan.ids[0].type == ids):
        return _too_large(batch)
    expected = "the columns " + " and ".join(f"{name} ({kind})" for name, kind in COLUMNS.items())
    found = f"id of type {ids} and prompt of type {prompts}"
    if fits:
        # Large text beside text.
        expected, found = f"ids of type {scan.ids[0].type} in every file", f"{ids} from row {scan.rows} on"
    return Problem(expected, found, "Set INPUT_PATH to a dataset with these columns, or convert them")


def _too_large(batch: pa.RecordBatch) -> Problem | None:
    """Ray Data's rows are Python's, of which Arrow takes whole numbers below 2^63 alone, once all is generated."""
    if not pa.types.is_uint64(batch.schema.field("id").type):
        return None
    largest = pc.max(batch["id"]).as_py() or 0
    return Problem("ids below 2^63", f"{largest}", "Make the ids text, or smaller") if largest >= 2**63 else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _silent_store() -> str | None:
    if config.S3_ENDPOINT_URL is None or not config.INPUT_PATH.startswith("s3://"):
        return None
    # pyarrow's S3 client takes no proxy from the environment.
    reason = endpoint.silence(config.S3_ENDPOINT_URL, through_proxy=False)
    return f"{_where()}: {reason}" if reason else None


def _where() -> str:
    return f"{config.INPUT_PATH} at endpoint {config.S3_ENDPOINT_URL or 'AWS'}"


def _unreadable(found: str, change: str = STORE) -> Problem:
    return Problem("Parquet files with the columns " + " and ".join(COLUMNS), found, change)
