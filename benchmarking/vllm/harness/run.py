"""Runs one strategy: preflight, Ray, stopwatch, checks, record. Every strategy script ends in `run(__file__, it)`.

Exit codes: 0 ok, 1 invalid (the run ended, but a check failed), 2 failed (it did not end), 3 refused by preflight.
"""

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import config
import pyarrow as pa
from harness import cluster, continuity, engine_log, machine, preflight, records, remote_records, stdout
from harness.clock import Clock
from harness.data import storage
from harness.engine_loss import EngineLosses
from harness.evidence import evidence
from harness.preflight import workload
from harness.watchdog import Watchdog

EXIT_CODES = {"ok": 0, "invalid": 1, "failed": 2, "refused": 3}
# The engines' last counters arrive within milliseconds of the last token; a lost message must not hold up a run.
SETTLE_S = 5.0
# Ray answers in milliseconds, a node that is gone is waited for; where Ray itself is gone, the record cannot wait.
LOOK_S = 20.0
# vLLM says this of an engine that did not start; its core's own words went to the stdout of that engine's Ray worker.
SEE_ABOVE = "See root cause above"
WHERE_IT_SAYS_WHY = " (why: see worker-*-PID.out among the logs of Ray's session on the engine's node)"


Strategy = Callable[[], pa.Table]


def run(script: str, strategy: Strategy) -> None:
    """Runs `strategy`, which returns a table with `id` and `output` (and `output_tokens` where it knows them), and
    exits. The last line of stdout is the record, which is also appended under config.RESULTS_PATH."""
    sys.stderr = stdout.unfailing(sys.stderr)
    started = Run(script, strategy)
    # Ray writes what its nodes complain of to the driver's stdout, and may do so after the record.
    sys.stdout = sys.stderr
    sys.exit(EXIT_CODES[started.execute()])


