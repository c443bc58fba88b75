"""Finished rows: made text in Ray tasks, kept on disk as they come, handed over as one table at the end.

On disk means a file of this machine, so that the driver's memory does not grow with the dataset. Where the user wants
the answers (OUTPUT_PATH) they are also kept there as Parquet parts until the run's own file is written; a run that is
killed before that is continued by the next one that is asked for the same.
"""

import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from harness import continuity
from harness.planning import text
from harness.planning.engine_actor import Rows
from harness.planning.parts import Parts

ROWS_A_PART = 8192


class Answers:
    """`done`: ids that an earlier run has answered."""

    def __init__(self) -> None:
        self._decode = ray.remote(text.decode)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (a name-less file, gone with this process)
        self._sink: Any = None
        # One thread, so that batches are written one after the other while the engines run.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._written: list[Future[None]] = []
        self._ids: list[Any] = []
        self._rows: list[Rows] = []
        self._flushed_at = time.monotonic()
        self._parts = Parts.open()
        self.done = self._take_over()

    def add(self, ids: pa.Array, rows: Rows) -> None:
        """Rows that have ended: their ids, and their output tokens."""
        if len(ids):
            self._ids.append(ids)
            self._rows.append(rows)

    def flush(self, at_once: bool = False) -> None:
        """Sends what was added on its way, if there is enough of it or it has waited long enough."""
        rows = sum(len(ids) for ids in self._ids)
        waited = time.monotonic() - self._flushed_at
        if rows and (at_once or rows >= ROWS_A_PART or waited >= config.PLANNED_PART_S):
            tokens = np.concatenate([rows.tokens for rows in self._rows])
            lengths = np.concatenate([rows.lengths for rows in self._rows])
            output = self._decode.remote(tokens, lengths)
            self._written.append(self._writer.submit(self._write, pa.concat_arrays(self._ids), output, lengths))
            self._ids, self._rows, self._flushed_at = [], [], time.monotonic()
        for written in [future for future in self._written if future.done()]:
            written.result()
            self._written.remove(written)

    def table(self) -> pa.Table:
        """All answers: `id`, `output`, `output_tokens`."""
        self.flush(at_once=True)
        for written in self._written:
            written.result()
        self._writer.shutdown()
        if self._sink is None:
            return pa.table({"id": [], "output": [], "output_tokens": []})
        self._sink.close()
        self._file.flush()
        # The table is a view of the file, which is there as long as somebody looks at it.
        table: pa.Table = pa.ipc.open_stream(pa.memory_map(f"/proc/self/fd/{self._file.fileno()}")).read_all()
        return table

    def _write(self, ids: pa.Array, output: Any, lengths: Any) -> None:
        columns = {"id": ids, "output": ray.get(output), "output_tokens": pa.array(lengths)}
        batch = pa.record_batch(columns)
        if self._parts:
            self._parts.write(batch)
        self._spool(batch)

    def _spool(self, batch: pa.RecordBatch) -> None:
        if self._sink is None:
            self._sink = pa.ipc.new_stream(self._file, batch.schema)
        self._sink.write_batch(batch)

    def _take_over(self) -> pa.Array:
        """The answers of an earlier run, if it was killed."""
        if self._parts is None:
            return pa.array([], pa.int64())
        continuity.current.answers_written = self._parts.discard
        taken: list[pa.Array] = []
        for part in self._parts.read():
            for batch in part.to_batches():
                self._spool(batch)
            taken += part["id"].chunks
            continuity.current.continued_rows += len(part)
            continuity.current.continued_tokens += pc.sum(part["output_tokens"]).as_py() or 0
        if rows := continuity.current.continued_rows:
            print(f"continues an earlier run that was killed: {rows:,} rows are answered", file=sys.stderr)
        return pa.concat_arrays(taken) if taken else pa.array([], pa.int64())
