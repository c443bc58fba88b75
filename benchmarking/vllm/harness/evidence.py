"""What a finished run's record says beyond its name: phases, counters, settings, checks, each from what was seen."""

from typing import Any, cast

import config
import pyarrow as pa
from harness import checks, continuity, phases, waterfall
from harness.engine_log import EngineLog
from harness.preflight.workload import Workload

SUMMED = ("prefix_cache_queries", "prefix_cache_hits", "preemptions", "prompt_tokens", "generation_tokens")


def evidence(
    log: EngineLog,
    workload: Workload | None,
    table: pa.Table | None,
    started_at: float,
    ended_at: float,
    write_s: float = 0.0,
) -> dict[str, Any]:
    """Record keys for a run from `started_at` to `ended_at`, and `problems`: texts, empty when every check passed.

    `table` is what the strategy returned; None, like `workload`, when it did not return.
    """
    outlived = continuity.current
    rows = workload.rows - outlived.continued_rows if workload else None
    counters = counters_total(log, rows)
    verdict = _verdict(workload, table, counters) if workload is not None and table is not None else None
    state, state_problem = cache_state(log, rows)
    unchecked = [f"not checked: {text}" for text in (verdict.unchecked if verdict else [])]
    given_up = [f"row {row} cannot run: {reason}" for row, reason in outlived.given_up.items()]
    problems = [*given_up, *(verdict.problems if verdict else []), *state_problem, *wrong_engine_count(log)]
    return {
        "wall_s": ended_at - started_at,
        "phases_s": phases.phases(log, started_at, ended_at),
        "phase_tokens": phases.phase_tokens(log, started_at, ended_at),
        "waterfall_s": waterfall.waterfall(log, started_at, ended_at, write_s),
        "idle_engine_s": waterfall.idle_engine_s(log),
        "imbalance": waterfall.imbalance(log),
        "rows": {**verdict.rows, "continued": outlived.continued_rows, "redone": outlived.redone_rows}
        if verdict
        else None,
        "tokens": {"prompt": counters["prompt_tokens"], "output": counters["generation_tokens"]} if counters else None,
        "cache_state": state,
        "counters": counters,
        "warnings": [*disturbances(), *warnings(log), *unchecked],
        "engines": [engine_record(log, engine, started_at) for engine in log.built()],
        "problems": problems,
    }


def _verdict(workload: Workload, table: pa.Table, counters: dict[str, Any] | None) -> checks.Verdict:
    outlived = continuity.current
    elsewhere = checks.Elsewhere(outlived.continued_rows, outlived.continued_tokens, outlived.redone_rows)
    counted = cast("checks.Counters | None", counters)
    # A prompt that an earlier run answered is not counted here, one that was begun in two engines is counted twice.
    prompt_tokens = None if outlived.disturbed else workload.prompt_tokens
    return checks.check(workload.ids, table, workload.output_lengths, counted, elsewhere, prompt_tokens)


def counters_total(log: EngineLog, rows: int | None) -> dict[str, Any] | None:
    """What all engines counted during the run; None where no engine could be read.

    Since their creation, where their whole life is this run; otherwise since they were first seen ready.
    """
    engines = [engine for engine in log.built() if "after" in engine]
    if not engines:
        return None
    whole = whole_life(log, rows)
    totals: dict[str, Any] = {name: sum(_since(engine, whole)[name] for engine in engines) for name in SUMMED}
    for name in ("finished", "request_generation_tokens"):
        totals[name] = _added([_since(engine, whole)[name] for engine in engines])
    return totals


def whole_life(log: EngineLog, rows: int | None) -> bool:
    """Whether every request that these engines ever finished is one of the run's `rows`: nothing came before it.

    Peers may send requests the moment an engine is ready, before the probe has looked at it once.
    """
    finished = [sum(engine["after"]["finished"].values()) for engine in log.built() if "after" in engine]
    return rows is not None and sum(finished) == rows


def cache_state(log: EngineLog, rows: int | None) -> tuple[str | None, list[str]]:
    """("cold" | "warm" | None, problems): cold when no engine had looked up a single token before its first request.

    A run builds its own engines, so it claims to start cold, and is invalid where the counters deny it.
    """
    before = [engine["before"] for engine in log.built() if "before" in engine]
    if not before:
        return None, []
    looked_up = sum(counters["prefix_cache_queries"] for counters in before)
    if not looked_up or whole_life(log, rows):
        return "cold", []
    return "warm", [f"the run claims a cold prefix cache, but its engines had looked up {looked_up} tokens before it"]


