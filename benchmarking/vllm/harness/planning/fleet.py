"""All engines of prefix-planned.py, from the driver: hands out planned rows, collects answers, survives engines.

Ray holds the engines, one actor for each, and carries tokens to them and back. An engine whose actor or core process
dies costs the rows that it had not reported: they are run again elsewhere, and the engine is replaced while
PLANNED_RESTARTS allows.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import config
import numpy as np
import ray
from harness import continuity
from harness.engines import engine_args
from harness.planning.answers import Answers
from harness.planning.engine_actor import Build, EngineActor, Report, Rows, most_in_flight
from harness.planning.queues import Queues, Stretch
from harness.planning.suspects import Suspects
from harness.planning.vllm_engine import VllmEngine
from harness.planning.window import Window

# The driver looks at least this often whether the next window is planned.
LOOK_S = 0.5
# A row's key: its window's number, and its place in it.
PLACE_BITS = 32


@dataclass
class Engine:
    """The driver's view of one engine."""

    number: int
    actor: Any
    call: Any  # the answer that is waited for: start()'s first, then report()'s
    ready: bool = False
    sent: int = 0  # rows
    in_hand: int = 0  # rows that it has not admitted, at most
    apart: bool = False  # it runs suspects, and must be given nothing else
    given: dict[int, None] = field(default_factory=dict)  # keys of the rows that it has not reported, in order


