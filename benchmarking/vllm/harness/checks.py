"""Did a strategy do the work it was asked for? Every id back once, no null output, exact token counts.

Rows are joined by id, so their order never matters. Text is never compared, between rows or between strategies: greedy
output differs with batch shape and with caching.
"""

from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FIRST_IDS = 5  # that a message names

Lengths = npt.NDArray[np.int64]


class Counters(TypedDict):
    """What the engines counted during the run, summed over them; a warm-up is subtracted before."""

    generation_tokens: int
    finished: dict[str, int]  # requests by reason: "length", "stop", "abort", ...
    request_generation_tokens: dict[str, int]  # requests with at most so many tokens, by upper bound ("+Inf": all)


@dataclass
class Verdict:
    """Counts as records hold them (`rows`, null where unknown), what is wrong, and what could not be checked."""

    rows: dict[str, int | None]
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def error(self) -> str | None:
        return "; ".join(self.problems) or None


def check(ids: pa.Array, returned: pa.Table, expected: int | Lengths, counters: Counters | None) -> Verdict:
    """Compares what came back with what was asked for.

    ids       every input id once
    returned  `id`, `output` and, where the strategy knows it, `output_tokens`; any order
    expected  output tokens of every row: one number (every request then ends at its max_tokens), or one for each of
              `ids`, where each request ends at its own length
    counters  None while the probe is off: lengths are then checked as far as `returned` shows them

    Raises ValueError for a table without `id` or `output`, which no run should return.
    """
    if missing := {"id", "output"} - set(returned.column_names):
        raise ValueError(f"a strategy returns the columns id and output: {sorted(missing)} not among {returned.schema}")
    verdict = Verdict({"in": len(ids), "out": len(returned)})
    position = pc.index_in(returned["id"].cast(ids.type), value_set=ids).combine_chunks()
    _check_ids(verdict, ids, returned, position)
    verdict.rows |= {"short": None, "long": None}
    lengths = np.full(len(ids), expected) if isinstance(expected, int) else expected
    if "output_tokens" in returned.column_names:
        _check_lengths(verdict, returned, position, lengths)
    if counters:
        _check_counters(verdict, counters, lengths, fixed=isinstance(expected, int))
    else:
        verdict.unchecked.append("the engines' own token counts (PROBE_INTERVAL_S is 0)")
    if verdict.rows["short"] is None and not counters:
        verdict.unchecked.append("output lengths (the strategy returns no token counts)")
    return verdict


def _check_ids(verdict: Verdict, ids: pa.Array, returned: pa.Table, position: pa.Array) -> None:
    times = np.bincount(position.drop_null().to_numpy(), minlength=len(ids))
    _count(verdict, "missing", ids.filter(pa.array(times == 0)))
    _count(verdict, "doubled", ids.filter(pa.array(times > 1)))
    _count(verdict, "unknown", returned["id"].filter(position.is_null()))
    _count(verdict, "null", returned["id"].filter(returned["output"].is_null()))


def _check_lengths(verdict: Verdict, returned: pa.Table, position: pa.Array, lengths: Lengths) -> None:
    """Row by row, where the strategy returns token counts. A null output is not counted as a short one too."""
    judged = pc.and_(position.is_valid(), returned["output"].is_valid())
    tokens = returned["output_tokens"].filter(judged).fill_null(0).to_numpy()
    wanted = lengths[position.filter(judged.combine_chunks()).to_numpy()]
    judged_ids = returned["id"].filter(judged)
    _count(verdict, "short", judged_ids.filter(pa.array(tokens < wanted)))
    _count(verdict, "long", judged_ids.filter(pa.array(tokens > wanted)))


def _check_counters(verdict: Verdict, counters: Counters, lengths: Lengths, fixed: bool) -> None:
    """What the engines say they generated. Row counts from them only fill what the table could not show."""
    finished = sum(counters["finished"].values())
    if finished != len(lengths):
        verdict.problems.append(f"the engines finished {finished:,} requests for {len(lengths):,} rows")
    if counters["generation_tokens"] != lengths.sum():
        found = counters["generation_tokens"]
        verdict.problems.append(f"the engines generated {found:,} tokens, {lengths.sum():,} were asked for")
    # A request that no engine finished is missing, not short; and only equal numbers of requests compare by bucket.
    short = long = None
    if fixed:
        short, long = finished - counters["finished"].get("length", 0), 0
    elif finished == len(lengths):
        short, long = _bucket_differences(counters["request_generation_tokens"], lengths)
    _fill(verdict, "short", short, "ended before max_tokens" if fixed else "at least, by the engines' histogram")
    _fill(verdict, "long", long, "at least, by the engines' histogram")


def _bucket_differences(at_most: dict[str, int], lengths: Lengths) -> tuple[int, int]:
    """At least so many requests were shorter, and longer, than asked: the largest gaps of the cumulative counts."""
    bounds = np.array([float(bound) for bound in at_most])
    wanted = np.searchsorted(np.sort(lengths), bounds, side="right")
    gap = np.array(list(at_most.values())) - wanted
    return int(gap.max(initial=0)), int((-gap).max(initial=0))


def _count(verdict: Verdict, kind: str, ids: Any) -> None:
    verdict.rows[kind] = len(ids)
    if len(ids):
        first = ", ".join(map(str, ids[:FIRST_IDS].to_pylist()))
        verdict.problems.append(f"{len(ids):,} of {verdict.rows['in']:,} rows {kind}, first ids: {first}")


def _fill(verdict: Verdict, kind: str, count: int | None, how: str) -> None:
    if verdict.rows[kind] is None:
        verdict.rows[kind] = count
        if count:
            verdict.problems.append(f"{count:,} of {verdict.rows['in']:,} rows {kind} ({how})")
