"""Exact replay of vLLM's scheduler and block cache, step by step, without an engine.

    replay(prompts, feed, limits) -> Replayed

Written from vLLM 0.27 (`v1/core/sched/scheduler.py`, `async_scheduler.py`, `kv_cache_manager.py`,
`single_type_kv_cache_manager.py`) for models with one kind of full attention, first come first served, chunked prefill:

* Full blocks only; a block's id stands for the whole prefix up to its end. The last prompt token is always computed, so
  at most (tokens - 1) // block_size blocks hit.
* A step first gives every running request its next tokens within the token budget, then admits waiting requests while
  budget, `max_num_seqs` and free blocks allow. A request joins only if its whole prompt fits.
* Full blocks become findable when they are scheduled, so requests of one step hit each other's.
* No free block for a running request: the last admitted is preempted, loses its blocks and goes first in the queue; no
  one is admitted in that step.
* Counters as vLLM's: queries and hits of first admissions only; what a preempted request finds again is not counted.

Differences that remain: two rows with equal prompts generate different tokens here, and requests arrive between steps,
all of a batch at once.
"""

from typing import NamedTuple

from harness import engine_state as es
from harness.block_pool import NONE, Pool, clear, new_pool, release, store, take, touch
from harness.compiled import Int32s, compiled
from harness.engine_state import Feed, Limits, Prompts, State, StepCost


class Replayed(NamedTuple):
    """What one engine did, as its counters would tell."""

    queries: int  # prompt tokens looked up
    hits: int  # of them found
    preemptions: int
    steps: int
    scheduled_tokens: int  # computed in all steps, generated and repeated ones too
    peak_running: int
    mean_running: float  # requests running, mean over steps
    compute_s: float  # least arithmetic time
    memory_s: float  # least memory time
    busy_s: float  # the longer of both, step by step
    hit_tokens: Int32s  # [requests in the feed's order]

    @property
    def hit_rate(self) -> float | None:
        return self.hits / self.queries if self.queries else None


def replay(
    prompts: Prompts, feed: Feed, limits: Limits, cost: StepCost | None = None, pool: Pool | None = None
) -> Replayed:
    """Runs one engine until its feed is done. A pool may be reused: it is cleared first.

    Raises ValueError for a row that could never run in this KV cache; vLLM would wait for ever.
    """
    _check_fit(prompts, feed, limits)
    if pool is None:
        pool = new_pool(limits.kv_blocks, es.contents(prompts, feed.rows, limits))
    else:
        clear(pool)
    state = es.new_state(prompts, feed, limits, pool)
    _run(state, prompts.block_ids, prompts.block_size, feed, limits, cost or StepCost())
    at, seconds = state.at.tolist(), state.seconds.tolist()
    mean_running = at[es.RUNNING_SUM] / at[es.STEPS] if at[es.STEPS] else 0.0
    return Replayed(*at[es.QUERIES : es.PEAK_RUNNING + 1], mean_running, *seconds, state.hits)


