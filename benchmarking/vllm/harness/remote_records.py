"""Records on S3, for runs whose driver has no folder that outlives it (a Ray job, a Kubernetes pod).

    python -m harness.remote_records s3://bucket/results      # appends those that are not yet in RESULTS_PATH

S3 cannot append, so each run is two objects of its own, which no other run ever touches: `records/<run_id>.json` and
`timeseries/<run_id>.parquet`. Fetched, they are lines and files as of a run on this machine.
"""

import json
import sys
from pathlib import Path
from typing import Any

import config
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from harness import record_file, stdout
from harness.data import storage
from harness.schema import Record


def is_remote(results_path: str | Path) -> bool:
    return "://" in str(results_path)


def put(record: Record, series: list[dict[str, Any]], url: str) -> str:
    """Writes one run's objects under `url` and returns the record's. Raises OSError or StorageError."""
    files, folder = storage.filesystem(url)
    if series:
        table = pa.Table.from_pylist(series)
        pq.write_table(table, f"{folder}/timeseries/{record['run_id']}.parquet", filesystem=files, compression="zstd")
    path = f"{folder}/records/{record['run_id']}.json"
    with files.open_output_stream(path) as stream:
        stream.write(json.dumps(record, allow_nan=False).encode())
    return f"s3://{path}"


def fetch(url: str, results_path: Path) -> tuple[int, int]:
    """Appends the records under `url` that are not in `results_path`, oldest first; (new ones, all there).

    Raises StorageError, or RecordError for an object that is no record; nothing is appended then.
    """
    files, folder = storage.filesystem(url)
    try:
        if files.get_file_info(folder.split("/")[0]).type == pafs.FileType.NotFound:
            raise OSError("no such bucket")
        found = files.get_file_info(pafs.FileSelector(f"{folder}/records", allow_not_found=True))
        lines = {info.path: files.open_input_stream(info.path).read() for info in found if info.is_file}
    except OSError as error:
        raise storage.failure(url, error) from None
    records = [_parsed(line, f"s3://{path}") for path, line in lines.items()]
    known = {record["run_id"] for record in record_file.load(results_path)}
    new = sorted((record for record in records if record["run_id"] not in known), key=lambda each: each["started_at"])
    for record in new:
        _fetch_series(files, f"{folder}/timeseries/{record['run_id']}.parquet", results_path / "timeseries")
        record_file.append(record, results_path)
    return len(new), len(records)


def _parsed(line: bytes, where: str) -> Record:
    """The whole record is for `compare.py --check`; here it needs a name and a time."""
    record = record_file.parse(line, where)
    if not all(isinstance(record.get(key), str) for key in ("run_id", "started_at")):
        raise record_file.RecordError(f"{where}: expected a record with run_id and started_at. Move it elsewhere")
    return record


def _fetch_series(files: pafs.FileSystem, path: str, folder: Path) -> None:
    """The samples of a run; one without an engine has none."""
    if files.get_file_info(path).is_file:
        folder.mkdir(parents=True, exist_ok=True)
        pafs.copy_files(path, str(folder / Path(path).name), source_filesystem=files)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not is_remote(arguments[0]) or is_remote(config.RESULTS_PATH):
        print("expected s3://bucket/results, and a local RESULTS_PATH to append to; " + str(__doc__), file=sys.stderr)
        return 2
    try:
        new, there = fetch(arguments[0], Path(config.RESULTS_PATH))
    except (storage.StorageError, record_file.RecordError) as error:
        print(error, file=sys.stderr)
        return 1
    if not there:
        expected = f"{arguments[0].rstrip('/')}/records"
        print(f"expected records under {expected}, found none. Give the RESULTS_PATH of the runs", file=sys.stderr)
        return 1
    print(f"{new} new of {there} records, appended to {Path(config.RESULTS_PATH) / record_file.FILE_NAME}")
    return 0


if __name__ == "__main__":
    stdout.exit_after(lambda: main(sys.argv[1:]))
