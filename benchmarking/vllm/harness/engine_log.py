"""The driver's side of the engine probe: collects every engine's messages and keeps what a record needs.

The EngineLog actor sits on the driver's node and only queues; the driver drains it. Its receive times also show how
far each worker's clock is off, so that events on several nodes share the driver's clock.
"""

import time
from collections import defaultdict
from typing import Any

from harness.engine_metrics import SERIES
from harness.engine_probe import ACTOR_NAME

Message = dict[str, Any]


class Mailbox:
    """The actor's body: messages in order of arrival, each stamped with the time it came."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def tell(self, message: Message) -> None:
        self._messages.append({**message, "received_at": time.time()})

    def drain(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages


def open_mailbox() -> Any:
    """Starts the mailbox actor on this node under the name that the probes look for."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).options(name=ACTOR_NAME).remote()
    ray.get(actor.drain.remote())
    return actor


class EngineLog:
    """All that the engines of one run have said; `engines` maps an engine's name to its state."""

    def __init__(self) -> None:
        self.engines: dict[str, dict[str, Any]] = {}
        self.series: list[dict[str, Any]] = []
        self.notes: list[str] = []
        # Sentences about engines that went away with their process or node (engine_loss.py).
        self.losses: list[str] = []
        # Holding the actors' handles keeps them, and their last counters, alive until the log is let go.
        self._actors: list[Any] = []
        self._clock_offset: dict[str, float] = defaultdict(lambda: float("inf"))

    def extend(self, messages: list[Message]) -> None:
        for message in messages:
            self._keep(message)

    def on_driver_clock(self, engine: str, at: float) -> float:
        """A worker's time on the driver's clock: the smallest delay seen is offset plus the fastest delivery."""
        node = self.engines[engine]["node"]
        return at + self._clock_offset[node]

    def rows(self, started_at: float) -> list[dict[str, Any]]:
        """The samples in order of time: `engine`, `t_s` in seconds since the strategy's call, engine_metrics.SERIES."""
        rows = [
            {"engine": row["engine"], "t_s": self.on_driver_clock(row["engine"], row["at"]) - started_at}
            | {column: row[column] for column in SERIES}
            for row in self.series
        ]
        return sorted(rows, key=lambda row: row["t_s"])

    def total(self, counter: str) -> int:
        """Sum of a counter over the engines, as last seen."""
        return sum(int(engine["latest"].get(counter) or 0) for engine in self.engines.values())

    def pids(self, node: str) -> list[int]:
        """The engines' processes on a node. On another node the same number is somebody else's process."""
        engines = [engine for engine in self.engines.values() if engine["node"] == node]
        return [pid for engine in engines for pid in [engine["pid"], *engine["cores"]]]

    def built(self) -> list[dict[str, Any]]:
        """The engines whose core was started, in order."""
        return sorted((e for e in self.engines.values() if "core_started_at" in e), key=lambda e: e["core_started_at"])

    def died(self) -> str | None:
        """Names the engines that did not start, or whose core process went away while there was work for them."""
        dead = [name for name, engine in self.engines.items() if engine["dead_at"] and _had_work(engine)]
        failed = {name: engine["not_started"] for name, engine in self.engines.items() if "not_started" in engine}
        found = [f"engine {', '.join(dead)} died: its core process is gone"] if dead else []
        found += [f"engine {', '.join(failed)} did not start: {next(iter(failed.values()))}"] if failed else []
        return "; ".join(found) or None

    def starting(self) -> str | None:
        """Names the engines that were not ready yet: where a run fails then, it is one of them."""
        names = [engine["engine"] for engine in self.built() if "ready_at" not in engine]
        return f"engine {', '.join(names)} was starting" if names else None

    def _keep(self, message: Message) -> None:
        node = message["node"]
        self._clock_offset[node] = min(self._clock_offset[node], message["received_at"] - message["at"])
        kind = message["kind"]
        if kind == "note":
            self.notes.append(message["text"])
            return
        identity = {key: message[key] for key in ("engine", "node", "pid")}
        engine = self.engines.setdefault(message["engine"], {**identity, "cores": [], "latest": {}, "dead_at": None})
        where = {key: message.get(key) for key in ("node_id", "in_actor")}
        engine.update(**where, heard_at=message["received_at"])
        _HANDLERS[kind](self, engine, message)

    def _sampled(self, engine: dict[str, Any], message: Message) -> None:
        engine["after"] = message["counters"]
        engine["latest"] = {**engine["latest"], **message["values"]}
        self.series.append({"engine": message["engine"], "at": message["at"], **message["values"]})

    def _ready(self, engine: dict[str, Any], message: Message) -> None:
        engine.update(ready_at=message["ready_at"], settings=message["settings"], start=message["start"])
        engine["cores"] = list(dict.fromkeys([*engine["cores"], *message["cores"]]))
        engine["before"] = engine["after"] = message["counters"]
        engine["latest"] = dict(message["counters"])
        self._actors.append(message["actor"])
        engine["actor_id"] = message["actor"]._actor_id.hex() if message["actor"] else None

    def let_go(self) -> None:
        """Drops the actors' handles, so that they may end."""
        self._actors.clear()


def _had_work(engine: dict[str, Any]) -> bool:
    """Ray Data ends the engine that has answered its share while others generate; nobody misses that one."""
    latest = engine["latest"]
    return "ready_at" not in engine or bool(latest.get("running") or latest.get("waiting"))


_HANDLERS: dict[str, Any] = {
    "importing": lambda _, engine, message: engine.update(vllm_imported_at=message["vllm_imported_at"]),
    "building": lambda _, engine, message: engine.update(
        core_started_at=message["core_started_at"], cores=message["cores"]
    ),
    "ready": EngineLog._ready,
    "sample": EngineLog._sampled,
    "lost": lambda _, engine, message: engine.update(lost=message["error"]),
    "dead": lambda _, engine, message: engine.update(dead_at=message["at"]),
}
