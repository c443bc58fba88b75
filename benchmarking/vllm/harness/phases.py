"""Splits a run's wall time into the same phases for every strategy, from what its engines were seen to do.

Phases (seconds, adding up to the wall time from the strategy's call to its return):
    read_and_plan  until the first engine's process starts to load vLLM: reading, sorting, planning, scheduling
    engine_start   until every engine answers: imports, weights, compilation, CUDA graphs
    steady         until the first engine has generated its last token: all engines can work
    tail           until the last engine has generated its last token: some engines have run dry
    collect        until the rows are back in the driver, and written where OUTPUT_PATH asks for it

The steady rate is the output tokens generated in `steady` over its seconds: work done by early engines while others
still start is counted in `engine_start`, so that start-up never hides inside the number that is compared. Resolution:
a tick of the probe (20 ms) for events, linear interpolation between its samples for tokens.
"""

from bisect import bisect_left
from itertools import groupby, pairwise
from typing import Any

from harness.engine_log import EngineLog

PHASES = ("read_and_plan", "engine_start", "steady", "tail", "collect")
GENERATING = ("engine_start", "steady", "tail")


def phases(log: EngineLog, started_at: float, ended_at: float) -> dict[str, float | None]:
    """Seconds by phase; all null when no engine was seen (probe off, or none was built)."""
    edges = boundaries(log, started_at, ended_at)
    if edges is None:
        return dict.fromkeys(PHASES)
    found: dict[str, float | None] = {
        phase: end - start for phase, (start, end) in zip(PHASES, pairwise(edges), strict=True)
    }
    # Without a token there was nothing to be steady, to tail off or to collect.
    return found if log.total("generation_tokens") else {**found, "steady": None, "tail": None, "collect": None}


def phase_tokens(log: EngineLog, started_at: float, ended_at: float) -> dict[str, float | None]:
    """Output tokens generated in each phase in which engines can generate, summed over the engines."""
    edges = boundaries(log, started_at, ended_at)
    if edges is None:
        return dict.fromkeys(GENERATING)
    totals = [generated_by(log, edge) for edge in edges[1:-1]]
    # The last samples hold the final counts even where they arrived after the last edge.
    totals[-1] = float(log.total("generation_tokens"))
    return {phase: end - start for phase, (start, end) in zip(GENERATING, pairwise(totals), strict=True)}


def boundaries(log: EngineLog, started_at: float, ended_at: float) -> list[float] | None:
    """Times at which the phases begin, and the end; each at least the one before."""
    engines = [engine for engine in log.built() if "ready_at" in engine]
    if not engines:
        return None
    loading = min(_at(log, engine, engine["vllm_imported_at"]) for engine in engines)
    ready = max(_at(log, engine, engine["ready_at"]) for engine in engines)
    dry = [last_token_at(log, engine) for engine in engines]
    edges = [started_at, loading, ready, min(dry), max(dry), ended_at]
    for index in range(1, len(edges)):
        edges[index] = min(max(edges[index], edges[index - 1]), ended_at)
    return edges


def last_token_at(log: EngineLog, engine: dict[str, Any]) -> float:
    """When the engine generated its last token; an engine without any has been dry since it was ready."""
    return _at(log, engine, engine["latest"].get("last_token_at") or engine["ready_at"])


def generated_by(log: EngineLog, at: float) -> float:
    """Tokens that all engines had generated at a time on the driver's clock."""
    rows = sorted(log.series, key=lambda row: (row["engine"], row["at"]))
    return sum(_interpolated(log, list(samples), at) for _, samples in groupby(rows, key=lambda row: row["engine"]))


def _interpolated(log: EngineLog, samples: list[dict[str, Any]], at: float) -> float:
    times = [log.on_driver_clock(row["engine"], row["at"]) for row in samples]
    tokens = [float(row["generation_tokens"]) for row in samples]
    after = bisect_left(times, at)
    if after in (0, len(times)):
        return tokens[-1] if after else 0.0
    share = (at - times[after - 1]) / (times[after] - times[after - 1])
    return tokens[after - 1] + share * (tokens[after] - tokens[after - 1])


def _at(log: EngineLog, engine: dict[str, Any], at: float) -> float:
    return log.on_driver_clock(engine["engine"], at)
