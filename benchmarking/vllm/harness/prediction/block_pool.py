"""vLLM's pool of KV blocks, block by block: `BlockPool` and `FreeKVCacheBlockQueue` of vLLM 0.27 (0.26 is the same).

Blocks that no running request holds wait in a queue, and the head is taken first. Those whose content is cached join
its tail, so eviction is least recently used; those without cached content join its head. A cached block stays
findable in the queue until it is taken. Contents are whole numbers, one for every distinct chain of full blocks, so two
blocks have the same number exactly where vLLM's hashes agree. Several blocks may cache one content (vLLM does not
merge them); the oldest is the one found.

Blocks count from 1: 0 is vLLM's null block, and says "no block" here, so that a large table of contents is all zeros
and costs memory only where it is written (an engine meets few of a dataset's contents, scattered over it).
"""

from typing import Any, NamedTuple

import numpy as np
from harness.prediction import sparse
from harness.prediction.compiled import Int32s, Int64s, Records, compiled

NONE = -1
NO_BLOCK = 0

BLOCK: Any = np.dtype(
    [
        ("next_free", np.int32),
        ("prev_free", np.int32),
        ("holders", np.int32),  # running requests that hold the block
        ("content", np.int32),  # cached content or NONE
        ("next_copy", np.int32),  # next younger block with the same content, or NO_BLOCK
        ("prev_copy", np.int32),
    ]
)
CONTENT: Any = np.dtype([("oldest", np.int32), ("newest", np.int32)])  # blocks that cache it, or NO_BLOCK


class Pool(NamedTuple):
    """State of one engine's pool."""

    blocks: Records  # [blocks + 3] BLOCK; the last two are head and tail of the free queue
    contents: Records  # [contents] CONTENT
    free: Int64s  # [1] length of the free queue


def new_pool(blocks: int, contents: int) -> Pool:
    """An empty pool. `blocks` excludes the null block."""
    pool = Pool(np.zeros(blocks + 3, BLOCK), sparse.zeros(contents, CONTENT), np.array([blocks], np.int64))
    pool.blocks["content"] = NONE
    # Head, blocks by number, tail.
    ring = np.concatenate([[blocks + 1], np.arange(1, blocks + 1), [blocks + 2]]).astype(np.int32)
    pool.blocks["next_free"][ring[:-1]] = ring[1:]
    pool.blocks["prev_free"][ring[1:]] = ring[:-1]
    return pool


@compiled
def clear(pool: Pool) -> None:
    """Forgets all cached contents, as a fresh engine or `reset_prefix_cache()`; no request may be running."""
    for i in range(1, len(pool.blocks) - 2):
        content = pool.blocks[i].content
        if content != NONE:
            pool.contents[content].oldest = NO_BLOCK
            pool.contents[content].newest = NO_BLOCK
            pool.blocks[i].content = NONE


@compiled
def take(pool: Pool) -> int:
    """The head of the free queue, for a new owner; what it cached is lost. The queue must not be empty."""
    block: int = pool.blocks[len(pool.blocks) - 2].next_free
    _unlink(pool, block)
    _forget(pool, block)
    pool.blocks[block].holders = 1
    return block


@compiled
def touch(pool: Pool, block: int) -> None:
    """One more running request holds a cached block."""
    if pool.blocks[block].holders == 0:
        _unlink(pool, block)
    pool.blocks[block].holders += 1


@compiled
def store(pool: Pool, block: int, content: int) -> None:
    """Makes a full block findable under its content, behind older copies."""
    newest = pool.contents[content].newest
    pool.blocks[block].content = content
    pool.blocks[block].prev_copy = newest
    pool.blocks[block].next_copy = NO_BLOCK
    if newest == NO_BLOCK:
        pool.contents[content].oldest = block
    else:
        pool.blocks[newest].next_copy = block
    pool.contents[content].newest = block


@compiled
def release(pool: Pool, held: Int32s) -> None:
    """A request ends or is preempted: last block first, so that the end of a prompt is evicted before its start."""
    head, tail = len(pool.blocks) - 2, len(pool.blocks) - 1
    for i in range(len(held) - 1, -1, -1):
        block = held[i]
        pool.blocks[block].holders -= 1
        if pool.blocks[block].holders == 0:
            if pool.blocks[block].content == NONE:
                _link(pool, block, head, pool.blocks[head].next_free)
            else:
                _link(pool, block, pool.blocks[tail].prev_free, tail)


@compiled
def _link(pool: Pool, block: int, before: int, after: int) -> None:
    pool.blocks[block].prev_free = before
    pool.blocks[block].next_free = after
    pool.blocks[before].next_free = block
    pool.blocks[after].prev_free = block
    pool.free[0] += 1


@compiled
def _unlink(pool: Pool, block: int) -> None:
    before, after = pool.blocks[block].prev_free, pool.blocks[block].next_free
    pool.blocks[before].next_free = after
    pool.blocks[after].prev_free = before
    pool.free[0] -= 1


@compiled
def _forget(pool: Pool, block: int) -> None:
    content = pool.blocks[block].content
    if content == NONE:
        return
    older, younger = pool.blocks[block].prev_copy, pool.blocks[block].next_copy
    if older == NO_BLOCK:
        pool.contents[content].oldest = younger
    else:
        pool.blocks[older].next_copy = younger
    if younger == NO_BLOCK:
        pool.contents[content].newest = older
    else:
        pool.blocks[younger].prev_copy = older
    pool.blocks[block].content = NONE
