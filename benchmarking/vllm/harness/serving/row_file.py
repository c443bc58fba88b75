"""The file of rows: one JSON line each, append-only; safe with two scorecards at once."""

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from harness.record_file import RecordError
from harness.serving.row_record import SCHEMA, Record

FILE_NAME = "serving.jsonl"
REQUESTS_FOLDER = "serving"


def append(record: Record, requests: Sequence[dict[str, Any]], results_path: str | Path) -> None:
    """The row as one line, on disk on return; its requests as a Parquet file beside."""
    folder = Path(results_path)
    folder.mkdir(parents=True, exist_ok=True)
    if requests:
        (folder / REQUESTS_FOLDER).mkdir(exist_ok=True)
        table = pa.Table.from_pylist(list(requests))
        pq.write_table(table, folder / REQUESTS_FOLDER / f"{record['row_id']}.parquet", compression="zstd")
    line = (json.dumps(record, allow_nan=False) + "\n").encode()
    with (folder / FILE_NAME).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Half a line that a kill left must not swallow this one.
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            file.write(b"\n")
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def load(results_path: str | Path) -> list[Record]:
    """All rows of a results folder, oldest first; none where there is no file. Raises RecordError naming bad lines."""
    path = Path(results_path) / FILE_NAME
    lines = path.read_bytes().splitlines() if path.exists() else []
    found, wrong = [], []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_parse(line, f"{path}:{number}"))
        except RecordError as error:
            wrong.append(str(error))
    if wrong:
        raise RecordError("\n".join(wrong))
    return found


def _parse(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON ({error}). Move this line to another file, or restore it") from error
    version = record.get("schema") if isinstance(record, dict) else None
    if type(version) is not int or version != SCHEMA:
        raise RecordError(f"{where}: schema {version!r} is unknown here; this suite reads [{SCHEMA}]")
    return dict(record)
