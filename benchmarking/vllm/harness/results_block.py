"""Prints a run's results: a block for people, then the record as one JSON line, the last of stdout."""

import json
from typing import Any

from harness.overrides import NOT_OF_RUNS

WIDTH = 78


def show(record: dict[str, Any]) -> None:
    """Prints the block and the record."""
    print("\n".join([" BENCHMARK RESULTS ".center(WIDTH, "="), *lines(record), "=" * WIDTH]))
    print(json.dumps(record, allow_nan=False))


def lines(record: dict[str, Any]) -> list[str]:
    if record["status"] == "refused":
        # Nothing was measured, and the reason stands at the end, on stderr.
        return [f"script:        {record['strategy']}.py", "status:        REFUSED, no engine was started"]
    return [
        f"script:        {record['strategy']}.py",
        f"status:        {record['status'].upper()}" + (f" - {record['error']}" if record["error"] else ""),
        *_time(record),
        *_work(record),
        *(f"warning:       {warning}" for warning in record["warnings"] or []),
        "configuration:",
        *(f"    {name} = {value!r}" for name, value in record["config"].items() if not name.startswith(NOT_OF_RUNS)),
    ]


def _time(record: dict[str, Any]) -> list[str]:
    if record["wall_s"] is None:
        return []
    phases = record["phases_s"] or {}
    known = [f"{name} {seconds:.1f}" for name, seconds in phases.items() if seconds is not None]
    split = f" = {' + '.join(known)}" if known else ", by phase unknown: no engine was seen"
    return [f"seconds:       {record['wall_s']:.1f}{split}", *_waterfall(record["waterfall_s"])]


def _waterfall(parts: dict[str, float] | None) -> list[str]:
    if parts is None:
        return []
    shown = [f"{name} {seconds:.1f}" for name, seconds in parts.items() if abs(seconds) >= 0.05]
    return [f"waterfall:     {', '.join(shown)}"]


def _work(record: dict[str, Any]) -> list[str]:
    if record["rows"] is None:
        return []
    rows, tokens, wall_s = record["rows"], record["tokens"], record["wall_s"]
    found = [
        f"rows:          {rows['in']} in, {rows['out']} out",
        f"prompts/s:     {(rows['out'] - (rows.get('continued') or 0)) / wall_s:.1f} whole job",
    ]
    if tokens:
        found += [
            f"output tok/s:  {tokens['output'] / wall_s:.0f} whole job, {_steady(record)} steady",
            _hit_rate(record),
        ]
    return found


def _steady(record: dict[str, Any]) -> str:
    seconds, tokens = record["phases_s"]["steady"], record["phase_tokens"]["steady"]
    return f"{tokens / seconds:.0f}" if seconds else "unknown"


def _hit_rate(record: dict[str, Any]) -> str:
    queries, hits = record["counters"]["prefix_cache_queries"], record["counters"]["prefix_cache_hits"]
    rate = f"{hits / queries:.3f}" if queries else "unknown"
    return f"prefix cache:  {record['cache_state']}, hit rate {rate}, {record['counters']['preemptions']} preemptions"
