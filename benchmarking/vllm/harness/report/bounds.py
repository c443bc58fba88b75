"""The best that was possible for a run, to stand beside what it did.

Whoever works it out appends one JSON line a run to `bounds.jsonl` in the results folder; where a run has none, or a
bound is null, the report shows a dash. Keys:
    run_id              the record's
    possible_hit_rate   0 to 1: highest prefix-cache hit rate that this dataset and KV cache allow
    floor_s             seconds of generation (steady and tail) below which this hardware cannot go
    working_set_tokens  tokens of the prefixes that more than one prompt shares
The last line of a run wins.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from harness.record_file import RecordError
from harness.schema import Record

FILE_NAME = "bounds.jsonl"


@dataclass(frozen=True)
class Bounds:
    possible_hit_rate: float | None = None
    floor_s: float | None = None
    working_set_tokens: float | None = None


NO_BOUNDS = Bounds()


def load(results_path: str | Path) -> dict[str, Bounds]:
    """Run id → bounds; empty where there is no file. Raises RecordError for a line that is none."""
    path = Path(results_path) / FILE_NAME
    if not path.exists():
        return {}
    lines = path.read_bytes().splitlines()
    return dict(_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1))


def _parse(line: bytes, where: str) -> tuple[str, Bounds]:
    try:
        row = json.loads(line)
        found = Bounds(**{name: row.get(name) for name in Bounds.__dataclass_fields__})
        if any(type(value) not in (int, float, type(None)) for value in vars(found).values()):
            raise ValueError("a bound that is no number")
        return str(row["run_id"]), found
    except (ValueError, KeyError, AttributeError) as error:
        raise RecordError(
            f"{where}: expected the bounds of a run, found {line[:60]!r} ({error}). Delete this line, and let "
            "forecast-records.py append it again"
        ) from None


def hit_rate(record: Record) -> float | None:
    """Share of queried prompt tokens that were in the prefix cache, from the engines' counters."""
    counters = record["counters"] or {}
    queries, hits = counters.get("prefix_cache_queries"), counters.get("prefix_cache_hits")
    return hits / queries if queries and hits is not None else None


def achieved_share(record: Record, bounds: Bounds) -> float | None:
    """Hit rate ÷ possible hit rate."""
    achieved = hit_rate(record)
    return achieved / bounds.possible_hit_rate if achieved is not None and bounds.possible_hit_rate else None


def floor_share(record: Record, bounds: Bounds) -> float | None:
    """Floor ÷ seconds of generation: 1 would be the best that the hardware can do."""
    phases = record["phases_s"] or {}
    steady, tail = phases.get("steady"), phases.get("tail")
    generation_s = steady + tail if steady is not None and tail is not None else None
    return bounds.floor_s / generation_s if bounds.floor_s is not None and generation_s else None


def kv_pressure(record: Record, bounds: Bounds) -> float | None:
    """Working set of shared prefixes ÷ the KV cache of one engine, both in tokens."""
    capacities = [_kv_tokens(engine.get("settings") or {}) for engine in record["engines"] or []]
    known = [capacity for capacity in capacities if capacity]
    if not known or bounds.working_set_tokens is None:
        return None
    return bounds.working_set_tokens * len(known) / sum(known)


def _kv_tokens(settings: dict[str, int | None]) -> int | None:
    blocks, block_size = settings.get("num_gpu_blocks"), settings.get("block_size")
    return blocks * block_size if blocks and block_size else None
