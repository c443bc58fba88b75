"""The prompts of any Parquet file or folder, local or S3, whatever its columns are called; what is unusable is counted.

The suite's own runs refuse nulls, blanks and repeated ids before an engine starts. Here all are reported, and prompts
that are null or blank left out, so that a first look at a dataset does not stop at its first flaw.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from harness.data import dataset, storage


class PromptColumn(NamedTuple):
    """Usable prompts in order of file name and row."""

    texts: pa.Array  # large_string, no nulls, no blanks
    fingerprint: str  # as in records: of ids and prompts, whatever their order
    content_key: str  # of the prompts in this order
    files: int
    empty_files: int
    null_prompts: int
    blank_prompts: int
    file_rows: list[int]  # usable rows of each file that has rows
    null_ids: int  # rows without an id, which runs refuse; 0 where there is no such column
    repeated_ids: int  # ids of more than one row, usable or not, which runs refuse


def read(url: str | Path, prompt_column: str = "prompt", id_column: str | None = "id") -> PromptColumn:
    """Reads all prompts into memory. Without an id column, row numbers count as ids.

    Raises StorageError if there is nothing to read, ValueError for a missing column or one that is not text.
    """
    column = _usable(*_read(url, prompt_column, id_column), has_ids=id_column is not None)
    # What reading took beside the texts goes back to the system now, not when the allocator sees fit.
    pa.default_memory_pool().release_unused()
    return column


def _read(url: str | Path, prompt_column: str, id_column: str | None) -> tuple[pa.Table, list[int]]:
    """Columns `id` and `prompt` of all files, and the rows of each file."""
    fs, path = storage.filesystem(url)
    try:
        files = dataset.files(fs, path)
        tables = [_read_file(fs, file, prompt_column, id_column) for file in files]
    except (OSError, pa.ArrowInvalid) as error:
        raise storage.failure(url, error) from None
    schema = pa.schema([("id", pa.string()), ("prompt", pa.large_string())])
    filled = [table for table in tables if table is not None]
    rows = [0 if table is None else table.num_rows for table in tables]
    return pa.concat_tables([schema.empty_table(), *filled]), rows


def _read_file(fs: pafs.FileSystem, file: str, prompt_column: str, id_column: str | None) -> pa.Table | None:
    """Columns `id` and `prompt` of one file; None for a file of no bytes."""
    if fs.get_file_info(file).size == 0:
        return None
    with fs.open_input_file(file) as source:
        parquet = pq.ParquetFile(source, pre_buffer=True)
        columns = [column for column in (prompt_column, id_column) if column is not None]
        missing = [column for column in columns if column not in parquet.schema_arrow.names]
        if missing:
            raise ValueError(
                f"{file}: expected columns {columns}, found {parquet.schema_arrow.names}. "
                "Name others with --column and --id-column, or --no-id"
            )
        table = parquet.read(columns=columns)
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file}: expected text in UTF-8, found other bytes ({error}). Repair the file") from None
    prompts = table.column(prompt_column)
    if not (pa.types.is_string(prompts.type) or pa.types.is_large_string(prompts.type)):
        found = f"expected text in column {prompt_column!r}, found {prompts.type}"
        raise ValueError(f"{file}: {found}. Name another with --column, or convert it")
    ids = pa.chunked_array([pa.nulls(table.num_rows, pa.string())]) if id_column is None else table.column(id_column)
    return pa.table({"id": ids.cast(pa.string()), "prompt": prompts.cast(pa.large_string())})


def _usable(table: pa.Table, rows: list[int], has_ids: bool) -> PromptColumn:
    prompts = table.column("prompt")
    filled = pc.is_valid(prompts)
    text = pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(prompts)), 0), False)
    nulls = table.num_rows - (pc.sum(filled).as_py() or 0)
    # Texts are most of the memory of a forecast: no copy but the one that makes them contiguous.
    usable = table if pc.all(text).as_py() else table.filter(text)
    blanks = table.num_rows - nulls - usable.num_rows
    fingerprint = _fingerprint(usable)
    texts = pa.concat_arrays(usable.column("prompt").chunks or [pa.array([], pa.large_string())])
    kept = np.split(text.to_numpy(), np.cumsum([count for count in rows if count])[:-1])
    return PromptColumn(
        texts,
        fingerprint,
        _content_key(texts),
        len(rows),
        rows.count(0),
        nulls,
        blanks,
        [int(file.sum()) for file in kept],
        table.column("id").null_count if has_ids else 0,
        _repeated(table.column("id")),
    )


def _repeated(ids: pa.ChunkedArray) -> int:
    return int((ids.drop_null().value_counts().field("counts").to_numpy() > 1).sum())


def _fingerprint(table: pa.Table) -> str:
    numbers = pa.array(range(table.num_rows), pa.int64()).cast(pa.string())
    ids = pc.if_else(pc.is_valid(table.column("id")), table.column("id"), numbers)
    batches = table.set_column(0, "id", ids).to_batches(max_chunksize=4096)
    return dataset.fingerprint_of(sum(map(_digest, batches)))


def _digest(batch: pa.RecordBatch) -> int:
    return dataset.batch_digest(batch.cast(pa.schema([("id", pa.string()), ("prompt", pa.string())])))


def _content_key(texts: pa.Array) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for i in range(0, len(texts), 4096):
        chunk = pa.concat_arrays([texts.slice(i, 4096)])  # a copy, whose offsets begin at 0
        for buffer in chunk.buffers()[1:]:
            digest.update(buffer or b"")
    return digest.hexdigest()
