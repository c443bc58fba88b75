"""One vLLM engine in simulated time: the exact replay of its scheduler and cache, with a clock.

    engine = Engine(prompts, limits, time, ready_s, front_end_s_a_token)
    batch = engine.give(rows, at_s)
    ended = engine.run()      # [(batch, seconds), ...]: batches whose last request ended; [] when nothing is left to do

The front end makes token ids of one prompt after the other; each request arrives when its own are made.

A request joins the first step that is scheduled after its arrival. With asynchronous scheduling a step is scheduled as
soon as the one before begins to run, so that a request may wait for one step more, as in vLLM.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from harness.prediction import engine_state, sparse
from harness.prediction.block_cache import schedule, update
from harness.prediction.block_pool import new_pool
from harness.prediction.compiled import Int32s, Records, compiled
from harness.prediction.engine_state import BATCH, LANE, REQUEST, Limits, Prompts, State, StepCost
from harness.simulation.step_time import StepTime, seconds

Float64s = npt.NDArray[np.float64]
STEPS_A_TRACE = 1 << 14
# Asynchronous scheduling keeps one step in flight; NO_STEP says that none is.
NO_STEP = -1

# A step as it ran: from, to in seconds, and its sizes as in engine_state.STEP.
TRACE: Any = np.dtype(
    [("begin_s", np.float64), ("end_s", np.float64)]
    + [(name, np.int32) for name in ("tokens", "pairs", "context", "sampled", "requests")]
)
CLOCK: Any = np.dtype(
    [("now_s", np.float64), ("free_s", np.float64)]  # of the scheduler; when the GPU ends its last step
    + [(name, np.int64) for name in ("in_flight", "plan", "given", "steps", "until")]  # stops at so many steps
)


class Clock(NamedTuple):
    at: Records  # [1] CLOCK
    arrival_s: Float64s  # [requests]
    trace: Records  # [STEPS_A_TRACE] TRACE


class Engine:
    """Any row may be given, once. Memory is used as rows are given."""

    def __init__(
        self, prompts: Prompts, limits: Limits, time: StepTime, ready_s: float, front_end_s_a_token: float
    ) -> None:
        self._prompts, self._limits, self._time = prompts, limits, time
        self._front_end_s_a_token, self._front_end_free_s = front_end_s_a_token, ready_s
        rows = np.arange(len(prompts.tokens), dtype=np.int32)
        capacity = len(rows)
        pool = new_pool(*engine_state.pool_size(prompts, rows, limits))
        most_blocks = int(engine_state.most_blocks_a_row(prompts, rows, limits).max(initial=0))
        batches, lanes = sparse.zeros(capacity, BATCH), np.full(1, capacity + 1, LANE)
        requests = sparse.zeros(capacity, REQUEST)
        self.state = engine_state.empty_state(requests, batches, lanes, most_blocks, limits, pool)
        self._clock = Clock(np.zeros(1, CLOCK), sparse.zeros(capacity, np.float64), np.zeros(STEPS_A_TRACE, TRACE))
        self._clock.at["now_s"], self._clock.at["free_s"], self._clock.at["in_flight"] = ready_s, ready_s, NO_STEP
        self._clock.at["until"] = STEPS_A_TRACE
        self._traces: list[Any] = []
        self._open: list[int] = []
        self._batches, self._own_blocks = 0, 0
        self.ready_s = ready_s

    def give(self, rows: Int32s, at_s: float) -> int:
        """One batch more, sent at this time; returns its number."""
        given, batch = self.given, self._batches
        requests = engine_state.new_requests(self._prompts, rows, self._limits, self._own_blocks)
        requests["batch"] = batch
        self.state.requests[given : given + len(rows)] = requests
        self.state.queue[given : given + len(rows)] = np.arange(given, given + len(rows))
        self._clock.arrival_s[given : given + len(rows)] = self._arrivals(rows, at_s)
        self.state.batches[batch]["left"] = len(rows)
        self._clock.at["given"] += len(rows)
        self._own_blocks += int(engine_state.own_blocks_a_row(self._prompts, rows, self._limits).sum())
        self._open.append(batch)
        self._batches += 1
        return batch

    def _arrivals(self, rows: Int32s, at_s: float) -> Float64s:
        began_s = max(at_s, self._front_end_free_s)
        tokens = np.cumsum(self._prompts.tokens[rows], dtype=np.float64)
        arrivals: Float64s = began_s + self._front_end_s_a_token * tokens
        self._front_end_free_s = float(arrivals[-1])
        return arrivals

    def run(self) -> list[tuple[int, float]]:
        """Until a batch ends, or all has."""
        while self._open:
            self._go_on()
            ended = [batch for batch in self._open if not self.state.batches[batch]["left"]]
            if ended:
                self._open = [batch for batch in self._open if batch not in ended]
                return [(batch, self.now_s) for batch in ended]
        return []

    def step(self) -> None:
        """One step is launched and, with asynchronous scheduling, the one before ends; or the last ones end."""
        self._clock.at["until"] = self._clock.at["steps"] + 1
        self._go_on()

    @property
    def now_s(self) -> float:
        return float(self._clock.at["now_s"][0])

    @property
    def given(self) -> int:
        """Rows so far; the next one given will be the request of this number."""
        return int(self._clock.at["given"][0])

    def _go_on(self) -> None:
        prompts, clock = self._prompts, self._clock
        _run(self.state, clock, prompts.block_ids, prompts.block_size, self._limits, self._time, StepCost())
        if clock.at["steps"][0] == STEPS_A_TRACE:
            self._keep_trace()

    def trace(self) -> Any:
        """All steps so far, [steps] TRACE."""
        self._keep_trace()
        self._traces = [np.concatenate(self._traces)]
        return self._traces[0]

    def last_token_s(self) -> float:
        """An engine without any token has been dry since it was ready."""
        ends = self.trace()["end_s"]
        return float(ends[-1]) if len(ends) else self.ready_s

    def _keep_trace(self) -> None:
        self._traces.append(self._clock.trace[: self._clock.at["steps"][0]].copy())
        self._clock.at["steps"] = 0


@compiled
def _run(e: State, clock: Clock, ids: Int32s, size: int, limits: Limits, time: StepTime, cost: StepCost) -> None:
    """Steps until a batch ends (at.arrivals_due), enough are launched, or all that was given has ended."""
    at, c = e.at[0], clock.at[0]
    at.arrivals_due = 0
    while at.done < c.given and not at.arrivals_due and c.steps < c.until:
        while at.queue_tail < c.given and clock.arrival_s[at.queue_tail] <= c.now_s:
            at.queue_tail += 1
        scheduled = schedule(e, c.plan, ids, size, limits, cost)
        tokens, flight_end_s = e.step[0].tokens, c.free_s
        if tokens:
            _launch(e, clock, time)
        if not limits.async_scheduling:
            c.now_s = c.free_s if tokens else _next_arrival_s(e, clock)
            update(e, c.plan, scheduled, ids, size, limits)
            continue
        if c.in_flight != NO_STEP:
            c.now_s = max(c.now_s, flight_end_s)
            update(e, 1 - c.plan, c.in_flight, ids, size, limits)
        elif not tokens:
            c.now_s = _next_arrival_s(e, clock)
        c.in_flight = scheduled if tokens else NO_STEP
        c.plan = 1 - c.plan


@compiled
def _next_arrival_s(e: State, clock: Clock) -> float:
    """When an engine with nothing to run goes on."""
    at, c = e.at[0], clock.at[0]
    if at.queue_tail >= c.given:
        raise RuntimeError("a request that waits can never run: its KV cache is too small")
    return max(float(c.now_s), float(clock.arrival_s[at.queue_tail]))


@compiled
def _launch(e: State, clock: Clock, time: StepTime) -> None:
    """Runs the scheduled step on the GPU once the last one is through."""
    c, step = clock.at[0], e.step[0]
    begin_s = max(c.now_s, c.free_s)
    c.free_s = begin_s + seconds(time, step.tokens, step.pairs, step.context, step.sampled, step.requests)
    traced = clock.trace[c.steps]
    traced.begin_s, traced.end_s = begin_s, c.free_s
    traced.tokens, traced.pairs, traced.context = step.tokens, step.pairs, step.context
    traced.sampled, traced.requests = step.sampled, step.requests
    c.steps += 1