def _check_fit(prompts: Prompts, feed: Feed, limits: Limits) -> None:
    needed = -(-(prompts.tokens[feed.rows] + limits.max_tokens) // prompts.block_size)
    if len(needed) and needed.max() > limits.kv_blocks:
        row = int(feed.rows[needed.argmax()])
        raise ValueError(
            f"row {row}: expected prompt and output to fit in the KV cache of {limits.kv_blocks} blocks of "
            f"{prompts.block_size} tokens, found {prompts.tokens[row]} + {limits.max_tokens} tokens; "
            "give the engine more KV cache or leave the row out"
        )


@compiled
def _run(e: State, ids: Int32s, size: int, feed: Feed, limits: Limits, cost: StepCost) -> None:
    in_flight, now = -1, 0
    while e.at[es.DONE] < len(feed.rows):
        if e.at[es.ARRIVALS_DUE]:
            _arrive(e, feed)
        scheduled = _schedule(e, now, ids, size, limits, cost)
        if not limits.async_scheduling:
            _update(e, now, scheduled, ids, size, limits)
            continue
        if in_flight >= 0:
            _update(e, 1 - now, in_flight, ids, size, limits)
        in_flight = scheduled
        now = 1 - now


@compiled
def _arrive(e: State, feed: Feed) -> None:
    """Opens lanes and batches as far as the feed allows."""
    e.at[es.ARRIVALS_DUE] = 0
    while e.at[es.OPEN_LANES] < feed.open_lanes and e.at[es.NEXT_LANE] < len(feed.lane_end):
        e.at[es.OPEN_LANES] += 1
        e.at[es.NEXT_LANE] += 1
    for lane in range(e.at[es.NEXT_LANE]):
        while e.lane_open[lane] < feed.open_batches and e.lane_next[lane] < feed.lane_end[lane]:
            batch = e.lane_next[lane]
            e.lane_next[lane] += 1
            e.lane_open[lane] += 1
            start = feed.batch_end[batch - 1] if batch else 0
            for request in range(start, feed.batch_end[batch]):
                e.queue[e.at[es.QUEUE_TAIL]] = request
                e.at[es.QUEUE_TAIL] += 1


@compiled
def _schedule(e: State, now: int, ids: Int32s, size: int, limits: Limits, cost: StepCost) -> int:
    """One step's plan; returns the number of requests in it."""
    budget = limits.max_num_batched_tokens
    scheduled = 0
    pairs, context, sampled = 0, 0, 0
    preempted = False
    index = 0
    while index < e.at[es.RUN] and budget > 0:
        r = e.running[index]
        index += 1
        if e.placeholders[r] > 0 and e.computed[r] + 2 - e.placeholders[r] >= e.prompt_tokens[r] + limits.max_tokens:
            continue  # its last token is being generated
        new = min(e.tokens[r] + e.placeholders[r] - e.computed[r], budget)
        while e.slot[r] != NONE and not _grow(e, r, new, ids, size):
            preempted = True
            _preempt(e)
        if e.slot[r] == NONE:
            break  # it preempted itself
        budget -= new
        pairs, context, sampled = _plan(e, now, scheduled, r, new, limits, pairs, context, sampled)
        scheduled += 1
    while not preempted and budget > 0 and e.at[es.RUN] < limits.max_num_seqs:
        r = _next_waiting(e)
        if r == NONE:
            break
        new = _admit(e, r, budget, ids, size, limits)
        if new == 0:
            break
        budget -= new
        pairs, context, sampled = _plan(e, now, scheduled, r, new, limits, pairs, context, sampled)
        scheduled += 1
    _account(e, limits.max_num_batched_tokens - budget, pairs, context, sampled, cost)
    return scheduled


@compiled
def _plan(
    e: State, now: int, position: int, r: int, new: int, limits: Limits, pairs: int, context: int, sampled: int
) -> tuple[int, int, int]:
    """Enters a request's next `new` tokens into the step; returns the step's sums with them."""
    before = e.computed[r]
    e.computed[r] += new
    generates = e.computed[r] >= e.tokens[r] + e.placeholders[r]
    if generates and limits.async_scheduling:
        e.placeholders[r] += 1
    e.step_request[now, position] = r
    e.step_generates[now, position] = generates
    return pairs + new * before + new * (new + 1) // 2, context + before + new, sampled + int(generates)


@compiled
def _account(e: State, tokens: int, pairs: int, context: int, sampled: int, cost: StepCost) -> None:
    if tokens == 0:
        return
    compute_s = tokens * cost.token_s + pairs * cost.pair_s + sampled * cost.sample_s
    memory_s = cost.weights_s + context * cost.context_s
    e.seconds[es.COMPUTE_S] += compute_s
    e.seconds[es.MEMORY_S] += memory_s
    e.seconds[es.BUSY_S] += max(compute_s, memory_s)
    e.at[es.STEPS] += 1
    e.at[es.SCHEDULED_TOKENS] += tokens
    e.at[es.RUNNING_SUM] += e.at[es.RUN]
    e.at[es.PEAK_RUNNING] = max(e.at[es.PEAK_RUNNING], e.at[es.RUN])


@compiled
def _next_waiting(e: State) -> int:
    """The head of the queue, preempted requests first; NONE if nobody waits."""
    if e.at[es.RETURNED]:
        return e.returned[e.at[es.RETURNED] - 1]
    if e.at[es.QUEUE_HEAD] < e.at[es.QUEUE_TAIL]:
        return e.queue[e.at[es.QUEUE_HEAD]]
    return NONE


@compiled
def _admit(e: State, r: int, budget: int, ids: Int32s, size: int, limits: Limits) -> int:
    """Starts the head of the queue if its whole prompt fits; returns the tokens that it computes now, 0 if not."""
    found, idle = _lookup(e, r, ids, size)
    if limits.counts_retries:
        _count(e, r, found * size)
    watermark = limits.watermark_blocks if e.at[es.RUN] else 0
    if _blocks(e.tokens[r], size) - found + idle + watermark > e.pool.free[0]:
        return 0
    if not limits.counts_retries:
        _count(e, r, found * size)
    if e.state[r] == es.PREEMPTED:
        e.at[es.RETURNED] -= 1
    else:
        e.at[es.QUEUE_HEAD] += 1
        e.hits[r] = found * size
    _enter(e, r, found, ids, size)
    new = min(e.tokens[r] - e.computed[r], budget)
    _grow(e, r, new, ids, size)
    return new


@compiled
def _lookup(e: State, r: int, ids: Int32s, size: int) -> tuple[int, int]:
    """Leading blocks found, and how many of them wait in the free queue."""
    found, idle = 0, 0
    most = (e.tokens[r] - 1) // size
    while found < most:
        block = e.pool.oldest_copy[_content(e, r, found, ids)]
        if block == NONE:
            break
        idle += int(e.pool.holders[block] == 0)
        found += 1
    return found, idle


@compiled
def _count(e: State, r: int, hits: int) -> None:
    if e.state[r] != es.PREEMPTED:
        e.at[es.QUERIES] += e.tokens[r]
        e.at[es.HITS] += hits


@compiled
def _enter(e: State, r: int, found: int, ids: Int32s, size: int) -> None:
    """Gives a request a place among the running ones and the blocks that it found."""
    e.at[es.FREE_SLOTS] -= 1
    slot = e.free_slots[e.at[es.FREE_SLOTS]]
    e.slot[r] = slot
    e.state[r] = es.RUNNING
    e.running[e.at[es.RUN]] = r
    e.at[es.RUN] += 1
    for i in range(found):
        block = e.pool.oldest_copy[_content(e, r, i, ids)]
        touch(e.pool, block)
        e.table[slot, i] = block
    e.held[r] = found
    e.cached[r] = found
    e.computed[r] = found * size


@compiled
def _grow(e: State, r: int, new: int, ids: Int32s, size: int) -> bool:
    """Blocks for `new` more tokens; False, with nothing taken, if there are not enough."""
    needed = _blocks(e.computed[r] + new, size)
    if needed - e.held[r] > e.pool.free[0]:
        return False
    while e.held[r] < needed:
        e.table[e.slot[r], e.held[r]] = take(e.pool)
        e.held[r] += 1
    _store_full(e, r, min(e.computed[r] + new, e.tokens[r]), ids, size)
    return True


@compiled
def _store_full(e: State, r: int, tokens: int, ids: Int32s, size: int) -> None:
    """Makes the blocks that `tokens` known tokens fill findable."""
    while e.cached[r] < tokens // size:
        store(e.pool, e.table[e.slot[r], e.cached[r]], _content(e, r, e.cached[r], ids))
        e.cached[r] += 1


@compiled
def _preempt(e: State) -> None:
    """Takes the blocks of the request that was admitted last and puts it at the head of the queue."""
    e.at[es.RUN] -= 1
    r = e.running[e.at[es.RUN]]
    _leave(e, r)
    e.state[r] = es.PREEMPTED
    e.computed[r] = 0
    e.placeholders[r] = 0
    e.returned[e.at[es.RETURNED]] = r
    e.at[es.RETURNED] += 1
    e.at[es.PREEMPTIONS] += 1


@compiled
def _leave(e: State, r: int) -> None:
    release(e.pool, e.table[e.slot[r], : e.held[r]])
    e.free_slots[e.at[es.FREE_SLOTS]] = e.slot[r]
    e.at[es.FREE_SLOTS] += 1
    e.slot[r] = NONE
    e.held[r] = 0
    e.cached[r] = 0


@compiled
def _update(e: State, step: int, scheduled: int, ids: Int32s, size: int, limits: Limits) -> None:
    """A step's tokens arrive: requests grow, and those at their end free their blocks."""
    ended = False
    for position in range(scheduled):
        r = e.step_request[step, position]
        if e.state[r] == es.FINISHED or not e.step_generates[step, position]:
            continue
        e.tokens[r] += 1
        if limits.async_scheduling and e.state[r] == es.RUNNING:
            e.placeholders[r] -= 1
            _store_full(e, r, e.computed[r] - e.placeholders[r], ids, size)
        if e.tokens[r] >= e.last_token[r]:
            _finish(e, r)
            ended = True
    if ended:
        _close_ranks(e)


@compiled
def _finish(e: State, r: int) -> None:
    if e.state[r] == es.RUNNING:
        _leave(e, r)
    else:
        _drop_returned(e, r)
    e.state[r] = es.FINISHED
    e.at[es.DONE] += 1
    batch = e.batch[r]
    e.batch_left[batch] -= 1
    if e.batch_left[batch] == 0:
        lane = e.batch_lane[batch]
        e.lane_open[lane] -= 1
        e.lane_left[lane] -= 1
        e.at[es.OPEN_LANES] -= int(e.lane_left[lane] == 0)
        e.at[es.ARRIVALS_DUE] = 1


@compiled
def _drop_returned(e: State, r: int) -> None:
    """A preempted request whose last token was in flight ends in the queue."""
    kept = 0
    for i in range(e.at[es.RETURNED]):
        if e.returned[i] != r:
            e.returned[kept] = e.returned[i]
            kept += 1
    e.at[es.RETURNED] = kept


@compiled
def _close_ranks(e: State) -> None:
    kept = 0
    for i in range(e.at[es.RUN]):
        if e.state[e.running[i]] == es.RUNNING:
            e.running[kept] = e.running[i]
            kept += 1
    e.at[es.RUN] = kept


@compiled
def _content(e: State, r: int, i: int, ids: Int32s) -> int:
    """Id of what a request's block `i` holds once full."""
    if i < e.prompt_blocks[r]:
        return ids[e.first_content[r] + i]
    return e.own_content[r] + i - e.prompt_blocks[r]


@compiled
def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)