def wrong_engine_count(log: EngineLog) -> list[str]:
    """More builds than engines means that start-up was paid again in the middle of the run."""
    built, outlived = len(log.built()), continuity.current
    if config.PROBE_INTERVAL_S == 0 or built == config.CONCURRENCY or outlived.lost_engines:
        return []
    if outlived.continued_rows and built < config.CONCURRENCY:  # what was left was done before the others had started
        return []
    return [f"{built} engines were built, expected CONCURRENCY = {config.CONCURRENCY}"]


def disturbances() -> list[str]:
    """Why this run's time is not that of its work, though its answers are good."""
    outlived, found = continuity.current, []
    if outlived.continued_rows:
        found.append(f"{outlived.continued_rows:,} rows were answered by an earlier run that was killed")
    if outlived.lost_engines:
        found.append(
            f"{len(outlived.lost_engines)} engines died, and {outlived.redone_rows:,} rows that they had begun "
            f"ran again: {'; '.join(dict.fromkeys(outlived.lost_engines))}"
        )
    return found


def warnings(log: EngineLog) -> list[str]:
    """What the counters say about how the engines were fed; nothing here makes a run invalid."""
    lost = [
        f"the probe of engine {engine['engine']} failed, its counters are not the last: {engine['lost']}"
        for engine in log.engines.values()
        if "lost" in engine
    ]
    return [*log.losses, *lost, *(text for engine in log.built() for text in _warnings(engine))]


def _warnings(engine: dict[str, Any]) -> list[str]:
    name, latest = engine["engine"], engine["latest"]
    limit = (engine.get("settings") or {}).get("max_num_seqs")
    found = []
    if not latest.get("generation_tokens"):
        return [f"engine {name} generated nothing: it was not ready in time, or no work was sent to it"]
    most = _most_running(engine)
    if most is None:
        found.append(f"engine {name} answered all between two looks of its probe: how full it was is not known")
    elif limit and most < limit:
        found.append(f"engine {name} never filled: at most {most} of max_num_seqs {limit} running")
    if "after" in engine and (preempted := _since(engine, False)["preemptions"]):
        found.append(f"engine {name} preempted {preempted} requests: its KV cache was too small")
    return found


def _most_running(engine: dict[str, Any]) -> int | None:
    """Most requests that were seen running at once; None where there were some, and none was seen."""
    most = engine["latest"].get("max_running")
    return most or (None if engine["latest"].get("generation_tokens") else most)


def engine_record(log: EngineLog, engine: dict[str, Any], started_at: float) -> dict[str, Any]:
    """One engine's part of the record; times in seconds since the strategy's call, on the driver's clock."""

    def since_start(at: float | None) -> float | None:
        return None if at is None else log.on_driver_clock(engine["engine"], at) - started_at

    latest, series = engine["latest"], [row for row in log.series if row["engine"] == engine["engine"]]
    times = ("vllm_imported_at", "core_started_at", "ready_at", "dead_at")
    return {
        **{key: engine[key] for key in ("engine", "node", "pid")},
        "settings": engine.get("settings"),
        "start": engine.get("start"),
        "timeline_s": {
            **{time.removesuffix("_at"): since_start(engine.get(time)) for time in times},
            "first_scheduled": since_start(latest.get("first_scheduled_at")),
            "last_token": since_start(latest.get("last_token_at")),
        },
        "before": engine.get("before"),
        "after": engine.get("after"),
        "max_running": _most_running(engine),
        "max_kv_cache_usage": _largest(series, "kv_cache_usage"),
        "max_gpu_memory_bytes": _largest(series, "gpu_memory_bytes"),
    }


def _largest(series: list[dict[str, Any]], column: str) -> Any:
    values = [row[column] for row in series if row[column] is not None]
    return max(values) if values else None


def _since(engine: dict[str, Any], creation: bool) -> dict[str, Any]:
    """An engine's counters since its creation, or since it was first seen ready; histograms as their buckets."""
    before, after = ({} if creation else engine["before"]), engine["after"]
    counts: dict[str, Any] = {name: int(after[name] - before.get(name, 0)) for name in SUMMED}
    for name in ("finished", "request_generation_tokens"):
        old, new = (_buckets(counters.get(name, {})) for counters in (before, after))
        counts[name] = {key: new[key] - old.get(key, 0) for key in new}
    return counts


def _buckets(counts: dict[str, Any]) -> dict[str, int]:
    return dict(counts.get("buckets", counts))


def _added(many: list[dict[str, int]]) -> dict[str, int]:
    keys = dict.fromkeys(key for counts in many for key in counts)
    return {key: sum(counts.get(key, 0) for counts in many) for key in keys}
