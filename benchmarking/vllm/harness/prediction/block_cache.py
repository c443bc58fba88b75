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

`schedule` and `update` are one step's two halves, for those who keep a clock (harness/simulation).

Differences that remain: two rows with equal prompts generate different tokens here, and requests arrive between steps,
all of a batch at once.
"""

from typing import Any, NamedTuple

from harness.prediction import engine_state
from harness.prediction.block_pool import NO_BLOCK, NONE, Pool, clear, new_pool, release, store, take, touch
from harness.prediction.compiled import Int32s, compiled
from harness.prediction.engine_state import FINISHED, PREEMPTED, RUNNING, Feed, Limits, Prompts, State, StepCost


class Replayed(NamedTuple):
    """What one engine did, as its counters would tell."""

    queries: int  # prompt tokens looked up
    hits: int  # of them found
    preemptions: int
    steps: int
    scheduled_tokens: int  # computed in all steps, generated and repeated ones too
    peak_running: int
    mean_running: float  # requests running, mean over steps
    compute_bound_s: float  # least time of the steps whose arithmetic takes longer than their memory traffic
    memory_bound_s: float  # least time of the others
    hit_tokens: Int32s  # [requests in the feed's order]

    @property
    def busy_s(self) -> float:
        return self.compute_bound_s + self.memory_bound_s


def replay(
    prompts: Prompts, feed: Feed, limits: Limits, cost: StepCost | None = None, pool: Pool | None = None
) -> Replayed:
    """Runs one engine until its feed is done. A pool of `pool_size` or more may be reused: it is cleared first.

    Raises ValueError for a row that could never run in this KV cache; vLLM would wait for ever.
    """
    _check_fit(prompts, feed, limits)
    if pool is None:
        pool = new_pool(*engine_state.pool_size(prompts, feed.rows, limits))
    else:
        clear(pool)
    state = engine_state.new_state(prompts, feed, limits, pool)
    _run(state, prompts.block_ids, prompts.block_size, feed.open_lanes, feed.open_batches, limits, cost or StepCost())
    return _result(state)


def _result(state: State) -> Replayed:
    at = dict(zip(state.at.dtype.names, state.at[0].item(), strict=True))
    counted: dict[str, Any] = {name: at[name] for name in Replayed._fields if name in at}
    mean_running = at["running_sum"] / at["steps"] if at["steps"] else 0.0
    return Replayed(**counted, mean_running=mean_running, hit_tokens=state.requests["hits"])


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
def _run(e: State, ids: Int32s, size: int, open_lanes: int, open_batches: int, limits: Limits, cost: StepCost) -> None:
    at = e.at[0]
    in_flight, now = -1, 0
    while at.done < len(e.requests):
        if at.arrivals_due:
            _arrive(e, open_lanes, open_batches)
        scheduled = schedule(e, now, ids, size, limits, cost)
        if not limits.async_scheduling:
            update(e, now, scheduled, ids, size, limits)
            continue
        if in_flight >= 0:
            update(e, 1 - now, in_flight, ids, size, limits)
        in_flight, now = scheduled, 1 - now


@compiled
def _arrive(e: State, open_lanes: int, open_batches: int) -> None:
    """Opens lanes and batches as far as the feed allows."""
    at = e.at[0]
    at.arrivals_due = 0
    while at.open_lanes < open_lanes and at.next_lane < len(e.lanes):
        at.open_lanes += 1
        at.next_lane += 1
    for i in range(at.next_lane):
        lane = e.lanes[i]
        while lane.open < open_batches and lane.next < lane.end:
            batch = e.batches[lane.next]
            lane.next += 1
            lane.open += 1
            for request in range(batch.begin, batch.end):
                e.queue[at.queue_tail] = request
                at.queue_tail += 1


@compiled
def schedule(e: State, now: int, ids: Int32s, size: int, limits: Limits, cost: StepCost) -> int:
    """One step's plan, whose sizes go to e.step; returns the number of requests in it."""
    at = e.at[0]
    budget = limits.max_num_batched_tokens
    scheduled, index, preempted = 0, 0, False
    pairs, context, sampled = 0, 0, 0
    while index < at.running and budget > 0:
        r = e.seats[index].running
        request = e.requests[r]
        index += 1
        ahead = request.placeholders
        if ahead > 0 and request.computed + 2 - ahead >= request.prompt_tokens + limits.max_tokens:
            continue  # its last token is being generated
        new = min(request.tokens + ahead - request.computed, budget)
        # Most steps of most requests take no block and fill none, and skipping the call makes the replay four times
        # as fast.
        if not _within_blocks(request.computed + new, request.cached, request.held, size):
            preempted |= _make_room(e, r, new, ids, size)
        if request.slot == NONE:
            break  # it preempted itself
        budget -= new
        pairs += new * request.computed + new * (new + 1) // 2
        sampled += _plan(e, now, scheduled, r, new, limits.async_scheduling)
        context += request.computed
        scheduled += 1
    while not preempted and budget > 0 and at.running < limits.max_num_seqs:
        r = _next_waiting(e)
        if r == NONE:
            break
        new = _admit(e, r, budget, ids, size, limits)
        if new == 0:
            break
        budget -= new
        pairs += new * e.requests[r].computed + new * (new + 1) // 2
        sampled += _plan(e, now, scheduled, r, new, limits.async_scheduling)
        context += e.requests[r].computed
        scheduled += 1
    _account(e, limits.max_num_batched_tokens - budget, pairs, context, sampled, scheduled, cost)
    return scheduled