class Run:
    """One run from preflight to record; the watchdog's thread may end it at any moment after the engines start."""

    def __init__(self, script: str, strategy: Strategy) -> None:
        self._strategy, self._stdout = strategy, sys.stdout
        self._record = records.new(Path(script))
        self._clock = Clock()
        self._log = engine_log.EngineLog()
        self._closing = threading.Lock()
        self._started_here = False
        self._started_at = 0.0
        self._node = ""
        self._stopped_by: str | None = None

    def execute(self) -> str:
        """Runs to the end and returns the record's status."""
        try:
            self._prepare()
            table, ended_at = self._generate()
            problems = self._judge(table, ended_at)
        except preflight.PreflightError as error:
            return self._close("refused", str(error))
        except BaseException as error:  # noqa: BLE001  (a run that stops for any reason is a record that says why)
            traceback.print_exc()
            return self._close("failed", self._stopped_by or _cause(error))
        return self._close("invalid" if problems else "ok", "; ".join(problems) or None)

    def _prepare(self) -> None:
        self._catch_signals()
        self._workload = preflight.run()
        self._record.update(dataset=self._workload_record())
        try:
            self._started_here = cluster.connect()
        except cluster.NoClusterError as error:
            raise preflight.PreflightError([str(error)]) from None
        # Again: ray.init puts its own handler there, which kills Ray's processes before anything is recorded.
        self._catch_signals()
        preflight.require_gpus(cluster.gpus(), cluster.free_gpus)
        preflight.require_capacity(cluster.cpus())
        self._record.update(hardware=machine.hardware())
        # Three strategies need vLLM on the driver; its import is no part of any strategy, so it comes before all.
        importlib.import_module("vllm")

    @property
    def _expected_tokens(self) -> int:
        lengths = self._workload.output_lengths
        asked = lengths * self._workload.rows if isinstance(lengths, int) else int(lengths.sum())
        return asked - continuity.current.continued_tokens

    def _workload_record(self) -> dict[str, Any]:
        asked = self._workload
        return {
            "name": records.portable(config.INPUT_PATH),
            "rows": asked.rows,
            "files": asked.files,
            "fingerprint": asked.fingerprint,
            "prompt_bytes": asked.prompt_bytes,
        }

    def _generate(self) -> tuple[pa.Table, float]:
        """The clock runs from the strategy's call until its rows are back and, where that is asked for, written."""
        mailbox = engine_log.open_mailbox()
        self._node = cluster.this_node()
        continuity.current.fingerprint = self._workload.fingerprint
        self._losses = EngineLosses(self._log, self._workload.rows)
        watchdog = Watchdog(self._log, mailbox, self._expected_tokens, self._abort, self._losses)
        self._clock = Clock()  # what was set before is no matter
        self._started_at = self._clock.now()
        watchdog.start()
        try:
            table = self._strategy()
            returned_at = self._clock.now()
            self._write(table)
            ended_at = self._clock.now()
        finally:
            watchdog.stop()
            self._look_for_losses(watchdog)
        self._write_s = ended_at - returned_at
        self._settle(watchdog)
        return table, ended_at

    def _look_for_losses(self, watchdog: Watchdog) -> None:
        """Names nodes and processes that are gone: a peer may fail, or finish without them, before they are missed."""
        if self._stopped_by:
            return

        def look() -> None:
            watchdog.drain()
            self._losses.look(after_failure=True)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(LOOK_S)

    def _write(self, table: pa.Table) -> None:
        if config.OUTPUT_PATH is not None:
            files, folder = storage.filesystem(config.OUTPUT_PATH)
            files.create_dir(folder)
            file = f"{self._record['run_id']}.parquet"
            storage.write_table(table, files, f"{folder}/{file}")
            print(f"answers: {config.OUTPUT_PATH.rstrip('/')}/{file}", file=sys.stderr)
        if continuity.current.answers_written is not None:
            continuity.current.answers_written()

    def _settle(self, watchdog: Watchdog) -> None:
        watchdog.drain()
        deadline = time.time() + SETTLE_S
        while self._log.total("generation_tokens") < self._expected_tokens and time.time() < deadline:
            time.sleep(0.2)
            watchdog.drain()

    def _judge(self, table: pa.Table, ended_at: float) -> list[str]:
        found = evidence(self._log, self._workload, table, self._started_at, ended_at, self._write_s)
        problems: list[str] = found.pop("problems")
        self._record.update(found)
        # Also where every row is back: fewer engines than asked for did part of the work. A strategy that sees to it
        # itself says so in the record, and such a run is not compared.
        losses = [] if continuity.current.survives_engines else self._log.losses
        return [*losses, *problems, *filter(None, [self._clock.step(), workload.changed(self._workload)])]

    def _abort(self, reason: str) -> None:
        """From the watchdog: record, end every process, leave; the main thread is stuck in somebody's code."""
        try:
            self._close("failed", "; ".join(filter(None, [reason, self._clock.step()])))
        except BaseException:  # noqa: BLE001  (an error here would end this thread only, and leave the run waiting)
            traceback.print_exc()
        finally:
            os._exit(EXIT_CODES["failed"])

    def _close(self, status: str, error: str | None) -> str:
        """Writes the record, prints the results, ends the processes; whoever comes second waits for the exit."""
        self._closing.acquire()
        if status in ("invalid", "failed"):
            error = self._with_losses(error or "", failed=status == "failed")
        self._record.update(status=status, error=error)
        if self._started_at and self._record["wall_s"] is None:
            self._add_evidence(self._clock.now())
        try:
            recorded = self._append()
            # Before the processes end: where Ray has lost its own, leaving it can end this one too.
            self._show()
        finally:
            self._log.let_go()
            cluster.disconnect(self._started_here, self._log.pids(self._node))
        if status == "refused":
            # Last of all, below the record: it is what the user has to act on.
            print(f"\nrefused: {error}", file=sys.stderr, flush=True)
        return status if recorded or status == "refused" else "failed"

    def _show(self) -> None:
        """Prints the results. A reader that has gone, as `head` does, or a full disk changes not how the run ended."""
        try:
            with redirect_stdout(self._stdout):
                config.print_benchmark_results(self._record)
                print(end="", flush=True)
        except OSError as error:
            print(f"expected to print the record on stdout, found: {error.strerror}", file=sys.stderr)

    def _with_losses(self, error: str, failed: bool) -> str:
        """Which node, process or engine went away, then what that led to. Ctrl-C ends engines too, and some strategies
        replace those that die: there it led to nothing."""
        engines = None
        if not self._stopped_by and not continuity.current.survives_engines:
            engines = self._log.died() or (self._log.starting() if failed else None)
        losses = [loss for loss in [*self._log.losses, engines] if loss and loss not in error]
        return "; ".join([*losses, error]) + (WHERE_IT_SAYS_WHY if engines or SEE_ABOVE in error else "")

    def _add_evidence(self, ended_at: float) -> None:
        """What is known of a run that did not return; half of the engines' story must not cost the record."""
        self._record["wall_s"] = ended_at - self._started_at
        try:
            found = evidence(self._log, None, None, self._started_at, ended_at)
        except Exception as error:  # noqa: BLE001  (the record says so)
            traceback.print_exc()
            found = {"warnings": [f"no figures, because what the engines said is incomplete: {_cause(error)}"]}
        found.pop("problems", None)
        self._record.update(found)

    def _append(self) -> bool:
        """Whether the record is in its file. Where it is not, for a full disk, stdout still has it."""
        try:
            records.append(self._record, self._log.rows(self._started_at), config.RESULTS_PATH)
        except (OSError, storage.StorageError) as error:
            reason = getattr(error, "strerror", None)
            where = f"{config.RESULTS_PATH}: {reason}" if reason else storage.failure(config.RESULTS_PATH, error)
            print(
                f"expected to append the record under RESULTS_PATH, found {where}. The last line of stdout is the "
                "record; append it to records.jsonl by hand",
                file=sys.stderr,
            )
            return False
        if cluster.in_a_job() and not remote_records.is_remote(config.RESULTS_PATH):
            print(
                f"this is a Ray job: its record is the last line of the job's log, and in {config.RESULTS_PATH} on "
                "this node; set RESULTS_PATH to s3://bucket/folder to have it where no node can take it along",
                file=sys.stderr,
            )
        return True

    def _catch_signals(self) -> None:
        """Ctrl-C, SIGTERM and a terminal that goes away end the run with a record; a second one must not cost it."""
        kept = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)  # `nohup` ignores it
        for number in (signal.SIGINT, signal.SIGTERM, *kept):
            signal.signal(number, self._interrupted)

    def _interrupted(self, number: int, _frame: Any) -> None:
        if number == signal.SIGHUP:
            _do_without_terminal()
        if not self._closing.locked():
            # Kept aside, because Ray raises a KeyboardInterrupt of its own in its place.
            self._stopped_by = f"stopped by {signal.Signals(number).name}"
            raise KeyboardInterrupt


def _do_without_terminal() -> None:
    """Once it is gone, whatever is said on stderr raises, and would cost the record."""
    try:
        os.write(2, b"\n")
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _cause(error: BaseException) -> str:
    """The innermost error that says anything, in one line; remote errors carry theirs as text. Ray Data raises its
    errors from an empty one."""
    said = error
    while error.__cause__ is not None:
        error = error.__cause__
        said = error if str(error).strip() else said
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return f"{type(said).__name__}: {lines[-1] if lines else 'no message'}"[:500]
