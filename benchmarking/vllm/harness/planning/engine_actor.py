"""One engine of prefix-planned.py: a Ray actor that admits the rows it is given and reports those that have ended.

Any engine with VllmEngine's four members will do; tests put a simulated one in its place.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import config
import numpy as np
from harness import engine_probe
from harness.planning.admission import Admission, Request
from harness.planning.vllm_engine import EngineLostError, OnStep, RefusedError
from harness.planning.window import Int32s, Int64s

# Rows that have ended are reported together, unless the engine is about to run out of rows to admit.
REPORT_S = 0.25

Build = Callable[[dict[str, Any], dict[str, Any], OnStep], Any]


class Rows(NamedTuple):
    """Rows by their keys, and the tokens of each, end to end: prompts on their way in, outputs on their way out."""

    keys: Int64s
    tokens: Int32s
    lengths: Int64s


class Report(NamedTuple):
    """What has happened since the last one."""

    ended: Rows
    refused: dict[int, str]  # key → reason
    received: int  # rows given so far
    waiting: int  # of them not admitted yet
    lost: str | None  # why the engine is gone; all rows that have not ended are to be run elsewhere


def most_in_flight() -> int:
    """Requests that an engine is given at a time: more than it can run would wait in it, where nobody can move them."""
    return min(config.PLANNED_MAX_IN_FLIGHT, config.MAX_NUM_SEQS)


class EngineActor:
    def __init__(self, build: Build, args: dict[str, Any], sampling: dict[str, Any]) -> None:
        self._build, self._args, self._sampling = build, args, sampling
        self._waiting: deque[Request] = deque()
        self._received = 0
        self._ended: list[tuple[int, Int32s]] = []
        self._refused: dict[int, str] = {}
        self._lost: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Returns when the engine is ready, or raises why it is not."""
        self._due, self._news = asyncio.Event(), asyncio.Event()
        self._engine = self._build(self._args, self._sampling, self._stepped)
        self._admission = Admission(
            self._engine.kv_blocks,
            self._engine.block_size,
            int(self._sampling["max_tokens"]),
            most_in_flight(),
            config.PLANNED_PACE,
            config.PLANNED_BURST_TOKENS,
        )
        self._start_task(self._admit())

    async def give(self, rows: Rows) -> None:
        """More rows, to be run after those that it has."""
        ends = np.cumsum(rows.lengths)
        for key, begin, end in zip(rows.keys.tolist(), (ends - rows.lengths).tolist(), ends.tolist(), strict=True):
            self._waiting.append(Request(key, rows.tokens[begin:end]))
        self._received += len(rows.keys)
        self._due.set()

    async def report(self, wanting: int) -> Report:
        """Waits until rows have ended, fewer than `wanting` are left to admit, or the engine is gone."""
        until = time.monotonic() + REPORT_S
        while not self._has_news(wanting, time.monotonic() >= until):
            self._news.clear()
            await _wait(self._news, REPORT_S)
        if self._lost or self._is_idle():
            # The actor may be ended as soon as this is known, and with it what its probe has not yet said.
            await asyncio.get_running_loop().run_in_executor(None, engine_probe.report)
        ended, self._ended = self._ended, []
        refused, self._refused = self._refused, {}
        return Report(_rows(ended), refused, self._received, len(self._waiting), self._lost)

    def _has_news(self, wanting: int, late: bool) -> bool:
        some = bool(self._ended or self._refused) and (late or self._is_idle())
        return bool(self._lost) or len(self._waiting) < wanting or some

    def _is_idle(self) -> bool:
        return not self._waiting and not self._admission.in_flight

    def _stepped(self, first_tokens: int) -> None:
        self._admission.stepped(first_tokens)
        self._due.set()

    async def _admit(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            while self._waiting and self._admission.allows(self._waiting[0]):
                await self._submit(self._waiting.popleft())
            self._news.set()

    async def _submit(self, request: Request) -> None:
        # Counted before the engine has it: it may be part of a step that ends before this returns.
        self._admission.admit(request)
        try:
            submitted = await self._engine.submit(str(request.key), request.tokens.tolist())
        except RefusedError as error:
            self._end(request, refused=str(error))
        except EngineLostError as error:
            self._die(str(error))
        else:
            self._start_task(self._follow(request, submitted))

    async def _follow(self, request: Request, submitted: Any) -> None:
        try:
            tokens = await self._engine.answer(submitted)
        except RefusedError as error:
            self._end(request, refused=str(error))
        except EngineLostError as error:
            self._die(str(error))
        else:
            self._end(request, np.asarray(tokens, np.int32))

    def _end(self, request: Request, tokens: Int32s | None = None, refused: str = "") -> None:
        self._admission.ended(request.key, 0 if tokens is None else len(tokens))
        if tokens is None:
            self._refused[request.key] = refused
        else:
            self._ended.append((request.key, tokens))
        self._due.set()
        self._news.set()

    def _die(self, reason: str) -> None:
        if not self._lost:
            self._lost = reason or "its core process is gone"
        self._news.set()

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        """An error of our own ends the engine too, with its reason, instead of a request that is never answered."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._die(f"{type(error).__name__}: {error}")


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return


def _rows(ended: list[tuple[int, Int32s]]) -> Rows:
    lengths = np.array([len(tokens) for _, tokens in ended], np.int64)
    tokens = np.concatenate([np.empty(0, np.int32), *(tokens for _, tokens in ended)])
    return Rows(np.array([key for key, _ in ended], np.int64), tokens, lengths)
