"""Engines that went away with their process or node: who says so, and what was lost with them.

A core that dies is seen by the probe beside it. A killed worker process or node takes its probe along: that engine
falls silent. Silence alone proves nothing, since a probe's thread can be late, so Ray is asked: is the node there, was
the actor's process killed? Peers may redo the lost rows elsewhere, so a loss does not end a run; it is named where the
run fails, and in the warnings where it does not. Only a silence as long as a stall is given up on.
"""

import socket
import time
from typing import Any

import config
from harness.engine_log import EngineLog

SILENT_S = 5.0
SILENT_INTERVALS = 5
# Ray's own health check takes 10 to 20 s to miss a node; a raylet that was killed refuses connections at once.
KNOCK_TIMEOUT_S = 2.0
ASK_EVERY_S = 2.0
# After a failure, so many nodes that do not answer are waited for.
MOST_KNOCKS = 5
# Ray's reasons for the end of an actor that nobody asked for; the rest (dropped by its owner, ...) is a regular end.
DEATHS = ("WORKER_DIED", "NODE_DIED")


class EngineLosses:
    """Looks for lost engines; the sentences it finds are kept in the log, for the record."""

    def __init__(self, log: EngineLog, rows: int) -> None:
        self._log, self._rows = log, rows
        self._lost: set[str] = set()
        self._asked_at = 0.0
        self.started_at = time.time()

    def look(self, after_failure: bool = False) -> None:
        """Asks Ray about the engines that are silent; after a failure about all, since it may be a moment old."""
        now = time.time()
        suspects = [engine for engine in self._standing() if after_failure or _silent_s(engine, now) > _patience_s()]
        if suspects and (after_failure or now - self._asked_at > ASK_EVERY_S):
            self._asked_at = now
            try:
                found = fates([engine for engine in suspects if "core_started_at" in engine])
                _note_failed_starts(suspects)
            except Exception:  # noqa: BLE001  (Ray's word is asked for again; its own failure the mailbox shows)
                return
            for name, fate in found.items():
                self._keep(self._log.engines[name], fate, now)

    def overdue(self) -> str | None:
        """Engines with requests in flight that have been silent for as long as a stall, though Ray knows of nothing."""
        now = time.time()
        quiet = [
            f"{engine['engine']} ({_silent_s(engine, now):.0f} s)"
            for engine in self._standing()
            if _in_flight(engine) and "lost" not in engine and _silent_s(engine, now) > config.WATCHDOG_STALL_S
        ]
        if not quiet:
            return None
        return (
            f"nothing heard of engine {', '.join(quiet)} (WATCHDOG_STALL_S) while it had requests in flight: its "
            "process or node hangs, or the network between is down"
        )

    def _standing(self) -> list[dict[str, Any]]:
        engines = [engine for name, engine in self._log.engines.items() if name not in self._lost]
        return [engine for engine in engines if not engine["dead_at"] and "not_started" not in engine]

    def _keep(self, engine: dict[str, Any], fate: str, now: float) -> None:
        self._lost.add(engine["engine"])
        elsewhere = sum(_answered(other) for name, other in self._log.engines.items() if name not in self._lost)
        sentence = (
            f"{fate} ({now - self.started_at:.0f} s into the run), and with it engine {engine['engine']}: "
            f"when last heard, {_in_flight(engine)} requests in flight and {_answered(engine)} answered there; "
            f"{elsewhere} of {self._rows} rows answered elsewhere"
        )
        self._log.losses.append(sentence)
        self._log.notes.append(f"lost: {sentence}; waiting for the strategy to redo the rows or to fail")


def fates(engines: list[dict[str, Any]]) -> dict[str, str]:
    """Engine → what became of it, by Ray and by the nodes' own raylets; only those that are gone."""
    nodes = _nodes()
    gone: dict[str, bool] = {}
    knocks = 0
    found = {}
    for engine in engines:
        key = engine.get("node_id")
        if key in nodes and key not in gone:
            alive = nodes[key]["Alive"] and (knocks >= MOST_KNOCKS or _answers(nodes[key]))
            knocks += not alive
            gone[key] = not alive
        if key and gone.get(key, key not in nodes):
            found[engine["engine"]] = f"node {engine['node']} (id {key[:12]}) is gone"
        elif cause := _killed(engine.get("actor_id")):
            found[engine["engine"]] = f"an engine's process on node {engine['node']} was killed ({cause})"
    return found


def _nodes() -> dict[str, Any]:
    import ray

    return {node["NodeID"]: node for node in ray.nodes()}


def _answers(node: dict[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), KNOCK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _killed(actor_id: str | None) -> str | None:
    """Why Ray says that an actor's process ended, where nobody asked for it."""
    if actor_id is None:
        return None
    # Daft asks Ray for an actor's state in the same way; the public State API needs the dashboard.
    from ray._private.state import actors

    actor = actors(actor_id)
    if not actor or actor["State"] not in ("RESTARTING", "DEAD"):
        return "restarted by Ray" if actor and actor["NumRestarts"] else None
    context = actor["DeathCause"].actor_died_error_context
    reason = type(context).Reason.Name(context.reason)
    return reason if actor["State"] == "RESTARTING" or reason in DEATHS else None


def _note_failed_starts(engines: list[dict[str, Any]]) -> None:
    """`not_started`: why Ray could not create the actor that was to hold an engine. Its process ends at once, before
    the probe can say anything, and Daft 0.7.26 asks for the actor again and again."""
    for engine in engines:
        if "ready_at" not in engine and (reason := _creation_failure(engine["in_actor"])):
            engine["not_started"] = reason


def _creation_failure(actor_id: str | None) -> str | None:
    if actor_id is None:
        return None
    from ray._private.state import actors

    cause = (actors(actor_id) or {}).get("DeathCause")
    if cause is None or not cause.HasField("creation_task_failure_context"):
        return None
    told = cause.creation_task_failure_context.formatted_exception_string
    return next((line.strip() for line in reversed(told.splitlines()) if line.strip()), "Ray does not say why")[:300]


def _silent_s(engine: dict[str, Any], now: float) -> float:
    """Seconds since the engine was heard; one that still starts is often silent, and its node is asked for then."""
    return float(now - engine["heard_at"])


def _patience_s() -> float:
    return max(SILENT_S, SILENT_INTERVALS * config.PROBE_INTERVAL_S)


def _in_flight(engine: dict[str, Any]) -> int:
    return int(engine["latest"].get("running") or 0) + int(engine["latest"].get("waiting") or 0)


def _answered(engine: dict[str, Any]) -> int:
    return sum(engine.get("after", {}).get("finished", {}).values())
