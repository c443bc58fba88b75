"""Datasets as readers see them: Parquet files with the columns `id` and `prompt`, in a folder or alone, local or S3.

A set made by generator.py has a manifest beside its folder: `200k_0-5_512.manifest.json`. Beside, not inside, because
Daft 0.7.26 takes every file of a folder for Parquet.
"""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import config
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from harness.data import storage

Manifest = dict[str, Any]
PATTERN = "*?[]{}\\"
# Arrow's types that Daft 0.7.26 does not know: it reads no column of a file with one of them.
VIEWS = ("string_view", "binary_view", "list_view", "large_list_view")
UNKNOWN_TO_DAFT = ("time32", "decimal32", "decimal64", "decimal256", *VIEWS)


def read_batches(url: str | Path, columns: list[str], rows: int = 4096) -> Iterator[pa.RecordBatch]:
    """Streams batches of at most `rows` rows of `columns`, in order of file name and row.

    Raises StorageError if there is nothing to read, and ValueError if a column is missing or there twice, has other
    types in other files, or if not every strategy's reader takes the same files for data and can read them.
    """
    fs, path = storage.filesystem(url)
    where, first = str(url), pa.schema([])
    try:
        _refuse_ambiguous(fs, path)
        for file in files(fs, path):
            where = f"{url} (file {Path(file).name})"
            with fs.open_input_file(file) as source:
                parquet = pq.ParquetFile(source, pre_buffer=True)
                names = parquet.schema_arrow.names
                if any(names.count(column) != 1 for column in columns):
                    raise ValueError(f"{where}: expected columns {columns}, found {names}")
                _refuse_unknown_to_daft(parquet.schema_arrow, where)
                first = first or parquet.schema_arrow
                _refuse_other_types(first, parquet.schema_arrow, columns, where)
                yield from parquet.iter_batches(rows, columns=columns)
    except (OSError, pa.ArrowInvalid) as error:
        raise storage.failure(where, error) from None


def telling(batches: Iterable[pa.RecordBatch], how_far: str) -> Iterator[pa.RecordBatch]:
    """`batches`; says on stderr how many rows are done, as `how_far` puts it, where that takes long."""
    rows, said = 0, time.monotonic()
    for batch in batches:
        yield batch
        rows += len(batch)
        if time.monotonic() - said > config.PROGRESS_INTERVAL_S:
            said = time.monotonic()
            print(how_far.format(rows), file=sys.stderr, flush=True)


def schema(url: str | Path, columns: Sequence[str] = ("id", "prompt")) -> pa.Schema:
    """The types of `columns` in the first file; for a dataset that preflight has read, those in every file."""
    fs, path = storage.filesystem(url)
    with fs.open_input_file(files(fs, path)[0]) as source:
        found = pq.read_schema(source)
    return pa.schema([found.field(name) for name in columns])


def files(fs: pafs.FileSystem, path: str) -> list[str]:
    """Data files at `path`, itself a file or a folder, sorted; a leading dot or underscore marks other files.

    Raises FileNotFoundError if there are none.
    """
    return [info.path for info in _listed(fs, path)]


def _listed(fs: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """One listing, also of thousands of files: on S3 each look at a single one is a request."""
    alone = fs.get_file_info(path)
    if alone.type == pafs.FileType.File:
        return [alone]
    inside = fs.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    found = [info for info in inside if info.type == pafs.FileType.File and info.base_name[0] not in "._"]
    if not found:
        raise FileNotFoundError(
            "expected Parquet files, found none; correct the path, or make them with generate_data.ipynb"
        )
    return sorted(found, key=lambda info: str(info.path))


def state(url: str | Path) -> list[tuple[str, int, int]]:
    """Name, bytes and time of the last change (ns) of each data file; equal where nobody wrote to them meanwhile.

    Raises StorageError where there is nothing to look at.
    """
    fs, path = storage.filesystem(url)
    try:
        return [(info.path, info.size, info.mtime_ns) for info in _listed(fs, path)]
    except OSError as error:
        raise storage.failure(url, error) from None


def _refuse_ambiguous(fs: pafs.FileSystem, path: str) -> None:
    """Raises ValueError for files that only some readers take for data, or the strategies would do unequal work:
    Daft 0.7.26 does not look into folders in a folder, and reads _x.parquet; Ray Data 2.58 does the opposite."""
    if found := [character for character in PATTERN if character in path]:
        raise ValueError(
            f"{path}: expected a path without {' '.join(found)}, which Daft takes for a pattern: it reads other files "
            "or none. Rename the file or folder"
        )
    if fs.get_file_info(path).type == pafs.FileType.File:
        _refuse_other_names(PurePath(path).name, path)
        return
    folder = path.rstrip("/")
    if isinstance(fs, pafs.LocalFileSystem):
        _refuse_loose_ends(folder)
    for info in fs.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True)):
        nested = info.base_name[0] not in "._" and info.path.rpartition("/")[0] != folder
        underscored = info.base_name[0] == "_" and info.extension == "parquet"
        if info.type == pafs.FileType.File and (nested or underscored):
            raise ValueError(
                f"{info.path}: expected Parquet files in one folder, without a leading underscore; Daft and Ray Data "
                "do not both read this one. Move it into the folder under another name, or away"
            )
        if info.type == pafs.FileType.File and info.base_name[0] not in "._":
            _refuse_other_names(info.base_name, info.path)