@compiled
def _plan(e: State, now: int, position: int, r: int, new: int, async_scheduling: bool) -> int:
    """Enters a request's next `new` tokens into the step; returns 1 if that generates a token."""
    request = e.requests[r]
    request.computed += new
    generates = int(request.computed >= request.tokens + request.placeholders)
    if async_scheduling:
        request.placeholders += generates
    planned = e.plans[now, position]
    planned.request = r
    planned.generates = generates
    return generates


@compiled
def _account(e: State, tokens: int, pairs: int, context: int, sampled: int, requests: int, cost: StepCost) -> None:
    at, step = e.at[0], e.step[0]
    step.tokens, step.pairs, step.context, step.sampled, step.requests = tokens, pairs, context, sampled, requests
    if tokens == 0:
        return
    compute_s = tokens * cost.token_s + pairs * cost.pair_s + sampled * cost.sample_s
    memory_s = cost.weights_s + context * cost.context_s
    if compute_s >= memory_s:
        at.compute_bound_s += compute_s
    else:
        at.memory_bound_s += memory_s
    at.steps += 1
    at.scheduled_tokens += tokens
    at.running_sum += at.running
    at.peak_running = max(at.peak_running, at.running)


@compiled
def _next_waiting(e: State) -> int:
    """The head of the queue, preempted requests first; NONE if nobody waits."""
    at = e.at[0]
    if at.returned:
        return int(e.seats[at.returned - 1].returned)
    if at.queue_head < at.queue_tail:
        return int(e.queue[at.queue_head])
    return NONE


@compiled
def _admit(e: State, r: int, budget: int, ids: Int32s, size: int, limits: Limits) -> int:
    """Starts the head of the queue if its whole prompt fits; returns the tokens that it computes now, 0 if not."""
    request, at = e.requests[r], e.at[0]
    found, idle = _lookup(e, r, ids, size)
    to_its_end = _most_blocks(request, size, limits) - found + idle
    if at.reserves and at.running and _owed(e, size, limits) + to_its_end > e.pool.free[0]:
        return 0  # the engine has not been given it yet
    if limits.counts_retries:
        _count(e, r, found * size)
    watermark = limits.watermark_blocks if at.running else 0
    if _blocks(request.tokens, size) - found + idle + watermark > e.pool.free[0]:
        return 0
    if not limits.counts_retries:
        _count(e, r, found * size)
    if request.state == PREEMPTED:
        at.returned -= 1
    else:
        at.queue_head += 1
        request.hits = found * size
    _enter(e, r, found, ids, size)
    new = min(request.tokens - request.computed, budget)
    _grow(e, r, new, ids, size)
    return int(new)


@compiled
def _owed(e: State, size: int, limits: Limits) -> int:
    """Blocks that the running requests will still take until they end."""
    owed = 0
    for i in range(e.at[0].running):
        request = e.requests[e.seats[i].running]
        owed += max(_most_blocks(request, size, limits) - request.held, 0)
    return owed


@compiled
def _most_blocks(request: Any, size: int, limits: Limits) -> int:
    """That a request holds at its end; asynchronous scheduling may plan a step beyond it."""
    return _blocks(request.prompt_tokens + limits.max_tokens + int(limits.async_scheduling), size)


@compiled
def _lookup(e: State, r: int, ids: Int32s, size: int) -> tuple[int, int]:
    """Leading blocks found, and how many of them wait in the free queue."""
    found, idle = 0, 0
    most = (e.requests[r].tokens - 1) // size
    while found < most:
        block = e.pool.contents[_content(e, r, found, ids)].oldest
        if block == NO_BLOCK:
            break
        idle += int(e.pool.blocks[block].holders == 0)
        found += 1
    return found, idle


@compiled
def _count(e: State, r: int, hits: int) -> None:
    if e.requests[r].state != PREEMPTED:
        e.at[0].queries += e.requests[r].tokens
        e.at[0].hits += hits


