"""Open-loop load: every request is sent at its scheduled arrival, whatever became of the ones before it.

One process, one thread, one event loop. Bodies are made before the clock starts, garbage collection rests meanwhile,
and how late each request was sent is part of what is measured.
"""

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import uvloop
from harness.serving import outcome, priority
from harness.serving.connection import Connection, Endpoint, Pool
from harness.serving.exchange import Exchange
from harness.serving.outcome import Outcome

# Between the preparation and the first arrival, so that the first is not late.
LEAD_S = 0.05
# uvloop rounds its timers to milliseconds, also down; a request that left early would look fast.
TIMER_S = 0.001
DEFAULT_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A request ready to be sent at `at_s` after the start; `message` is the whole HTTP request."""

    at_s: float
    message: bytes
    family: str
    output_len: int
    cancel_after: int | None = None


@dataclass(frozen=True)
class Limits:
    """What bounds a row: seconds a request may take once sent, seconds after the last arrival until the row ends,
    requests in flight (none: no cap), and how often a refused caller comes back."""

    request_timeout_s: float = 60.0
    drain_s: float = 20.0
    max_in_flight: int | None = None
    retries: int = 0


def offer(endpoint: Endpoint, plan: Sequence[Planned], limits: Limits) -> list[Outcome]:
    """Sends the plan and returns one ended outcome for each request, in the plan's order.

    Takes at most the last arrival plus `drain_s`, whatever the server does.
    """
    with priority.raised(), _undisturbed():
        return uvloop.run(Load(endpoint, plan, limits).run())


class Load:
    """A row's requests in flight; lives for one `run`."""

    def __init__(self, endpoint: Endpoint, plan: Sequence[Planned], limits: Limits) -> None:
        self._plan, self._limits = plan, limits
        self._pool = Pool(endpoint, self.now)
        self.outcomes = [Outcome(i, request.family, request.at_s) for i, request in enumerate(plan)]
        self._waiting: deque[int] = deque()
        self._in_flight = 0
        self._open = len(plan)
        self._live: dict[int, tuple[Connection | None, asyncio.TimerHandle, Exchange]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._zero = 0.0

    def now(self) -> float:
        return perf_counter() - self._zero

    async def run(self) -> list[Outcome]:
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        start = self._loop.time() + LEAD_S + TIMER_S
        self._zero = perf_counter() + LEAD_S
        for index, request in enumerate(self._plan):
            self._loop.call_at(start + request.at_s, self._arrive, index)
        end_s = LEAD_S + max((request.at_s for request in self._plan), default=0.0) + self._limits.drain_s
        if self._plan:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), end_s)
        self._give_up_the_rest()
        self._pool.close()
        # Lets the closed connections leave before the loop ends.
        await asyncio.sleep(0)
        return self.outcomes

    def _arrive(self, index: int) -> None:
        cap = self._limits.max_in_flight
        if cap is not None and self._in_flight >= cap:
            self._waiting.append(index)
        else:
            self._send(index)

    def _send(self, index: int) -> None:
        self._in_flight += 1
        record, request = self.outcomes[index], self._plan[index]
        record.attempts += 1
        if record.sent_s is None:
            # Connecting is the server's time too, as in `vllm bench serve`.
            record.sent_s = self.now()
        exchange = Exchange(
            record,
            request.output_len,
            request.cancel_after,
            lambda result, cause, detail: self._ended(index, exchange, result, cause, detail),
        )
        timeout = self._loop.call_later(self._limits.request_timeout_s, self._time_out, index)
        connection = self._pool.free()
        self._live[index] = (connection, timeout, exchange)
        if connection is not None:
            self._write(index, connection)
            return
        task = self._loop.create_task(self._connect_and_send(index, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_and_send(self, index: int, exchange: Exchange) -> None:
        try:
            connection = await self._pool.connect()
        except OSError as error:
            exchange.end(outcome.FAILED, "no connection", str(error))
            return
        if exchange.is_over:
            connection.drop()
            return
        _, timeout, _ = self._live[index]
        self._live[index] = (connection, timeout, exchange)
        self._write(index, connection)

    def _write(self, index: int, connection: Connection) -> None:
        connection.send(self._plan[index].message, self._live[index][2])

    def _ended(self, index: int, exchange: Exchange, result: str, cause: str | None, detail: str) -> None:
        _, timeout, _ = self._live.pop(index)
        timeout.cancel()
        self._in_flight -= 1
        record = self.outcomes[index]
        if result == outcome.REFUSED and record.attempts <= self._limits.retries:
            record.begin_again()
            self._loop.call_later(exchange.retry_after_s or DEFAULT_RETRY_AFTER_S, self._come_back, index)
        else:
            record.end(result, self.now(), cause, detail)
            self._open -= 1
        if self._open == 0:
            self._all_ended.set()
        elif self._waiting:
            self._send(self._waiting.popleft())

    def _come_back(self, index: int) -> None:
        if self.outcomes[index].result is None:
            self._arrive(index)

    def _time_out(self, index: int) -> None:
        _, _, exchange = self._live[index]
        began = exchange.record.status is not None
        self._drop(index, "stalled" if began else "no answer in time")

    def _drop(self, index: int, cause: str) -> None:
        connection, _, exchange = self._live[index]
        if connection is not None:
            connection.drop()
        exchange.end(outcome.FAILED, cause, f"{exchange.record.tokens} tokens had come")

    def _give_up_the_rest(self) -> None:
        """Counts what has not ended: in flight, waiting for its turn, or refused and not back yet."""
        self._waiting.clear()
        for index in list(self._live):
            self._drop(index, outcome.OVERLOAD_CAUSES[2])
        for record in self.outcomes:
            if record.result is None:
                was_refused = record.attempts > 0
                result = outcome.REFUSED if was_refused else outcome.FAILED
                record.end(result, self.now(), outcome.OVERLOAD_CAUSES[2], "")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
