"""Datasets without their texts: which rows share which blocks is all that engines and routers react to.

    structure.published(200_000, 512)    # as generate_data.ipynb makes it: 256 shared tokens and 256 own ones

The rows' texts are stand-ins of 64 characters, half of them shared where half of the tokens are, so that sorting and
Daft's bucketing do what they do with the real ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from harness.prediction.compiled import Int32s
from harness.prediction.engine_state import Prompts
from harness.prediction.feeding import Dataset
from harness.prediction.text_order import TextOrder
from harness.target_length import length_at, longest_output

PREFIX_TOKENS, SUFFIX_TOKENS = 256, 256
FILES = 8
LETTERS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", np.uint8)


def require_simulated(knobs: Mapping[str, Any]) -> None:
    """Raises ValueError for knobs that a run would follow, or refuse these prompts by, and a simulation would not."""
    if (gpus := knobs["GPUS_PER_ENGINE"]) > 1:
        raise ValueError(f"expected GPUS_PER_ENGINE 1, as simulated engines have, found {gpus}; set it")
    if (files := knobs["DATASET_FILES"]) < 1:
        raise ValueError(f"expected DATASET_FILES of at least 1, found {files}; set it")
    longest = PREFIX_TOKENS + SUFFIX_TOKENS + longest_output(knobs)
    if longest > knobs["MAX_MODEL_LEN"]:
        raise ValueError(
            f"expected MAX_MODEL_LEN of at least {longest:,}, the tokens of a prompt and its output, found "
            f"{knobs['MAX_MODEL_LEN']:,}; raise it, or lower OUTPUT_LEN or OUTPUT_LEN_MAX"
        )


def output_lengths(rows: int, knobs: Mapping[str, Any], seed: int = 42) -> Int32s:
    """[rows] tokens. In a run a prompt's own tokens decide; without them, lengths are drawn as spread as there."""
    shares = np.random.default_rng(seed).random(rows)
    return np.fromiter((length_at(share, knobs) for share in shares.tolist()), np.int32, rows)


def published(
    rows: int,
    prefixes: int,
    output_tokens: int | Int32s = 128,
    block_size: int = 16,
    files: int = FILES,
    seed: int = 42,
) -> Dataset:
    """`prefixes` 0: nothing is shared. Groups differ by at most one row and lie in random order. `output_tokens`: of
    all rows, or of each."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(rows) % prefixes if prefixes else np.arange(rows)).astype(np.int32)
    prompts = _prompts(group, bool(prefixes), output_tokens, block_size)
    file_rows = [len(part) for part in np.array_split(group, files)]
    return Dataset(prompts, TextOrder(_texts(group, rng)), file_rows)


def _prompts(group: Int32s, shared: bool, output_tokens: int | Int32s, block_size: int) -> Prompts:
    rows = len(group)
    prefix_blocks, blocks = PREFIX_TOKENS // block_size, (PREFIX_TOKENS + SUFFIX_TOKENS) // block_size
    prefixes = int(group.max(initial=-1)) + 1 if shared else 0
    own_blocks = blocks - prefix_blocks if shared else blocks
    ids = np.empty((rows, blocks), np.int32)
    ids[:, blocks - own_blocks :] = prefixes * prefix_blocks + np.arange(rows * own_blocks).reshape(rows, own_blocks)
    if shared:
        ids[:, :prefix_blocks] = group[:, None] * prefix_blocks + np.arange(prefix_blocks)
    return Prompts(
        tokens=np.full(rows, PREFIX_TOKENS + SUFFIX_TOKENS, np.int32),
        outputs=np.broadcast_to(np.int32(output_tokens), rows).copy(),
        first_block=np.arange(rows + 1, dtype=np.int64) * blocks,
        block_ids=ids.ravel(),
        distinct=prefixes * prefix_blocks + rows * own_blocks,
        block_size=block_size,
    )


def _texts(group: Int32s, rng: np.random.Generator) -> pa.Array:
    """32 characters by group, in no order that groups are in, and 32 of each row's own."""
    prefixes = LETTERS[rng.integers(len(LETTERS), size=(int(group.max(initial=-1)) + 1, 32))]
    texts = np.concatenate([prefixes[group], LETTERS[rng.integers(len(LETTERS), size=(len(group), 32))]], axis=1)
    offsets = np.arange(len(group) + 1, dtype=np.int64) * 64
    return pa.Array.from_buffers(pa.large_string(), len(group), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])
