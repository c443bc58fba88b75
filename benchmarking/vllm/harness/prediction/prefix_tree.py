"""What the prompts of a dataset have in common, at the granularity at which vLLM's cache can use it.

Full blocks of all prompts form a tree, in which a block's parent is the block before it. A block that several rows run
through has to be computed only once.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from harness.prediction.compiled import Int64s
from harness.prediction.engine_state import Prompts
from harness.prediction.feeding import Dataset
from harness.prediction.roofline import Totals

SHARING_STEPS = (2, 4, 16, 64, 256, 1024)


class Profile(NamedTuple):
    rows: int
    tokens: int
    length: dict[str, int]  # tokens a prompt: min, p50, p90, p99, max
    repeated_prompts: int  # rows whose prompt is an earlier row's
    distinct_blocks: int
    shared_blocks: int  # run through by two rows or more
    shared_prefixes: int  # longest shared runs of blocks, one a group of rows
    rows_sharing: int  # rows that share at least one block
    prefix_tokens: dict[str, int]  # shared tokens of the rows that share
    sharing: list[dict[str, int]]  # tokens by the number of rows that share them
    working_set_tokens: int  # shared blocks, each once
    possible_hits: int  # tokens

    @property
    def possible_hit_rate(self) -> float:
        """Most that any order on any engine can reach: each distinct block computed once."""
        return self.possible_hits / self.tokens if self.tokens else 0.0


def profile(data: Dataset) -> Profile:
    prompts = data.prompts
    counts = np.bincount(prompts.block_ids, minlength=prompts.distinct)
    shared = counts >= 2
    depth = _shared_blocks_a_row(prompts, shared)
    sharing = depth > 0
    last_shared = prompts.block_ids[(prompts.first_block[:-1] + depth - 1)[sharing]]
    size = prompts.block_size
    return Profile(
        rows=len(prompts.tokens),
        tokens=int(prompts.tokens.sum()),
        length=_quantiles(prompts.tokens),
        repeated_prompts=data.order.repeated,
        distinct_blocks=prompts.distinct,
        shared_blocks=int(shared.sum()),
        shared_prefixes=len(np.unique(last_shared)),
        rows_sharing=int(sharing.sum()),
        prefix_tokens=_quantiles(depth[sharing] * size),
        sharing=[step for step in _sharing(counts, size) if step["tokens"]],
        working_set_tokens=working_set_tokens(prompts),
        possible_hits=possible_hits(prompts),
    )


def possible_hits(prompts: Prompts) -> int:
    """Prompt tokens that a cache without limits finds when every distinct block is computed once, in the best order.

    The last token of a prompt is always computed, so a prompt of whole blocks does not look its last block up; it may
    still be the one that computes it for the others.
    """
    if not prompts.distinct:
        return 0
    whole = (prompts.tokens % prompts.block_size == 0) & (prompts.tokens > 0)
    last_blocks = prompts.block_ids[prompts.first_block[1:][whole] - 1]
    unread = np.bincount(last_blocks, minlength=prompts.distinct)
    lookups = len(prompts.block_ids) - len(last_blocks)
    return int(lookups - np.count_nonzero(unread == 0)) * prompts.block_size


def working_set_tokens(prompts: Prompts) -> int:
    """Tokens of the blocks that more than one row runs through, each once."""
    counts = np.bincount(prompts.block_ids, minlength=prompts.distinct)
    return int((counts >= 2).sum()) * prompts.block_size


def totals(prompts: Prompts) -> Totals:
    """What the floor needs to know of the dataset."""
    counts = np.bincount(prompts.block_ids, minlength=prompts.distinct)
    lengths = prompts.tokens.astype(np.int64)
    most = (lengths - 1) // prompts.block_size
    # As if even the first row of a prefix found it: a little less than any order leaves.
    spared = np.minimum(_shared_blocks_a_row(prompts, counts >= 2), most) * prompts.block_size
    pairs = (lengths * (lengths + 1) - spared * (spared + 1)) // 2
    return Totals(len(lengths), int(lengths.sum()), possible_hits(prompts), int(pairs.sum()))


def _shared_blocks_a_row(prompts: Prompts, shared: "np.ndarray[Any, np.dtype[np.bool_]]") -> Int64s:
    """Shared blocks are a row's first ones: fewer rows run through a block than through its parent."""
    running = np.concatenate([[0], np.cumsum(shared[prompts.block_ids])])
    depth: Int64s = running[prompts.first_block[1:]] - running[prompts.first_block[:-1]]
    return depth


def _sharing(counts: Int64s, size: int) -> list[dict[str, int]]:
    """Distinct tokens by how many rows share them."""
    edges = [*SHARING_STEPS, int(counts.max(initial=0)) + 1]
    steps = itertools.pairwise(edges)
    return [
        {"rows_from": low, "rows_to": high - 1, "tokens": int(((counts >= low) & (counts < high)).sum()) * size}
        for low, high in steps
    ]


def _quantiles(values: Any) -> dict[str, int]:
    if not len(values):
        return {}
    marks = np.quantile(values, (0, 0.5, 0.9, 0.99, 1), method="lower")
    return dict(zip(("min", "p50", "p90", "p99", "max"), map(int, marks), strict=True))
