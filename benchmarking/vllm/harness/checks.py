"""Did a strategy do the work it was asked for? Every id back once, no null output, exact token counts.

Rows are joined by id, so their order never matters. Text is never compared, between rows or between strategies: greedy
output differs with batch shape and with caching.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FIRST_IDS = 5  # that a message names

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Counters(TypedDict):
    """What the engines counted during the run, summed over them; a warm-up is subtracted before."""

    prompt_tokens: int  # of a request once, with its first token: neither preemptions nor cache hits change it
    generation_tokens: int
    finished: dict[str, int]  # requests by reason: "length", "stop", "abort", ...
    request_generation_tokens: dict[str, int]  # requests with at most so many tokens, by upper bound ("+Inf": all)


class Elsewhere(NamedTuple):
    """Rows that the counters do not tell, or tell more than once; see continuity.py."""

    continued_rows: int = 0  # answered by an earlier run
    continued_tokens: int = 0
    redone_rows: int = 0  # computed twice, wholly or in part, because an engine died


NOTHING_ELSEWHERE = Elsewhere()


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

    def count(self, kind: str, number: int | None, detail: str) -> None:
        """Books `number` rows as `kind`; `detail` says which, or how it is known."""
        self.rows[kind] = number
        if number:
            self.problems.append(f"{number:,} of {self.rows['in']:,} rows {kind}, {detail}")


def check(
    ids: "pa.Array[Any]",
    returned: pa.Table,
    expected: int | Ints,
    counters: Counters | None,
    elsewhere: Elsewhere = NOTHING_ELSEWHERE,
    prompt_tokens: int | None = None,
) -> Verdict:
    """Compares what came back with what was asked for.

    ids       every input id once
    returned  `id`, `output` and, where the strategy knows it, `output_tokens`; any order
    expected  output tokens of every row: one number (every request then ends at its max_tokens), or one for each of
              `ids`, where each request ends at its own length
    counters  None where no engine was read: lengths are then checked as far as `returned` shows them
    elsewhere  what the counters do not tell once a row
    prompt_tokens  of all prompts; None where that is not known, or the engines were not given each row once

    Raises ValueError for a table without `id` or `output`.
    """
    if missing := {"id", "output"} - set(returned.column_names):
        raise ValueError(f"expected columns id and output in the result: {sorted(missing)} not in {returned.schema}")
    verdict = Verdict({"in": len(ids), "out": len(returned)})
    row = pc.index_in(returned["id"].cast(ids.type), value_set=ids).fill_null(-1).to_numpy()
    _check_ids(verdict, ids, returned, row)
    lengths = np.full(len(ids), expected) if isinstance(expected, int) else expected
    verdict.rows |= {"short": None, "long": None}
    if "output_tokens" in returned.column_names:
        _check_lengths(verdict, returned, row, lengths)
    if counters is None:
        verdict.unchecked.append(
            "the engines' own token counts (none was read: PROBE_INTERVAL_S is 0, or none had work)"
        )
    else:
        _check_totals(verdict, counters, lengths, elsewhere)
        _check_prompts(verdict, counters, prompt_tokens)
    if verdict.rows["short"] is None:
        _infer_lengths(verdict, counters, lengths, fixed=isinstance(expected, int))
    return verdict


def _check_ids(verdict: Verdict, ids: "pa.Array[Any]", returned: pa.Table, row: Ints) -> None:
    times = np.bincount(row[row >= 0], minlength=len(ids))
    _count(verdict, "missing", ids, times == 0)
    _count(verdict, "doubled", ids, times > 1)
    _count(verdict, "unknown", returned["id"], row < 0)
    _count(verdict, "null", returned["id"], returned["output"].is_null().to_numpy())


def _check_lengths(verdict: Verdict, returned: pa.Table, row: Ints, lengths: Ints) -> None:
    """Row by row, where the strategy returns token counts. A null output is not counted as a short one too."""
    judged = (row >= 0) & returned["output"].is_valid().to_numpy()
    column: Any = returned["output_tokens"]
    tokens = column.fill_null(0).to_numpy()
    _count(verdict, "short", returned["id"], judged & (tokens < lengths[row]))
    _count(verdict, "long", returned["id"], judged & (tokens > lengths[row]))


def _check_totals(verdict: Verdict, counters: Counters, lengths: Ints, elsewhere: Elsewhere) -> None:
    if elsewhere.redone_rows:
        why = f"{elsewhere.redone_rows:,} rows were run again after an engine died"
        verdict.unchecked.append(f"the engines' totals ({why}; each row's length was checked)")
        return
    finished, tokens = sum(counters["finished"].values()), counters["generation_tokens"]
    rows, asked = len(lengths) - elsewhere.continued_rows, int(lengths.sum()) - elsewhere.continued_tokens
    if finished != rows:
        verdict.problems.append(f"the engines finished {finished:,} requests for {rows:,} rows")
    if tokens != asked:
        verdict.problems.append(f"the engines generated {tokens:,} tokens where {asked:,} were asked for")


def _check_prompts(verdict: Verdict, counters: Counters, prompt_tokens: int | None) -> None:
    """Says nothing of other numbers of requests than rows, which are a problem of their own."""
    if prompt_tokens is None or sum(counters["finished"].values()) != verdict.rows["in"]:
        return
    if (counted := counters["prompt_tokens"]) != prompt_tokens:
        verdict.problems.append(
            f"the engines were given {counted:,} prompt tokens where the dataset's prompts have {prompt_tokens:,}: "
            "prompts were cut, or a chat template or special tokens added"
        )


def _infer_lengths(verdict: Verdict, counters: Counters | None, lengths: Ints, fixed: bool) -> None:
    """Lengths from what the engines counted, where the strategy returns text alone."""
    if counters is None:
        verdict.unchecked.append("output lengths (the strategy returns no token counts)")
    elif fixed:
        # With min_tokens = max_tokens, a request that ends for another reason than its length ended early. One that
        # no engine finished is missing, not short.
        early = sum(counters["finished"].values()) - counters["finished"].get("length", 0)
        verdict.count("short", early, "by the engines' finish reasons")
        verdict.count("long", 0, "max_tokens forbids it")
    elif sum(counters["finished"].values()) == len(lengths):
        short, long = _bucket_differences(counters["request_generation_tokens"], lengths)
        verdict.count("short", short, "at least, by the engines' histogram of lengths")
        verdict.count("long", long, "at least, by the engines' histogram of lengths")
    else:
        verdict.unchecked.append("output lengths (other numbers of requests and rows)")


def _bucket_differences(at_most: dict[str, int], lengths: Ints) -> tuple[int, int]:
    """At least so many requests were shorter, and longer, than asked: the largest gaps of the cumulative counts."""
    bounds = np.array([float(bound) for bound in at_most])
    wanted = np.searchsorted(np.sort(lengths), bounds, side="right")
    gap = np.array(list(at_most.values())) - wanted
    return int(gap.max(initial=0)), int((-gap).max(initial=0))


def _count(verdict: Verdict, kind: str, ids: Any, flags: Flags) -> None:
    where = np.flatnonzero(flags)
    first = ids.take(pa.array(where[:FIRST_IDS])).to_pylist()
    verdict.count(kind, len(where), "first ids: " + ", ".join(map(str, first)))
