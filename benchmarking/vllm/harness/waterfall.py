"""Where the seconds of a run went: parts that add up to its wall time.

Up to the first engine's start and after the last token there is one clock. In between each engine has its own day, so
a part is the mean over the engines: two engines of which one idles for 4 s show 2 s of idling. Parts, in seconds:

    read_and_plan    reading, sorting, planning, scheduling, before any engine's process starts to load vLLM. One part,
                     because Daft runs them as one lazy plan and on Ray tells no operator's times (0.7.26)
    actor_wait       an engine's process is not there yet, while another's already starts
    actor_start      importing vLLM, reading the model's configuration, until the engine core's process starts
    core_start       the core's imports and set-up: what its start takes beyond the next two
    weights          loading or drawing weights
    compile_capture  profiling, compiling, capturing CUDA graphs, allocating the KV cache
    first_wait       engine ready, no request scheduled yet: tokenising, buffering, routing
    prefill          steps that processed prompts (with chunked prefill, decodes ride along)
    decode           steps that generated tokens only
    starved          nothing to run between requests: tokenising the next batch, or waiting for it
    tail             this engine has run dry for good while another still generates
    collect          from the last token to the rows in the driver
    write            writing the answers, where OUTPUT_PATH asks for them
    unattributed     what the parts miss; a check on the clock, not a part
"""

from typing import Any

from harness.engine_log import EngineLog
from harness.phases import boundaries, last_token_at

PARTS = (
    "read_and_plan",
    "actor_wait",
    "actor_start",
    "core_start",
    "weights",
    "compile_capture",
    "first_wait",
    "prefill",
    "decode",
    "starved",
    "tail",
    "collect",
    "write",
)


def waterfall(log: EngineLog, started_at: float, ended_at: float, write_s: float = 0.0) -> dict[str, float] | None:
    """Seconds by part, and `unattributed`; None when no engine was seen."""
    edges = boundaries(log, started_at, ended_at)
    if edges is None:
        return None
    _, loading, _, _, last, _ = edges
    engines = [engine for engine in log.built() if "ready_at" in engine]
    days = [_day(log, engine, loading, last) for engine in engines]
    parts = {"read_and_plan": loading - started_at, "collect": ended_at - last - write_s, "write": write_s}
    parts |= {part: sum(day[part] for day in days) / len(days) for part in days[0]}
    parts = {part: parts[part] for part in PARTS}
    return {**parts, "unattributed": ended_at - started_at - sum(parts.values())}


def idle_engine_s(log: EngineLog) -> float | None:
    """Engine-seconds with nothing to run, over all engines, from ready to each one's last token and in the tail."""
    engines = [engine for engine in log.built() if "ready_at" in engine]
    if not engines:
        return None
    last = max(last_token_at(log, engine) for engine in engines)
    return sum(last - _at(log, engine, engine["ready_at"]) - _busy_s(engine) for engine in engines)


def imbalance(log: EngineLog) -> float | None:
    """Busiest engine's generated tokens over the mean: 1 is even. None without a token."""
    tokens = [int(engine["latest"].get("generation_tokens") or 0) for engine in log.built()]
    return max(tokens) * len(tokens) / sum(tokens) if sum(tokens) else None


def _day(log: EngineLog, engine: dict[str, Any], loading: float, last: float) -> dict[str, float]:
    imported = max(_at(log, engine, engine["vllm_imported_at"]), loading)
    core = max(_at(log, engine, engine["core_started_at"]), imported)
    ready = max(_at(log, engine, engine["ready_at"]), core)
    dry = max(last_token_at(log, engine), ready)
    scheduled = engine["latest"].get("first_scheduled_at")
    first = min(max(_at(log, engine, scheduled) if scheduled else dry, ready), dry)
    weights, setup = _start_seconds(engine, ready - core)
    return {
        "actor_wait": imported - loading,
        "actor_start": core - imported,
        "core_start": ready - core - weights - setup,
        "weights": weights,
        "compile_capture": setup,
        "first_wait": first - ready,
        "prefill": float(engine["latest"].get("prefill_s") or 0),
        "decode": float(engine["latest"].get("decode_s") or 0),
        "starved": max(dry - first - _busy_s(engine), 0.0),
        "tail": max(last - dry, 0.0),
    }


def _start_seconds(engine: dict[str, Any], available_s: float) -> tuple[float, float]:
    """Seconds of weights and of compiling and capturing, as the core logs them, never more than its start took."""
    weights = min(engine["start"].get("weights_s") or 0.0, available_s)
    return weights, min(engine["start"].get("init_s") or 0.0, available_s - weights)


def _busy_s(engine: dict[str, Any]) -> float:
    return float(engine["latest"].get("prefill_s") or 0) + float(engine["latest"].get("decode_s") or 0)


def _at(log: EngineLog, engine: dict[str, Any], at: float) -> float:
    return log.on_driver_clock(engine["engine"], at)