@compiled
def _enter(e: State, r: int, found: int, ids: Int32s, size: int) -> None:
    """Gives a request a place among the running ones and the blocks that it found."""
    request, at = e.requests[r], e.at[0]
    at.free_slots -= 1
    slot = e.seats[at.free_slots].free_slot
    request.slot = slot
    request.state = RUNNING
    e.seats[at.running].running = r
    at.running += 1
    for i in range(found):
        block = e.pool.contents[_content(e, r, i, ids)].oldest
        touch(e.pool, block)
        e.table[slot, i] = block
    request.held = found
    request.cached = found
    request.computed = found * size


@compiled
def _grow(e: State, r: int, new: int, ids: Int32s, size: int) -> bool:
    """Blocks for `new` more tokens; False, with nothing taken, if there are not enough."""
    request = e.requests[r]
    needed = _blocks(request.computed + new, size)
    if needed - request.held > e.pool.free[0]:
        return False
    while request.held < needed:
        e.table[request.slot, request.held] = take(e.pool)
        request.held += 1
    _store_full(e, r, min(request.computed + new, request.tokens), ids, size)
    return True


@compiled
def _store_full(e: State, r: int, tokens: int, ids: Int32s, size: int) -> None:
    """Makes the blocks that `tokens` known tokens fill findable."""
    request = e.requests[r]
    while request.cached < tokens // size:
        store(e.pool, e.table[request.slot, request.cached], _content(e, r, request.cached, ids))
        request.cached += 1


@compiled
def _make_room(e: State, r: int, new: int, ids: Int32s, size: int) -> bool:
    """Blocks for a running request, at the cost of those admitted after it, or of itself; True if it cost any."""
    preempted = False
    while e.requests[r].slot != NONE and not _grow(e, r, new, ids, size):
        preempted = True
        _preempt(e)
    return preempted


@compiled
def _preempt(e: State) -> None:
    """Takes the blocks of the request that was admitted last and puts it at the head of the queue."""
    at = e.at[0]
    at.running -= 1
    r = e.seats[at.running].running
    _leave(e, r)
    request = e.requests[r]
    request.state = PREEMPTED
    request.computed = 0
    request.placeholders = 0
    e.seats[at.returned].returned = r
    at.returned += 1
    at.preemptions += 1


@compiled
def _leave(e: State, r: int) -> None:
    request, at = e.requests[r], e.at[0]
    release(e.pool, e.table[request.slot, : request.held])
    e.seats[at.free_slots].free_slot = request.slot
    at.free_slots += 1
    request.slot = NONE
    request.held = 0
    request.cached = 0


@compiled
def update(e: State, step: int, scheduled: int, ids: Int32s, size: int, limits: Limits) -> None:
    """A step's tokens arrive: requests grow, and those at their end free their blocks."""
    ended = False
    for position in range(scheduled):
        planned = e.plans[step, position]
        request = e.requests[planned.request]
        if request.state == FINISHED or not planned.generates:
            continue
        request.tokens += 1
        if limits.async_scheduling and request.state == RUNNING:
            request.placeholders -= 1
            known = request.computed - request.placeholders
            if not _within_blocks(known, request.cached, request.held, size):
                _store_full(e, planned.request, known, ids, size)
        if request.tokens >= request.last_token:
            _finish(e, planned.request)
            ended = True
    if ended:
        _close_ranks(e)


@compiled
def _finish(e: State, r: int) -> None:
    request, at = e.requests[r], e.at[0]
    if request.state == RUNNING:
        _leave(e, r)
    else:
        _drop_returned(e, r)
    request.state = FINISHED
    at.done += 1
    batch = e.batches[request.batch]
    batch.left -= 1
    if batch.left == 0:
        lane = e.lanes[batch.lane]
        lane.open -= 1
        lane.left -= 1
        at.open_lanes -= int(lane.left == 0)
        at.arrivals_due = 1


@compiled
def _drop_returned(e: State, r: int) -> None:
    """A preempted request whose last token was in flight ends in the queue."""
    kept = 0
    for i in range(e.at[0].returned):
        if e.seats[i].returned != r:
            e.seats[kept].returned = e.seats[i].returned
            kept += 1
    e.at[0].returned = kept


@compiled
def _close_ranks(e: State) -> None:
    kept = 0
    for i in range(e.at[0].running):
        r = e.seats[i].running
        if e.requests[r].state == RUNNING:
            e.seats[kept].running = r
            kept += 1
    e.at[0].running = kept


@compiled
def _content(e: State, r: int, i: int, ids: Int32s) -> int:
    """Id of what a request's block `i` holds once full."""
    request = e.requests[r]
    if i < request.prompt_blocks:
        return int(ids[request.first_content + i])
    return int(request.own_content + i - request.prompt_blocks)


@compiled
def _within_blocks(tokens: int, cached: int, held: int, size: int) -> bool:
    """Whether a request reaches `tokens` without a new block and without filling one."""
    return tokens <= held * size and tokens < (cached + 1) * size


@compiled
def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)
