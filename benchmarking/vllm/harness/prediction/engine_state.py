"""What the replay of one vLLM engine holds: prompts, how they are fed, limits, and the scheduler's state.

A row is the index of a prompt in the dataset, a request its index in the engine's feed.
"""

from typing import Any, NamedTuple

import numpy as np
from harness.prediction import sparse
from harness.prediction.block_pool import Pool
from harness.prediction.compiled import Int32s, Int64s, Records


class Prompts(NamedTuple):
    """A tokenised dataset. Block ids are equal exactly where the whole prefix up to the block's end is equal."""

    tokens: Int32s  # [rows] prompt length
    outputs: Int32s  # [rows] tokens that will be generated
    first_block: Int64s  # [rows + 1] where a row's ids begin in block_ids
    block_ids: Int32s  # [full blocks of all rows]
    distinct: int  # block_ids are below this
    block_size: int  # tokens a block


class Feed(NamedTuple):
    """How one engine receives rows: lanes of batches. A batch arrives at once; a lane keeps a fixed number open.

    `LLM.generate` on 512 prompts at a time: one lane, one open batch. Everything at once: one batch. Ray Data: one
    lane a block, several open batches in each. A lane opens when an earlier one has ended.
    """

    rows: Int32s  # [requests] in order of arrival, batch after batch, lane after lane
    batch_end: Int64s  # [batches] end of each batch in rows
    lane_end: Int64s  # [lanes] end of each lane in batches
    open_lanes: int
    open_batches: int  # in each lane
    # A request is held back until the engine has room for it to its last token, so that none is ever preempted.
    reserves: bool = False


class Limits(NamedTuple):
    """The engine's limits as vLLM names them."""

    kv_blocks: int  # without vLLM's null block: num_gpu_blocks - 1
    max_num_seqs: int
    max_num_batched_tokens: int
    max_tokens: int  # of SamplingParams; a row may end earlier
    # Scheduling a step before the last one's tokens are known: vLLM's default on GPUs, off on CPUs. A finished
    # request then frees its blocks one step later.
    async_scheduling: bool = True
    # vLLM up to 0.26 counts a lookup each time that it tries to admit a request; 0.27 counts admissions.
    counts_retries: bool = False
    watermark_blocks: int = 0  # kept free when a request joins running ones; vLLM's default


class StepCost(NamedTuple):
    """Least seconds that parts of an engine step take (see roofline.py); arithmetic and memory overlap."""

    token_s: float = 0.0  # arithmetic of the layers, a token
    pair_s: float = 0.0  # attention arithmetic, a pair of query and key
    sample_s: float = 0.0  # output projection, a sampled token
    weights_s: float = 0.0  # reading the weights once
    context_s: float = 0.0  # reading one cached token's keys and values


MOST_CONTENTS = 2**31 - 1
WAITING, RUNNING, PREEMPTED, FINISHED = range(4)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


REQUEST: Any = np.dtype(
    _fields(np.int64, "first_content own_content")  # ids of its first block, and of its first with generated tokens
    + _fields(np.int32, "tokens prompt_tokens last_token")  # known now, of the prompt, at its end
    + _fields(np.int32, "computed placeholders")  # placeholders: tokens that a step in flight generates
    + _fields(np.int32, "held cached prompt_blocks")  # blocks in its table, stored ones, full ones of the prompt
    + _fields(np.int32, "slot state batch hits")  # slot: row of the table; hits: tokens found at first admission
)
SEAT: Any = np.dtype(_fields(np.int32, "running returned free_slot"))  # three lists of at most max_num_seqs entries
# Sizes of a step: tokens computed, query and key pairs, cached tokens read, tokens sampled, requests in it.
STEP: Any = np.dtype(_fields(np.int64, "tokens pairs context sampled requests"))
PLANNED: Any = np.dtype(_fields(np.int32, "request generates"))
BATCH: Any = np.dtype(_fields(np.int64, "begin end left lane"))  # left: requests not finished
LANE: Any = np.dtype(_fields(np.int64, "next end open left"))  # next batch; open, and not finished batches
SCALARS: Any = np.dtype(
    _fields(np.int64, "running free_slots returned queue_head queue_tail done next_lane open_lanes arrivals_due")
    + _fields(np.int64, "reserves")  # whether requests are held back until there is room for them to their end
    + _fields(np.int64, "queries hits preemptions steps scheduled_tokens peak_running running_sum")
    + _fields(np.float64, "compute_bound_s memory_bound_s")
)


class State(NamedTuple):
    """The scheduler's state."""

    pool: Pool
    requests: Records  # [requests] REQUEST
    table: Int32s  # [max_num_seqs, most blocks a request] blocks that running requests hold
    seats: Records  # [max_num_seqs] SEAT
    plans: Records  # [2, max_num_seqs] PLANNED: this step and the one in flight
    queue: Int32s  # [requests] arrived, first come first served
    batches: Records  # [batches] BATCH
    lanes: Records  # [lanes] LANE
    step: Records  # [1] STEP: the step scheduled last
    at: Records  # [1] SCALARS


