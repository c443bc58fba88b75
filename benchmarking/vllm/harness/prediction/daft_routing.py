"""Which engine gets which rows from Daft 0.7.26's provider: its buckets and its router, with their faults.

Read from `src/daft-local-execution/src/streaming_sink/vllm.rs` and `daft/execution/vllm.py`, and checked against the
installed Daft by test. One partition: with more Daft 0.7.26 loses rows.

Buckets. Rows arrive in morsels of `batch_size` into a buffer. Whenever it holds more than `max_buffer_size`, it is
sorted and cut between neighbours that share less than `prefix_match_threshold` of either one's bytes. The largest
buckets go first, each with the prefix that all its prompts share less the last character, until the buffer is small
enough; those below `min_bucket_size` are joined until large enough and go without a prefix. At the end the whole buffer
goes.

Router. Loads count rows ever sent and never fall. A known prefix goes to the engine that saw it most recently among
those less than `load_balance_threshold` rows ahead of the least loaded; an unknown one to the last such engine; rows
without a prefix to the least loaded. Each engine remembers eight prefixes, which are compared as whole strings.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from harness.prediction.compiled import Int32s, Int64s
from harness.prediction.text_order import SortedPrompts

REMEMBERED_PREFIXES = 8


class Submission(NamedTuple):
    """Rows that are sent together; `prefix` identifies the text that Daft takes for their prefix."""

    prefix: bytes | None
    rows: Int32s


def in_batches(rows: Int32s, batch_size: int) -> Iterator[Submission]:
    """Without prefix routing: morsels as they come."""
    for start in range(0, len(rows), batch_size):
        yield Submission(None, rows[start : start + batch_size])


def in_buckets(rows: Int32s, order: SortedPrompts, knobs: Mapping[str, Any]) -> Iterator[Submission]:
    """With prefix routing."""
    buffer = np.empty(0, np.int64)
    most = knobs["ROUTER_MAX_BUFFER_SIZE"]
    for start in range(0, len(rows), knobs["CONTINUOUS_BATCH_SIZE"]):
        morsel = order.position[rows[start : start + knobs["CONTINUOUS_BATCH_SIZE"]]]
        buffer = np.sort(np.concatenate([buffer, morsel.astype(np.int64)]))
        if len(buffer) > most:
            buffer = yield from _submit_until(buffer, most, order, knobs)
    if len(buffer):
        yield from _submit_until(buffer, 0, order, knobs)


def _submit_until(buffer: Int64s, most: int, order: SortedPrompts, knobs: Mapping[str, Any]) -> Any:
    """Yields buckets of `buffer` (sorted positions), largest first, until `most` rows are left, and returns those."""
    starts, ends = _buckets(buffer, order, knobs["ROUTER_PREFIX_MATCH_THRESHOLD"])
    small: list[Int64s] = []
    kept = np.ones(len(buffer), bool)
    left = len(buffer)
    for i in np.lexsort((starts, ends - starts))[::-1]:
        if left <= most:
            break
        bucket = buffer[starts[i] : ends[i]]
        kept[starts[i] : ends[i]] = False
        left -= len(bucket)
        if len(bucket) >= knobs["ROUTER_MIN_BUCKET_SIZE"]:
            yield Submission(_prefix(bucket, order), order.rows[bucket])
            continue
        small.append(bucket)
        if sum(map(len, small)) >= knobs["ROUTER_MIN_BUCKET_SIZE"]:
            yield Submission(None, order.rows[np.concatenate(small)])
            small = []
    if small:
        yield Submission(None, order.rows[np.concatenate(small)])
    return buffer[kept]


def _buckets(buffer: Int64s, order: SortedPrompts, threshold: float) -> tuple[Int64s, Int64s]:
    shared = order.shared(buffer[:-1], buffer[1:])
    before, after = (shared / order.length[at] for at in (buffer[:-1], buffer[1:]))
    cuts = np.flatnonzero((before < threshold) & (after < threshold)) + 1
    return np.concatenate([[0], cuts]), np.concatenate([cuts, [len(buffer)]])


def _prefix(bucket: Int64s, order: SortedPrompts) -> bytes:
    first, last = int(bucket[0]), int(bucket[-1])
    size = int(order.length[first]) if first == last else int(order.shared(bucket[:1], bucket[-1:])[0])
    return order.prefix_key(first, order.last_character(first, size))


class Router:
    """`PrefixRouter` of Daft 0.7.26."""

    def __init__(self, engines: int, load_balance_threshold: int) -> None:
        self.loads = [0] * engines
        self.recent: list[list[bytes | None]] = [[] for _ in range(engines)]
        self.threshold = load_balance_threshold

    def route(self, prefix: bytes | None, rows: int) -> int:
        """The engine for a submission."""
        engine = self.loads.index(min(self.loads)) if prefix is None else self._for_prefix(prefix)
        self.recent[engine].insert(0, prefix)
        del self.recent[engine][REMEMBERED_PREFIXES:]
        self.loads[engine] += rows
        return engine

    def _for_prefix(self, prefix: bytes) -> int:
        limit = min(self.loads) + self.threshold
        eligible = [engine for engine, load in enumerate(self.loads) if load < limit]
        knowing = [engine for engine in eligible if prefix in self.recent[engine]]
        if not knowing:
            return eligible[-1]
        return min(knowing, key=lambda engine: self.recent[engine].index(prefix))
