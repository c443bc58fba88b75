"""What of a dataset its engines and routers react to, in a small file: which rows share which blocks, and their order.

The texts stay out, so that a reader checks committed figures without the dataset and its tokenizer.

    write(path, dataset)
    dataset = read(path, files)

Columns, one row a prompt in the dataset's order: `tokens`, `outputs` (tokens that it generates), `blocks` (numbers,
equal where whole prefixes are), `position` (in sorted order), `bytes` of its text, and `shared_bytes` with the next
prompt in sorted order.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness.prediction.compiled import Int32s
from harness.prediction.engine_state import Prompts
from harness.prediction.feeding import Dataset
from harness.prediction.text_order import SortedPrompts


def write(path: Path, dataset: Dataset) -> None:
    prompts, order = dataset.prompts, dataset.order
    by_row = np.argsort(order.rows)
    pairs = np.arange(len(order.rows) - 1)
    shared = np.append(order.shared(pairs, pairs + 1), 0).astype(np.int32)
    table = pa.table(
        {
            "tokens": prompts.tokens,
            "outputs": prompts.outputs,
            "blocks": pa.ListArray.from_arrays(pa.array(prompts.first_block, pa.int32()), pa.array(prompts.block_ids)),
            "position": order.position,
            "bytes": order.length[by_row],
            "shared_bytes": shared[by_row],
        },
    ).replace_schema_metadata({"block_size": str(prompts.block_size)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def read(path: Path, files: int) -> Dataset:
    """The dataset as it lies in so many files of equal size."""
    table = pq.read_table(path).combine_chunks()
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "blocks"}
    blocks = table["blocks"].chunk(0)
    ids: Int32s = blocks.values.to_numpy()
    prompts = Prompts(
        tokens=columns["tokens"],
        outputs=columns["outputs"],
        first_block=blocks.offsets.to_numpy().astype(np.int64),
        block_ids=ids,
        distinct=int(ids.max(initial=-1)) + 1,
        block_size=int(table.schema.metadata[b"block_size"]),
    )
    return Dataset(prompts, _order(columns), [len(part) for part in np.array_split(columns["tokens"], files)])


def _order(columns: dict[str, Int32s]) -> "StoredOrder":
    rows = np.argsort(columns["position"]).astype(np.int32)
    return StoredOrder(rows, columns["bytes"][rows], columns["shared_bytes"][rows][:-1])


class StoredOrder(SortedPrompts):
    """Prompts in sorted order, of which only the lengths are known. Each character is taken for one byte."""

    def prefix_key(self, position: int, size: int) -> bytes:
        """Equal for two prompts where their first `size` bytes are: named by the first prompt that begins so."""
        first = position
        while first and int(self.shared(np.array([first - 1]), np.array([position]))[0]) >= size:
            first -= 1
        return f"{first}:{size}".encode()

    def last_character(self, _position: int, size: int) -> int:
        return max(size - 1, 0)
