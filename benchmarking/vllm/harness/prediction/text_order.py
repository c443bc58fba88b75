"""Prompts in sorted order, and how long a prefix any two of them share, in bytes of UTF-8.

Daft and Ray sort strings by bytes, as done here. The prefix that two prompts share is the shortest one that any
neighbours between them share, so one array of neighbours answers for all pairs.
"""

import hashlib
from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from harness.prediction.compiled import Int32s, Int64s, compiled


class SortedPrompts(ABC):
    """`rows` in sorted order; `position` of each row in it; `length` in bytes of each prompt in sorted order."""

    def __init__(self, rows: Int32s, length: Int32s, shared_with_next: Int32s) -> None:
        self.rows, self.length = rows, length
        self.position: Int32s = np.empty_like(rows)
        self.position[rows] = np.arange(len(rows), dtype=np.int32)
        self._shortest = _range_minima(shared_with_next)
        shared = shared_with_next[: len(rows) - 1]
        # Rows whose prompt is another's, each set of equals less one.
        self.repeated = int(((shared == length[:-1]) & (shared == length[1:])).sum()) if len(rows) else 0

    def shared(self, first: Int64s, second: Int64s) -> Int32s:
        """Bytes that the prompts at positions first[i] < second[i] have in common."""
        level = np.frexp(second - first)[1] - 1  # the largest power of two not above the distance
        width = np.left_shift(1, level)
        smaller: Int32s = np.minimum(self._shortest[level, first], self._shortest[level, second - width])
        return smaller

    @abstractmethod
    def prefix_key(self, position: int, size: int) -> bytes:
        """Identifies the first `size` bytes of the prompt at a position: equal where the bytes are."""

    @abstractmethod
    def last_character(self, position: int, size: int) -> int:
        """Where the last character that begins within the first `size` bytes begins; 0 for no bytes."""


class TextOrder(SortedPrompts):
    """Of prompts whose texts are there."""

    def __init__(self, prompts: pa.Array) -> None:
        texts = prompts.cast(pa.large_string())
        rows: Int32s = pc.sort_indices(texts).to_numpy().astype(np.int32)
        buffers = texts.buffers()
        self._ends: Int64s = np.frombuffer(buffers[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        self._bytes = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.empty(0, np.uint8)
        length: Int32s = np.diff(self._ends).astype(np.int32)[rows]
        shared = _neighbours_share(self._bytes, self._ends, rows)
        super().__init__(rows, length, shared)

    def prefix_key(self, position: int, size: int) -> bytes:
        """Identifies the first `size` bytes of the prompt at a position: equal where the bytes are."""
        begin = self._ends[self.rows[position]]
        return hashlib.blake2b(self._bytes[begin : begin + size].tobytes(), digest_size=16).digest()

    def last_character(self, position: int, size: int) -> int:
        """Where the last character that begins within the first `size` bytes begins; 0 for no bytes."""
        begin = self._ends[self.rows[position]]
        at = max(size - 1, 0)
        while at and self._bytes[begin + at] & 0xC0 == 0x80:  # a continuation byte
            at -= 1
        return at


def _range_minima(values: Int32s) -> Int32s:
    """Level k holds at i the least of values[i : i + 2^k]; [levels, values]."""
    levels = [values]
    width = 1
    while 2 * width <= len(values):
        below = levels[-1]
        level = below.copy()
        level[:-width] = np.minimum(below[:-width], below[width:])
        levels.append(level)
        width *= 2
    return np.stack(levels)


@compiled
def _neighbours_share(text: "np.ndarray[tuple[int], np.dtype[np.uint8]]", ends: Int64s, rows: Int32s) -> Int32s:
    shares = np.zeros(max(len(rows) - 1, 1), np.int32)
    for i in range(len(rows) - 1):
        a, b = rows[i], rows[i + 1]
        most = min(ends[a + 1] - ends[a], ends[b + 1] - ends[b])
        count = 0
        while count < most and text[ends[a] + count] == text[ends[b] + count]:
            count += 1
        shares[i] = count
    return shares
