"""The dataset as planned windows: read, tokenised and sorted one window ahead of the engines.

A window is as large as memory allows on the driver (PLANNED_WINDOW_TOKENS), because prefixes are shared within a
window only: a prefix that occurs in two windows may be computed in both. The first ones are smaller.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from harness.data import dataset
from harness.planning import text
from harness.planning.window import Tokenized, Window, plan, window_tokens

# Batches of rows that are being tokenised at a time, for each CPU of the cluster, and in all.
BATCHES_A_CPU = 2
MOST_BATCHES = 64


def windows(without: pa.Array) -> Iterator[Window]:
    """Windows over config.INPUT_PATH, without the rows whose ids are in `without`."""
    number, parts = 0, list[Tokenized]()
    for part in _tokenized(without):
        parts.append(part)
        if sum(len(part.tokens) for part in parts) >= window_tokens(number, config.PLANNED_WINDOW_TOKENS):
            yield _window(number, parts)
            number, parts = number + 1, []
    if parts:
        yield _window(number, parts)


def _window(number: int, parts: list[Tokenized]) -> Window:
    ids, tokens, lengths = zip(*parts, strict=True)
    rows = Tokenized(pa.concat_arrays(ids), np.concatenate(tokens), np.concatenate(lengths))
    return plan(number, rows, config.BLOCK_SIZE, int(config.SAMPLING_PARAMS["max_tokens"]))


def _tokenized(done: pa.Array) -> Iterator[Tokenized]:
    """Batches in the order in which they are read, several of them under way at a time."""
    encode = ray.remote(text.encode).options(num_returns=2, scheduling_strategy="SPREAD")
    most = min(BATCHES_A_CPU * max(int(ray.cluster_resources().get("CPU", 1)), 1), MOST_BATCHES)
    under_way: deque[tuple[Any, list[Any]]] = deque()
    for left in _left(done):
        under_way.append((left["id"], encode.remote(left["prompt"].to_pylist())))
        if len(under_way) >= most:
            yield _received(*under_way.popleft())
    while under_way:
        yield _received(*under_way.popleft())


def _left(done: pa.Array) -> Iterator[pa.RecordBatch]:
    """The dataset's batches that have rows whose ids are not in `done`, and these rows alone."""
    batches = dataset.read_batches(config.INPUT_PATH, ["id", "prompt"])
    if not len(done):
        yield from (batch for batch in batches if len(batch))
        return
    # Asked once for the whole dataset: each time, Arrow builds a table of all that are done.
    ids = pa.chunked_array([batch["id"] for batch in dataset.read_batches(config.INPUT_PATH, ["id"])])
    are_left, begin = pc.invert(pc.is_in(ids, value_set=done)), 0
    for batch in batches:
        left = batch.filter(are_left.slice(begin, len(batch)).combine_chunks())
        begin += len(batch)
        if len(left):
            yield left


def _received(ids: Any, references: list[Any]) -> Tokenized:
    tokens, lengths = ray.get(references)
    return Tokenized(ids, tokens, lengths)