def new_state(prompts: Prompts, feed: Feed, limits: Limits, pool: Pool) -> State:
    """An idle engine that will receive `feed`."""
    requests = new_requests(prompts, feed.rows, limits)
    requests["batch"] = np.repeat(np.arange(len(feed.batch_end)), np.diff(feed.batch_end, prepend=0))
    most_blocks = int(most_blocks_a_row(prompts, feed.rows, limits).max(initial=0))
    state = empty_state(requests, _new_batches(feed), _new_lanes(feed), most_blocks, limits, pool)
    state.at["reserves"] = feed.reserves
    return state


def empty_state(
    requests: Records, batches: Records, lanes: Records, most_blocks: int, limits: Limits, pool: Pool
) -> State:
    """An idle engine for these requests, of which each holds at most `most_blocks`."""
    seats = np.zeros(limits.max_num_seqs, SEAT)
    seats["free_slot"] = np.arange(limits.max_num_seqs)
    at = np.zeros(1, SCALARS)
    at["free_slots"], at["arrivals_due"] = limits.max_num_seqs, 1
    return State(
        pool=pool,
        requests=requests,
        table=np.zeros((limits.max_num_seqs, most_blocks), np.int32),
        seats=seats,
        plans=np.zeros((2, limits.max_num_seqs), PLANNED),
        queue=sparse.zeros(len(requests), np.int32),
        batches=batches,
        lanes=lanes,
        step=np.zeros(1, STEP),
        at=at,
    )


def new_requests(prompts: Prompts, rows: Int32s, limits: Limits, first_own: int = 0) -> Records:
    """Requests for `rows`, not in any batch; ids of their generated blocks begin `first_own` above the dataset's."""
    own_blocks = own_blocks_a_row(prompts, rows, limits)
    requests = np.zeros(len(rows), REQUEST)
    requests["tokens"] = requests["prompt_tokens"] = prompts.tokens[rows]
    requests["last_token"] = prompts.tokens[rows] + np.minimum(prompts.outputs[rows], limits.max_tokens)
    requests["slot"] = -1
    requests["first_content"] = prompts.first_block[rows]
    requests["prompt_blocks"] = prompts.tokens[rows] // prompts.block_size
    requests["own_content"] = prompts.distinct + first_own + np.cumsum(own_blocks) - own_blocks
    return requests


def _new_batches(feed: Feed) -> Records:
    batches = np.zeros(len(feed.batch_end), BATCH)
    batches["end"] = feed.batch_end
    batches["begin"][1:] = feed.batch_end[:-1]
    batches["left"] = np.diff(feed.batch_end, prepend=0)
    batches["lane"] = np.repeat(np.arange(len(feed.lane_end)), np.diff(feed.lane_end, prepend=0))
    return batches


def _new_lanes(feed: Feed) -> Records:
    lanes = np.zeros(len(feed.lane_end), LANE)
    lanes["end"] = feed.lane_end
    lanes["next"][1:] = feed.lane_end[:-1]
    lanes["left"] = np.diff(feed.lane_end, prepend=0)
    return lanes


def pool_size(prompts: Prompts, rows: Int32s, limits: Limits) -> tuple[int, int]:
    """Blocks and contents that an engine needs which receives `rows`.

    Blocks beyond all that its requests could hold together would never be taken. Contents are the dataset's block ids
    and those of generated tokens. Raises ValueError where they cannot be counted.
    """
    most = most_blocks_a_row(prompts, rows, limits)
    contents = prompts.distinct + int(own_blocks_a_row(prompts, rows, limits).sum())
    require_countable(contents, prompts.block_size)
    return max(1, min(limits.kv_blocks, int(most.sum()))), contents


def require_countable(contents: int, block_size: int) -> None:
    """Raises ValueError for more blocks, of prompts and of generated tokens, than have a number in 32 bits."""
    if contents > MOST_CONTENTS:
        raise ValueError(
            f"expected prompts and outputs of at most {MOST_CONTENTS:,} blocks in all, found {contents:,} of "
            f"{block_size} tokens; lower OUTPUT_LEN or the number of rows, or raise BLOCK_SIZE"
        )


def own_blocks_a_row(prompts: Prompts, rows: Int32s, limits: Limits) -> Int64s:
    """Blocks of each row that no other row has: those with generated tokens."""
    own: Int64s = most_blocks_a_row(prompts, rows, limits) - prompts.tokens[rows] // prompts.block_size
    return own


def most_blocks_a_row(prompts: Prompts, rows: Int32s, limits: Limits) -> Int64s:
    """Blocks that each row can hold; one more than its length asks, since a step in flight may run past its end."""
    last = prompts.tokens[rows].astype(np.int64) + np.minimum(prompts.outputs[rows], limits.max_tokens)
    most: Int64s = -(-last // prompts.block_size) + 1
    return most