def _refuse_other_names(name: str, path: str) -> None:
    """Raises ValueError for a file that Daft reads and Ray Data 2.59 leaves out for its name."""
    if not name.lower().endswith(".parquet"):
        raise ValueError(
            f"{path}: expected a name that ends in .parquet; Ray Data reads no other. Rename it, or move it"
        )


def _refuse_loose_ends(folder: str) -> None:
    """Raises ValueError for a link to nothing, hidden or not, or a pipe or socket: Arrow skips it, Daft fails on it."""
    for entry in os.scandir(folder) if Path(folder).is_dir() else ():
        if not (entry.is_file() or entry.is_dir()):
            raise ValueError(
                f"{entry.path}: expected files alone, found a link to nothing or a special file, on which Daft fails. "
                "Move it away"
            )


def _refuse_other_types(first: pa.Schema, this: pa.Schema, columns: list[str], where: str) -> None:
    """Raises ValueError where a file's types are not those of the first one. Also for a file without rows: Daft 0.7.26
    reads all files as the last one says, and makes nulls of what does not fit; Ray Data 2.59 makes floats of ids."""
    expected, found = ([_type_name(schema.field(name)) for name in columns] for schema in (first, this))
    if expected != found:
        raise ValueError(
            f"{where}: expected {columns} of types {expected} as in the first file, found {found}. Convert one of the "
            "two, or move one that has no rows away"
        )


def _refuse_unknown_to_daft(schema: pa.Schema, where: str) -> None:
    """Raises ValueError for a column that ends Daft's strategies, minutes later, though none of them uses it."""
    for field in schema:
        if any(re.split(r"[\[(<]", str(kind))[0] in UNKNOWN_TO_DAFT for kind in _kinds(field.type)):
            raise ValueError(
                f"{where}: expected columns of types that Daft 0.7.26 knows, used or not, found {field.name} of type "
                f"{field.type}. Drop that column from the files, or convert it"
            )


def _kinds(kind: Any) -> Iterator[Any]:
    """A type and those within it."""
    yield kind
    for i in range(kind.num_fields):
        yield from _kinds(kind.field(i).type)


def _type_name(field: Any) -> str:
    """Readers take both kinds of text for the same."""
    return str(field.type).removeprefix("large_")


def fingerprint(batches: Iterable[pa.RecordBatch]) -> str:
    """32 hex digits over all ids and prompts, from batches that hold `id` and `prompt` without nulls.

    A row's digest is BLAKE2b-128 of its id in decimal, a zero byte and its prompt in UTF-8; the fingerprint is their
    sum modulo 2^128. So it depends neither on the order of the rows nor on files or encoding; a doubled row changes it.
    """
    return fingerprint_of(sum(map(batch_digest, batches)))


def fingerprint_of(digest: int) -> str:
    """The fingerprint of rows whose `batch_digest`s add up to `digest`."""
    return f"{digest % 2**128:032x}"


def batch_digest(batch: pa.RecordBatch) -> int:
    """The sum of a batch's row digests, for callers that do other things in the same pass."""
    ids, texts = (batch.column(name).cast(pa.string()) for name in ("id", "prompt"))
    rows = pc.binary_join_element_wise(ids, texts, "\0").cast(pa.binary())
    return sum(int.from_bytes(hashlib.blake2b(row, digest_size=16).digest(), "big") for row in rows.to_pylist())


def read_manifest(url: str | Path) -> Manifest | None:
    """The manifest beside the dataset at `url`; None for data from elsewhere."""
    fs, path = storage.filesystem(url)
    try:
        if fs.get_file_info(manifest_path(path)).type != pafs.FileType.File:
            return None
        with fs.open_input_stream(manifest_path(path)) as stream:
            manifest: Manifest = json.loads(stream.read())
    except (OSError, ValueError) as error:
        raise storage.failure(f"{url} (manifest)", error) from None
    return manifest


def manifest_path(path: str) -> str:
    return path.removesuffix(".parquet") + ".manifest.json"
