"""Watches the vLLM engine of its own process from a thread, without touching whoever built it.

Ray starts it in every worker (`worker_process_setup_hook`), so it sees the engines of Daft's and Ray Data's
unpatched actors as well as ours. It reads vLLM's Prometheus registry and the engine's live configuration and sends
what it sees to the driver's EngineLog actor (engine_log.py). Messages, all times in seconds since the epoch:

    importing   vLLM appears in the process
    building    the engine core's process exists
    ready       the engine answers: settings read back, counters before the first request, all processes by now
    sample      every PROBE_INTERVAL_S, and each time the engine runs dry: all that vLLM counts, and a row of the series
    dead        the core's process is gone
    lost        the probe itself failed, and why
    note        text for the user (batch statistics), from `report`
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import config

ACTOR_NAME = "engine-log"
# Short enough that a step (30 ms and more) is seen when it ends; a tick costs some 20 µs.
TICK_S = 0.02
# Until the engine is there nothing is counted, and looking for its process costs milliseconds.
START_TICK_S = 0.2

# The clock of this process's engine, once there is one; `report` reads it from the engine's own thread.
_clock: Any = None


def start() -> None:
    """Starts the watching thread in this process; called by Ray at the start of every worker."""
    if config.PROBE_INTERVAL_S > 0:
        threading.Thread(target=_watch, daemon=True, name="engine-probe").start()


def report(text: str = "") -> None:
    """Shows `text`, if there is any, to the user on the driver and delivers this engine's counters before returning.

    For actors of our own: their owner may kill them the moment they have answered, before the thread has looked.
    Silent where no driver listens (an engine outside a run).
    """
    import ray
    from harness import engine_metrics as metrics

    log = _engine_log()
    if log is not None:
        note = [_message("note", text=text)] if text else []
        messages = [*note, *([_sample(metrics, _clock)] if _clock else [])]
        ray.get([log.tell.remote(message) for message in messages])


def _watch() -> None:
    try:
        _watch_engine()
    except Exception as error:  # noqa: BLE001  (a probe that fails must not fail the engine, and must not be silent)
        if log := _engine_log():
            _send(log, "lost", error=f"{type(error).__name__}: {error}")


def _watch_engine() -> None:
    _sleep_until(lambda: "vllm" in sys.modules, 0.05)
    imported_at = time.time()
    log = _sleep_until(_engine_log, START_TICK_S)
    _send(log, "importing", vllm_imported_at=imported_at)
    cores = _sleep_until(_core_processes, START_TICK_S)
    _send(log, "building", core_started_at=min(core.create_time() for core in cores), cores=[c.pid for c in cores])
    # Imported late: prometheus_client and vLLM's modules are only present where an engine is.
    from harness import engine_metrics as metrics

    while not metrics.is_ready():
        if not _alive(cores):
            _send(log, "dead")
            return
        _sleep_until(metrics.is_ready, TICK_S, START_TICK_S)
    metrics.require_all()
    # The counters first: an engine may be given requests the moment it is ready.
    before, ready_at = metrics.counters(), time.time()
    engine, start_log = metrics.find_engine(), metrics.read_start_log()
    _send(
        log,
        "ready",
        ready_at=ready_at,
        settings=metrics.settings(engine, start_log),
        start=start_log,
        counters=before,
        actor=_own_handle(),
        # The core starts workers of its own, which outlive it where it is killed.
        cores=[process.pid for process in _core_processes()],
    )
    global _clock
    _clock = metrics.Clock(engine, before)
    _follow(log, cores, _clock, metrics)


def _follow(log: Any, cores: list[Any], clock: Any, metrics: Any) -> None:
    """Ticks until a core dies; samples also whenever the engine has run dry, so that nothing is lost when its owner
    is killed at the end of the job."""
    next_sample = 0.0
    counted = None
    while True:
        now = time.time()
        idle, generated = clock.tick(now)
        due = now >= next_sample
        if due or (idle and generated != counted):
            log.tell.remote(_sample(metrics, clock))
            counted = generated
        if due:
            next_sample = now + config.PROBE_INTERVAL_S
            if not _alive(cores):
                # What it was doing: an engine that is ended without requests in flight is no loss.
                log.tell.remote(_sample(metrics, clock))
                _send(log, "dead")
                return
        time.sleep(TICK_S)


def _sample(metrics: Any, clock: Any) -> dict[str, Any]:
    clock.tick(time.time())
    return _message("sample", counters=metrics.counters(), values=metrics.sample(clock))


@contextmanager
def watching(clock: Any) -> Iterator[None]:
    """Ticks and samples as in a run, for an engine outside one; its messages go nowhere."""
    stop = threading.Event()
    thread = threading.Thread(target=_tick, args=(stop, clock))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _tick(stop: threading.Event, clock: Any) -> None:
    from harness import engine_metrics as metrics

    next_sample = 0.0
    while not stop.wait(TICK_S):
        now = time.time()
        clock.tick(now)
        if now >= next_sample:
            metrics.sample(clock)
            next_sample = now + config.PROBE_INTERVAL_S
    clock.tick(time.time())


def _sleep_until(found: Any, interval_s: float, limit_s: float = float("inf")) -> Any:
    deadline = time.monotonic() + limit_s
    while not (result := found()) and time.monotonic() < deadline:
        time.sleep(interval_s)
    return result


def _send(log: Any, kind: str, **content: Any) -> None:
    log.tell.remote(_message(kind, **content))


def _message(kind: str, **content: Any) -> dict[str, Any]:
    return {"kind": kind, "at": time.time(), **_identity(), **content}


def _own_handle() -> Any:
    """A handle of the actor that holds the engine. Whoever keeps it keeps the actor, and so its last counters, alive
    after its owner has dropped it at the end of the job."""
    import ray

    context = ray.get_runtime_context()
    return context.current_actor if context.get_actor_id() else None


def _identity() -> dict[str, Any]:
    import ray

    node, context = ray.util.get_node_ip_address(), ray.get_runtime_context()
    here = {"node": node, "node_id": context.get_node_id(), "pid": os.getpid()}
    return {"engine": f"{node}:{os.getpid()}", "in_actor": context.get_actor_id(), **here}


def _engine_log() -> Any:
    import ray

    if not ray.is_initialized():
        return None
    try:
        return ray.get_actor(ACTOR_NAME)
    except ValueError:
        return None


def _core_processes() -> list[Any]:
    import psutil

    return [child for child in psutil.Process().children(recursive=True) if _is_core(child)]


def _is_core(process: Any) -> bool:
    import psutil

    try:
        # Before the core renames itself its command line is multiprocessing's.
        return process.name().startswith("VLLM") or "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _alive(cores: list[Any]) -> bool:
    import psutil

    return all(core.is_running() and core.status() != psutil.STATUS_ZOMBIE for core in cores)