class Fleet:
    """Starts config.CONCURRENCY engines; `run` may be called while they start."""

    def __init__(self, build: Build = VllmEngine) -> None:
        self._build = build
        continuity.current.survives_engines = True
        self._engines = {number: self._start(number) for number in range(config.CONCURRENCY)}
        self._queues = Queues(config.CONCURRENCY)
        self._windows: dict[int, Window] = {}
        self._left: dict[int, int] = {}  # window → rows that are neither answered nor given up
        self._suspects = Suspects()
        self._refused: set[int] = set()
        self._restarts_left = config.PLANNED_RESTARTS
        self._worked = False  # whether any engine was ever ready
        self._never_started: dict[int, str] = {}  # number → why; replaced once another engine has shown that it can be

    def run(self, windows: Iterator[Window], answers: Answers) -> None:
        """Runs all rows and adds them to `answers`, but for those that cannot run (continuity.current.given_up).

        Raises RuntimeError when no engine is left and none may be started any more.
        """
        planner = ThreadPoolExecutor(1, thread_name_prefix="planner")
        try:
            coming: Future[Window | None] | None = planner.submit(next, windows, None)
            while coming or self._left:
                if coming and coming.done() and self._queues.is_low(len(self._engines), most_in_flight()):
                    window = coming.result()
                    coming = planner.submit(next, windows, None) if window else None
                    self._add(window)
                self._hand_out(more_to_come=coming is not None)
                self._listen(answers)
                answers.flush()
        finally:
            planner.shutdown(wait=False, cancel_futures=True)
            for engine in self._engines.values():
                if not engine.ready:
                    ray.kill(engine.actor)

    def _start(self, number: int) -> Engine:
        options = {"num_cpus": 0, "num_gpus": config.GPUS_PER_ENGINE, "max_restarts": 0}
        engine = ray.remote(EngineActor).options(**options)
        actor = engine.remote(self._build, engine_args(), dict(config.SAMPLING_PARAMS))
        return Engine(number, actor, actor.start.remote())

    def _add(self, window: Window | None) -> None:
        if window is not None:
            self._windows[window.number] = window
            self._left[window.number] = len(window)
            self._queues.add(window, sorted(self._engines))

    def _hand_out(self, more_to_come: bool) -> None:
        """Fills up what the engines have in hand, and asks them for news."""
        wanted = self._queues.in_hand(len(self._engines), most_in_flight(), more_to_come)
        for engine in [engine for engine in self._engines.values() if engine.ready]:
            usual = not self._runs_suspects(engine)
            # Not for a row or two: they would come one by one.
            if usual and engine.in_hand <= wanted // 2:
                self._give(engine, self._queues.take(engine.number, wanted - engine.in_hand))
            if engine.call is None:
                engine.call = engine.actor.report.remote(wanted // 2 if usual and wanted else 0)

    def _runs_suspects(self, engine: Engine) -> bool:
        """Suspects run on one engine, which is given nothing else from now on until they are through."""
        if engine.apart and not engine.given:
            engine.apart = False
        if not self._suspects or engine.number != min(self._engines):
            return engine.apart
        if not engine.given:
            engine.apart = True
            self._give(engine, self._stretches(self._suspects.take()))
        return True

    def _give(self, engine: Engine, stretches: list[Stretch]) -> None:
        places = [(window, place) for window, begin, end in stretches for place in range(begin, end)]
        if not places:
            return
        prompts = [window.prompt(place) for window, place in places]
        keys = [window.number << PLACE_BITS | place for window, place in places]
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        engine.given.update(dict.fromkeys(keys))
        engine.sent += len(keys)
        engine.in_hand += len(keys)
        engine.actor.give.remote(Rows(np.array(keys, np.int64), np.concatenate(prompts), lengths))

    def _listen(self, answers: Answers) -> None:
        """Waits for engines to say something, and does what follows from it."""
        calls = {engine.call: engine for engine in self._engines.values() if engine.call is not None}
        ray.wait(list(calls), num_returns=1, timeout=LOOK_S)
        for call in ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
            engine = calls[call]
            engine.call = None
            try:
                said = ray.get(call)
            except ray.exceptions.RayError as error:
                # Nobody can say which of its rows it had begun.
                self._lost(engine, _reason(error), not_begun=0)
            else:
                self._heard(engine, said, answers)

    def _heard(self, engine: Engine, report: Report | None, answers: Answers) -> None:
        if report is None:  # start() has returned
            engine.ready = self._worked = True
            continuity.current.starting_since = None
            for number in list(self._never_started):
                self._replace(number, self._never_started.pop(number))
            return
        engine.in_hand = report.waiting + engine.sent - report.received
        self._collect(engine, report.ended, answers)
        for key, reason in report.refused.items():
            del engine.given[key]
            if key in self._refused:
                self._give_up(key, f"refused twice: {reason}")
            else:
                self._refused.add(key)
                self._queues.put_back((engine.number + 1) % config.CONCURRENCY, self._stretches([key]))
        if report.lost:
            self._lost(engine, report.lost, not_begun=engine.in_hand)

    def _collect(self, engine: Engine, ended: Rows, answers: Answers) -> None:
        begins = np.cumsum(ended.lengths) - ended.lengths
        numbers = ended.keys >> PLACE_BITS
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            ids = self._windows[number].ids.take(ended.keys[rows] & (1 << PLACE_BITS) - 1)
            tokens = [ended.tokens[begins[row] : begins[row] + ended.lengths[row]] for row in rows]
            answers.add(ids, Rows(ended.keys[rows], np.concatenate(tokens), ended.lengths[rows]))
            self._done(number, len(rows))
        for key in ended.keys.tolist():
            del engine.given[key]

    def _done(self, window: int, rows: int) -> None:
        self._left[window] -= rows
        if not self._left[window]:
            del self._left[window], self._windows[window]

    def _give_up(self, key: int, reason: str) -> None:
        window = key >> PLACE_BITS
        row = self._windows[window].ids[key & (1 << PLACE_BITS) - 1].as_py()
        continuity.current.given_up[str(row)] = reason
        self._done(window, 1)

    def _lost(self, engine: Engine, reason: str, not_begun: int) -> None:
        """The engine is gone. What it had not reported is run again; so many rows, the last ones, it had not begun."""
        print(f"engine {engine.number + 1} of {config.CONCURRENCY} is lost: {reason}", file=sys.stderr)
        ray.kill(engine.actor)
        del self._engines[engine.number]
        if not self._worked:
            self._never_started[engine.number] = reason
            if not self._engines:
                first = next(iter(self._never_started.values()))
                raise RuntimeError(f"no engine started; the first to fail: {first}")
            continuity.current.lost_engines.append(reason)
            return
        keys = list(engine.given)
        # Rows are begun in the order in which they were given.
        begun, others = keys[: len(keys) - not_begun], keys[len(keys) - not_begun :]
        again, hopeless = self._suspects.died(begun)
        self._queues.put_back(engine.number, self._stretches([*again, *others]))
        for key in hopeless:
            self._give_up(key, f"an engine died while it ran alone, after others did while it ran: {reason}")
        continuity.current.lost_engines.append(reason)
        continuity.current.redone_rows += len(begun) - len(hopeless)
        if self._left or len(self._queues):
            self._replace(engine.number, reason)

    def _replace(self, number: int, reason: str) -> None:
        if self._restarts_left:
            self._restarts_left -= 1
            self._engines[number] = self._start(number)
        if not self._engines:
            raise RuntimeError(
                f"expected an engine to run {sum(self._left.values()):,} more rows, found all of them dead and "
                f"{config.PLANNED_RESTARTS} replaced (PLANNED_RESTARTS). The last one: {reason}"
            )
        if not any(engine.ready for engine in self._engines.values()):
            continuity.current.starting_since = time.time()

    def _stretches(self, keys: Iterable[int]) -> list[Stretch]:
        """Rows by their keys as stretches, in order of their places."""
        ordered = sorted(keys)
        begins = [key for before, key in pairwise([-2, *ordered]) if key != before + 1]
        ends = [key + 1 for key, after in pairwise([*ordered, -2]) if after != key + 1]
        first = (1 << PLACE_BITS) - 1
        return [
            Stretch(self._windows[begin >> PLACE_BITS], begin & first, (end - 1 & first) + 1)
            for begin, end in zip(begins, ends, strict=True)
        ]


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:500]
