"""A stretch of the dataset that is planned as a whole: rows in order of their token ids, and what each costs.

In that order rows that share a prefix are neighbours, and so are those that share more of it; a row's shared blocks
are those that it has in common with the row before it. Blocks are vLLM's: full ones only, and the last token of a
prompt is always computed.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# Rows compared with their neighbours at a time, so that the driver's other threads get their turn in between.
CHUNK = 8192
# The first window's part of a full one's tokens.
FIRST_WINDOW = 1 / 16


class Tokenized(NamedTuple):
    """Rows as they were read."""

    ids: Any  # pa.Array
    tokens: Int32s  # of all rows, end to end
    lengths: Int64s  # [rows]


@dataclass(frozen=True)
class Window:
    """Planned rows; a place is a row's index in the planned order."""

    number: int
    ids: Any  # [rows] pa.Array
    tokens: Int32s  # of all rows, end to end, as they were read
    begins: Int64s  # [rows] where each row's tokens begin
    lengths: Int64s  # [rows]
    shared: Int64s  # [rows] full blocks in common with the row before; 0 where a group begins
    groups: Int64s  # places where groups begin: rows of a group share at least a block, each with the one before
    work: Int64s  # [rows + 1] tokens to compute and to generate in all rows before a place

    def __len__(self) -> int:
        return len(self.lengths)

    def prompt(self, place: int) -> Int32s:
        begin = self.begins[place]
        return self.tokens[begin : begin + self.lengths[place]]


def window_tokens(number: int, most: int) -> int:
    """Tokens of the window of this number, counted from 0, at least: a 16th of `most` in the first, then twice as many
    in each, so that engines do not wait for a hundred million tokens to be tokenised."""
    # Beyond 2**1023, which a small window and millions of rows reach, no float holds the power.
    return int(most * min(FIRST_WINDOW * 2 ** min(number, 64), 1))


def plan(number: int, rows: Tokenized, block_size: int, output_tokens: int) -> Window:
    """Sorts rows by token ids, equal ones by their order in the dataset. `output_tokens`: expected of each row."""
    starts = np.concatenate([[0], np.cumsum(rows.lengths)])
    order = _sorted(rows.tokens, starts)
    begins, lengths = starts[:-1][order], rows.lengths[order]
    shared = shared_blocks(rows.tokens, begins, lengths, block_size)
    work = np.concatenate([[0], np.cumsum(lengths - shared * block_size + output_tokens)])
    groups = np.flatnonzero(shared == 0)
    return Window(number, rows.ids.take(pa.array(order)), rows.tokens, begins, lengths, shared, groups, work)


def _sorted(tokens: Int32s, starts: Int64s) -> Int64s:
    """Order of the rows by token ids: big-endian bytes compare as the numbers do."""
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts) - 1, [None, pa.py_buffer(starts * 4), pa.py_buffer(tokens.astype(">i4"))]
    )
    order: Int64s = pc.sort_indices(texts).to_numpy().astype(np.int64)
    return order


def shared_blocks(tokens: Int32s, begins: Int64s, lengths: Int64s, block_size: int) -> Int64s:
    """Blocks that each row finds computed by the row before it; 0 for the first."""
    shared = np.zeros(len(lengths), np.int64)
    for start in range(1, len(lengths), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(lengths)))
        shared[rows] = _common(tokens, begins[rows - 1], begins[rows], _most(lengths, rows, block_size), block_size)
    return shared


def _most(lengths: Int64s, rows: Int64s, block_size: int) -> Int64s:
    """Blocks that can be shared at most: the row before has them full, this one still has a token to compute."""
    most: Int64s = np.minimum(lengths[rows - 1] // block_size, (lengths[rows] - 1) // block_size)
    return most


def _common(tokens: Int32s, a: Int64s, b: Int64s, most: Int64s, block_size: int) -> Int64s:
    """Leading blocks in which the rows that begin at `a` and at `b` agree, block by block while any pair still does."""
    common = np.zeros(len(a), np.int64)
    pairs = np.flatnonzero(most > 0)
    while len(pairs):
        offsets = common[pairs, None] * block_size + np.arange(block_size)
        equal = (tokens[a[pairs, None] + offsets] == tokens[b[pairs, None] + offsets]).all(axis=1)
        pairs = pairs[equal]
        common[pairs] += 1
        pairs = pairs[common[pairs] < most[pairs]]
    return common
