"""The record format's version, and what a record of today's must hold: `compare.py --check` applies it to every one.

Each version loads for ever through UPGRADES; an unknown one is refused by name. Unknown is null. Keys that are not
listed are refused at the top level, so that a new one comes with an entry here and a line in records.py.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

SCHEMA = 1

Record = dict[str, Any]

# Version → what turns a record of that version into one of the next. Entries are added, never removed.
UPGRADES: dict[int, Callable[[Record], Record]] = {}

STATUSES = ("ok", "invalid", "failed", "refused")
PHASES = ("read_and_plan", "engine_start", "steady", "tail", "collect")
CACHE_STATES = ("cold", "warm", "primed")
# Phases and waterfall add up to the wall time within this share of it, plus the clock's and rounding's own error.
SUM_TOLERANCE = 0.02
SUM_TOLERANCE_S = 0.05

_KNOWN_WHEN_OK = ("wall_s", "rows", "hardware", "versions")

Check = tuple[str, Callable[[Any], bool]]


def problems(record: Record) -> list[str]:
    """Everything that is wrong with a record, one line each; empty for a good one."""
    found = [f"unknown key {key!r}" for key in record if key not in FIELDS]
    found += [f"key {key!r} is missing" for key in FIELDS if key not in record]
    found += [_complaint(key, record[key], FIELDS[key]) for key in FIELDS if key in record]
    found += [
        _complaint(f"{group}.{key}", part.get(key), COUNT_OR_NULL if group in COUNTED else AMOUNT_OR_NULL)
        for group, keys in PARTS.items()
        if isinstance(part := record.get(group), dict)
        for key in keys
    ]
    found += [_complaint(path, value, check) for path, value, check in _nested(record)]
    found += [f"{path}: not a number, or one beyond 64 bits" for path in _not_finite(record, "")]
    return [text for text in found if text] or _contradictions(record)


def _nested(record: Record) -> Iterator[tuple[str, Any, Check]]:
    """What the report computes with, where it is there: path, value, and what it must be."""
    for group, checks in NESTED.items():
        if isinstance(part := record.get(group), dict):
            yield from ((f"{group}.{key}", part[key], check) for key, check in checks.items() if key in part)
    if isinstance(parts := record.get("waterfall_s"), dict):
        yield from ((f"waterfall_s.{key}", value, NUMBER_OR_NULL) for key, value in parts.items())
    if isinstance(warnings := record.get("warnings"), list):
        yield from ((f"warnings.{index}", text, TEXT) for index, text in enumerate(warnings))
    if isinstance(engines := record.get("engines"), list):
        for index, engine in enumerate(engines):
            yield f"engines.{index}", engine, OBJECT
            settings = engine.get("settings") if isinstance(engine, dict) else None
            yield f"engines.{index}.settings", settings, OBJECT_OR_NULL
            blocks = settings.get("num_gpu_blocks") if isinstance(settings, dict) else None
            yield f"engines.{index}.settings.num_gpu_blocks", blocks, COUNT_OR_NULL


def _complaint(path: str, value: Any, check: Check) -> str:
    expected, accepts = check
    return "" if accepts(value) else f"{path}: expected {expected}, found {value!r:.80}"


def _contradictions(record: Record) -> list[str]:
    """Fields that are fine one by one but not together."""
    found = []
    ok = record["status"] == "ok"
    if ok != (record["error"] is None):
        found.append(f"status {record['status']!r} with error {record['error']!r:.80}")
    if ok:
        found += [f"status 'ok' without {key}" for key in _KNOWN_WHEN_OK if not record[key]]
        named = record["dataset"] or {}
        found += [f"status 'ok' without dataset.{key}" for key in ("fingerprint", "name") if not named.get(key)]
        found += _unseen(record)
    rows = record["rows"] or {}
    if ok and (rows.get("in") is None or rows.get("in") != rows.get("out")):
        found.append(f"status 'ok' with {rows.get('in')} rows in and {rows.get('out')} out")
    return found + [text for group in ("phases_s", "waterfall_s") if (text := _sum_is_off(record, group))]


def _unseen(record: Record) -> list[str]:
    """An "ok" run whose engines were to be read, and were not. One that took over every row had nothing to generate;
    records of before the knob do not say whether there was a probe."""
    probed = record["config"].get("PROBE_INTERVAL_S", 0) > 0
    if not probed or (record["rows"] or {}).get("continued") or (record["phases_s"] or {}).get("steady") is not None:
        return []
    return [f"status 'ok' without phases_s, though PROBE_INTERVAL_S was {record['config']['PROBE_INTERVAL_S']:g}"]


def _sum_is_off(record: Record, group: str) -> str | None:
    parts = list((record[group] or {}).values())
    wall = record["wall_s"]
    if wall is None or not parts or None in parts:
        return None
    total = math.fsum(parts)
    if abs(total - wall) <= SUM_TOLERANCE * wall + SUM_TOLERANCE_S:
        return None
    return f"{group} add up to {total:.2f} s, wall_s is {wall:.2f}"


def _not_finite(value: Any, path: str) -> list[str]:
    """Paths of NaN and infinities, which JSON does not have but Python's reader accepts; and of whole numbers with
    which nothing can be computed."""
    if isinstance(value, int | float):
        fits = math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63
        return [] if fits else [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in _not_finite(item, f"{path}.{key}".lstrip("."))]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _one_of(*values: Any) -> Check:
    return f"one of {values}", lambda value: value in values


def _or_null(check: Check) -> Check:
    return f"{check[0]} or null", lambda value: value is None or check[1](value)


def _kind(name: str, kind: type) -> Check:
    return name, lambda value: isinstance(value, kind)


TEXT = _kind("text", str)
OBJECT = _kind("an object", dict)
LIST = _kind("a list", list)
COUNT = ("a count", _is_count)
TEXT_OR_NULL = _or_null(TEXT)
OBJECT_OR_NULL = _or_null(OBJECT)
NUMBER_OR_NULL = _or_null(("a number", lambda value: type(value) in (int, float)))
COUNT_OR_NULL = _or_null(("a count", _is_count))
AMOUNT_OR_NULL = _or_null(("an amount of 0 or more", _is_seconds))
SECONDS_OR_NULL = _or_null(("seconds", _is_seconds))

FIELDS: dict[str, Check] = {
    "schema": (f"{SCHEMA}", lambda value: value == SCHEMA),
    "run_id": ("hex text", lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{8,}", value))),
    "strategy": TEXT,
    "label": _or_null(TEXT),
    "started_at": ("UTC, ISO 8601", lambda v: isinstance(v, str) and bool(re.match(r"\d{4}-\d\d-\d\dT\d\d:", v))),
    "command": TEXT,
    "status": _one_of(*STATUSES),
    "error": _or_null(TEXT),
    "wall_s": SECONDS_OR_NULL,
    "phases_s": _or_null(OBJECT),
    "phase_tokens": _or_null(OBJECT),
    "waterfall_s": _or_null(OBJECT),
    "idle_engine_s": SECONDS_OR_NULL,
    "imbalance": _or_null(("a ratio of at least 1", lambda value: _is_seconds(value) and value > 0.999)),
    "rows": _or_null(OBJECT),
    "tokens": _or_null(OBJECT),
    "cache_state": _one_of(*CACHE_STATES, None),
    "warnings": _or_null(LIST),
    "counters": _or_null(OBJECT),
    "engines": _or_null(LIST),
    "config": OBJECT,
    "dataset": _or_null(OBJECT),
    "hardware": _or_null(OBJECT),
    "versions": _or_null(OBJECT),
    "commit": _or_null(TEXT),
}
PARTS = {
    "phases_s": PHASES,
    "phase_tokens": ("engine_start", "steady", "tail"),
    "rows": ("in", "out", "missing", "doubled", "unknown", "null", "short", "continued", "redone"),
    "tokens": ("prompt", "output"),
    "counters": ("prefix_cache_queries", "prefix_cache_hits", "preemptions", "prompt_tokens", "generation_tokens"),
}
NESTED: dict[str, dict[str, Check]] = {
    "config": {
        "MODEL_NAME": TEXT,
        "CONCURRENCY": COUNT,
        "GPUS_PER_ENGINE": COUNT,
        "KV_CACHE_MEMORY_BYTES": COUNT_OR_NULL,
        "PROBE_INTERVAL_S": ("seconds", _is_seconds),
        "COMPARISON_ARM": TEXT_OR_NULL,
    },
    "dataset": {"fingerprint": TEXT},
    "hardware": {"gpu_ids": _or_null(("a list of texts", _is_texts))},
}
COUNTED = ("rows", "tokens", "counters")
