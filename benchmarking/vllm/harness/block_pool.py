"""vLLM's pool of KV blocks, block by block: `BlockPool` and `FreeKVCacheBlockQueue` of vLLM 0.27 (0.26 is the same).

Blocks that no running request holds wait in a queue, and the head is taken first. Those whose content is cached join
its tail, so eviction is least recently used; those without cached content join its head. A cached block stays
findable in the queue until it is taken. Contents are whole numbers, one for every distinct chain of full blocks, so two
blocks have the same number exactly where vLLM's hashes agree. Several blocks may cache one content (vLLM does not
merge them); the oldest is the one found.
"""

from typing import NamedTuple

import numpy as np

from harness.compiled import Int32s, Int64s, compiled

NONE = -1


class Pool(NamedTuple):
    """State of one engine's pool; `head` and `tail` of the free queue are the two entries after the last block."""

    next_free: Int32s  # [blocks + 2]
    prev_free: Int32s  # [blocks + 2]
    holders: Int32s  # [blocks] running requests that hold the block
    content: Int32s  # [blocks] cached content or NONE
    next_copy: Int32s  # [blocks] next younger block with the same content
    prev_copy: Int32s  # [blocks]
    oldest_copy: Int32s  # [contents] block that a lookup finds, or NONE
    newest_copy: Int32s  # [contents]
    free: Int64s  # [1] length of the free queue


def new_pool(blocks: int, contents: int) -> Pool:
    """An empty pool. `blocks` excludes the one that vLLM keeps as its null block."""
    next_free = np.arange(1, blocks + 3, dtype=np.int32)
    prev_free = np.arange(-1, blocks + 1, dtype=np.int32)
    head, tail = blocks, blocks + 1
    next_free[head], prev_free[0] = 0, head
    next_free[blocks - 1], prev_free[tail] = tail, blocks - 1
    per_block = (np.full(blocks, NONE, np.int32) for _ in range(3))
    per_content = (np.full(contents, NONE, np.int32) for _ in range(2))
    return Pool(
        next_free, prev_free, np.zeros(blocks, np.int32), *per_block, *per_content, np.array([blocks], dtype=np.int64)
    )


@compiled
def clear(pool: Pool) -> None:
    """Forgets all cached contents, as a fresh engine or `reset_prefix_cache()`; no request may be running."""
    for block in range(len(pool.content)):
        if pool.content[block] != NONE:
            pool.oldest_copy[pool.content[block]] = NONE
            pool.newest_copy[pool.content[block]] = NONE
            pool.content[block] = NONE


@compiled
def take(pool: Pool) -> int:
    """The head of the free queue, for a new owner; what it cached is lost. The queue must not be empty."""
    block = pool.next_free[len(pool.content)]
    _unlink(pool, block)
    _forget(pool, block)
    pool.holders[block] = 1
    return block


@compiled
def touch(pool: Pool, block: int) -> None:
    """One more running request holds a cached block."""
    if pool.holders[block] == 0:
        _unlink(pool, block)
    pool.holders[block] += 1


@compiled
def store(pool: Pool, block: int, content: int) -> None:
    """Makes a full block findable under its content, behind older copies."""
    newest = pool.newest_copy[content]
    pool.content[block] = content
    pool.prev_copy[block] = newest
    pool.next_copy[block] = NONE
    if newest == NONE:
        pool.oldest_copy[content] = block
    else:
        pool.next_copy[newest] = block
    pool.newest_copy[content] = block


@compiled
def release(pool: Pool, blocks: Int32s) -> None:
    """A request ends or is preempted: last block first, so that the end of a prompt is evicted before its start."""
    for i in range(len(blocks) - 1, -1, -1):
        block = blocks[i]
        pool.holders[block] -= 1
        if pool.holders[block] == 0:
            head, tail = len(pool.content), len(pool.content) + 1
            if pool.content[block] == NONE:
                _link(pool, block, head, pool.next_free[head])
            else:
                _link(pool, block, pool.prev_free[tail], tail)


@compiled
def _link(pool: Pool, block: int, before: int, after: int) -> None:
    pool.prev_free[block] = before
    pool.next_free[block] = after
    pool.next_free[before] = block
    pool.prev_free[after] = block
    pool.free[0] += 1


@compiled
def _unlink(pool: Pool, block: int) -> None:
    before, after = pool.prev_free[block], pool.next_free[block]
    pool.next_free[before] = after
    pool.prev_free[after] = before
    pool.free[0] -= 1


@compiled
def _forget(pool: Pool, block: int) -> None:
    content = pool.content[block]
    if content == NONE:
        return
    older, younger = pool.prev_copy[block], pool.next_copy[block]
    if older == NONE:
        pool.oldest_copy[content] = younger
    else:
        pool.next_copy[older] = younger
    if younger == NONE:
        pool.newest_copy[content] = older
    else:
        pool.prev_copy[younger] = older
    pool.content[block] = NONE
