"""Numbers for KV blocks: two blocks get one number exactly where their whole prefixes agree, token for token.

This is what vLLM's chained block hashes decide. Here every full block gets a 64-bit hash of all tokens up to its end,
and hashes become consecutive numbers. Two different prefixes share a hash with a chance of blocks² / 2⁶⁵: below one in
50,000 for 25 million blocks.
"""

import numpy as np
import numpy.typing as npt
from harness.prediction.compiled import Int32s, Int64s, compiled
from harness.prediction.engine_state import Prompts

Hashes = npt.NDArray[np.uint64]


def number_blocks(tokens: Int32s, starts: Int64s, outputs: Int32s, block_size: int) -> Prompts:
    """`tokens` of all rows end to end, row i at [starts[i], starts[i + 1]), and the tokens that each row generates."""
    lengths = np.diff(starts)
    first_block = np.concatenate([[0], np.cumsum(lengths // block_size)]).astype(np.int64)
    hashes = np.empty(first_block[-1], np.uint64)
    _hash_chains(tokens, starts, first_block, block_size, hashes)
    slots = 1 << max(4, int(len(hashes) * 1.5).bit_length())
    block_ids = np.empty(len(hashes), np.int32)
    distinct = _number(hashes, np.zeros(slots, np.uint64), np.full(slots, -1, np.int32), block_ids)
    return Prompts(lengths.astype(np.int32), outputs, first_block, block_ids, distinct, block_size)


@compiled
def _hash_chains(tokens: Int32s, starts: Int64s, first_block: Int64s, size: int, hashes: Hashes) -> None:
    for row in range(len(starts) - 1):
        value = np.uint64(0x243F6A8885A308D3)
        for i in range(first_block[row + 1] - first_block[row]):
            begin = starts[row] + i * size
            for j in range(begin, begin + size):
                value = (value ^ np.uint64(tokens[j])) * np.uint64(0x9E3779B97F4A7C15)
                value ^= value >> np.uint64(32)
            hashes[first_block[row] + i] = value


@compiled
def _number(hashes: Hashes, keys: Hashes, numbers: Int32s, block_ids: Int32s) -> int:
    """Open addressing: a hash's slot is where it lies or the next free one. Numbers count first appearances."""
    mask = np.uint64(len(keys) - 1)
    distinct = 0
    for i in range(len(hashes)):
        slot = hashes[i] & mask
        while numbers[slot] >= 0 and keys[slot] != hashes[i]:
            slot = (slot + np.uint64(1)) & mask
        if numbers[slot] < 0:
            keys[slot] = hashes[i]
            numbers[slot] = distinct
            distinct += 1
        block_ids[i] = numbers[slot]
    return distinct
