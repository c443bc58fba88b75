"""The file of rows: one JSON line each, as record_file.py keeps them; safe against kills and two scorecards at once."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from harness import record_file
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
    record_file.append_line(record, folder / FILE_NAME)


def load(results_path: str | Path) -> list[Record]:
    """All rows of a results folder, oldest first; none where there is no file. Raises RecordError naming bad lines."""
    return record_file.load_lines(Path(results_path) / FILE_NAME, _parse)


def _parse(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON ({error}). Move this line to another file, or restore it") from error
    version = record.get("schema") if isinstance(record, dict) else None
    if type(version) is not int or version != SCHEMA:
        raise RecordError(f"{where}: schema {version!r} is unknown here; this suite reads [{SCHEMA}]")
    return dict(record)
