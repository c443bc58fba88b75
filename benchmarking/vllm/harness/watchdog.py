"""Follows a run from a thread on the driver: drains the engines' messages, shows progress, and says when to give up.

Peers can hang (a refused prompt, a dead engine, an actor without a GPU); the driver then waits inside their code, so
only a second thread can end the run.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import config
from harness import continuity
from harness.engine_log import EngineLog
from harness.engine_loss import EngineLosses

POLL_S = 0.5
# A run that has generated so many times the tokens asked for is not going to end by itself.
RUNAWAY = 2
# The mailbox answers in milliseconds; when it does not, its node or Ray itself is gone.
MAILBOX_TIMEOUT_S = 30.0
# Ray Data waits for CPUs without a word; RAY_NUM_CPUS counts only where the script starts Ray itself.
NOT_STARTED = (
    "is there a GPU for each, are there CPUs for ray-data's stages (about 8, RAY_NUM_CPUS), and did Ray start their "
    "actors?"
)


class Watchdog:
    """Calls `give_up(reason)` once, from its thread, when the run cannot finish any more."""

    def __init__(
        self,
        log: EngineLog,
        mailbox: Any,
        expected_tokens: int,
        give_up: Callable[[str], None],
        losses: EngineLosses | None = None,
    ) -> None:
        self._log, self._mailbox, self._asked, self._give_up = log, mailbox, expected_tokens, give_up
        self._losses = losses
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="watchdog")
        self.moved_at = self.started_at = self._shown_at = time.time()
        self._tokens = 0
        self._generating: set[str] = set()

    @property
    def _expected(self) -> int:
        """Tokens that the engines are to generate: without those of rows that an earlier run has answered."""
        return self._asked - continuity.current.continued_tokens

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; in a run that is being given up, this waits for the process to end."""
        self._stop.set()
        self._thread.join()

    def drain(self) -> None:
        import ray

        self._log.extend(ray.get(self._mailbox.drain.remote(), timeout=MAILBOX_TIMEOUT_S))
        for note in self._log.notes:
            print(note, file=sys.stderr)
        self._log.notes.clear()

    def _follow(self) -> None:
        while not self._stop.wait(POLL_S):
            reason = self._look()
            if reason and not self._stop.is_set():
                self._give_up(reason)
                return

    def _look(self) -> str | None:
        """Why the run cannot finish, or None."""
        try:
            self.drain()
            if self._losses:
                self._losses.look()
        except Exception as error:  # noqa: BLE001  (whatever Ray raises here, the run has lost its engines)
            return f"Ray does not answer any more ({type(error).__name__}); see its logs for a node or GCS failure"
        self._show_progress()
        return self.verdict()

    def verdict(self) -> str | None:
        """Why the run cannot finish, by what the engines have said so far, or None."""
        # With the probe off engines say nothing, which is no sign of trouble.
        if config.PROBE_INTERVAL_S == 0:
            return None
        overdue = self._losses.overdue() if self._losses else None
        return self._dead_engine() or overdue or self._late_start() or self._runaway() or self._stall()

    def _dead_engine(self) -> str | None:
        if continuity.current.survives_engines:
            return None
        finished = self._log.total("generation_tokens") >= self._expected
        return None if finished else self._log.died()

    def _late_start(self) -> str | None:
        ready = sum("ready_at" in engine for engine in self._log.engines.values())
        waited = time.time() - self.started_at
        if ready >= config.CONCURRENCY or self._tokens or waited < config.WATCHDOG_START_S:
            return None
        return (
            f"{ready} of {config.CONCURRENCY} engines ready after {waited:.0f} s and no token generated "
            f"(WATCHDOG_START_S); {self._blind() or NOT_STARTED}"
        )

    def _runaway(self) -> str | None:
        """Daft 0.7.26 hands the rows of its provider to the engines that are left again and again after one is lost."""
        tokens = self._log.total("generation_tokens")
        if tokens <= RUNAWAY * self._expected:
            return None
        return (
            f"the engines generated {tokens} tokens where {self._expected} were asked for, and the rows are not back: "
            f"{self._blind() or 'they are run again and again'}"
        )

    def _stall(self) -> str | None:
        tokens = self._log.total("generation_tokens")
        ready = [engine["ready_at"] for engine in self._log.engines.values() if "ready_at" in engine]
        if tokens > self._tokens or not ready:
            self._tokens, self.moved_at = tokens, time.time()
        if starting_s := continuity.current.starting_s():
            late = f"no engine is left, and no replacement was ready after {starting_s:.0f} s (WATCHDOG_START_S)"
            return late if starting_s > config.WATCHDOG_START_S else None
        idle = time.time() - max([self.moved_at, *ready])
        if idle < config.WATCHDOG_STALL_S:
            return None
        return (
            f"no token generated for {idle:.0f} s (WATCHDOG_STALL_S) after {tokens} of {self._expected}: "
            f"{self._blind() or 'a prompt was refused, rows were lost, or the rows are not coming back'}"
        )

    def _blind(self) -> str | None:
        """Engines that were lost, or that may well be generating, unseen."""
        if self._log.losses:
            return "; ".join(self._log.losses)
        lost = [f"{engine['engine']} ({engine['lost']})" for engine in self._log.engines.values() if "lost" in engine]
        return f"the probe failed in engine {', '.join(lost)}" if lost else None

    def _show_progress(self) -> None:
        self._show_first_tokens()
        now = time.time()
        if now - self._shown_at < config.PROGRESS_INTERVAL_S:
            return
        self._shown_at = now
        ready = sum("ready_at" in engine for engine in self._log.engines.values())
        running, waiting = self._log.total("running"), self._log.total("waiting")
        print(
            f"{now - self.started_at:5.0f} s  engines ready {ready}/{config.CONCURRENCY}  running {running}  "
            f"waiting {waiting}  output tokens {self._log.total('generation_tokens')}/{self._expected}",
            file=sys.stderr,
        )

    def _show_first_tokens(self) -> None:
        generating = {engine["engine"] for engine in self._log.built() if engine["latest"].get("generation_tokens")}
        for name in sorted(generating - self._generating):
            print(f"{time.time() - self.started_at:5.0f} s  engine {name} generates", file=sys.stderr)
        self._generating |= generating
