"""What a strategy returned, against what it was asked for."""

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.checks import check

IDS = pa.array(range(25))


def table(ids: Any, tokens: Any = None, outputs: Any = None) -> pa.Table:
    columns = {"id": ids, "output": [f"text {i}" for i in ids] if outputs is None else outputs}
    return pa.table(columns if tokens is None else columns | {"output_tokens": tokens})


def counters(lengths: Any, stopped: int = 0) -> Any:
    """What engines count that answered requests with these lengths."""
    lengths = np.asarray(lengths)
    return {
        "prompt_tokens": 100 * len(lengths),
        "generation_tokens": int(lengths.sum()),
        "finished": {"length": len(lengths) - stopped, "stop": stopped, "abort": 0},
        "request_generation_tokens": {str(le): int((lengths <= le).sum()) for le in (1.0, 2.0, 5.0, 10.0, np.inf)},
    }


def test_rows_in_any_order_are_joined_by_id() -> None:
    shuffled = np.random.default_rng(1).permutation(25)
    verdict = check(IDS, table(shuffled, tokens=[7] * 25), 7, counters([7] * 25))
    assert verdict.ok
    assert verdict.error is None
    assert verdict.unchecked == []
    rows = dict.fromkeys(("missing", "doubled", "unknown", "null", "short", "long"), 0)
    assert verdict.rows == {"in": 25, "out": 25} | rows


def test_rows_in_any_order_are_held_against_their_own_lengths() -> None:
    """Rows that come back as they finish, in an order of their own, each with the length that its id was given."""
    lengths = np.arange(25) + 1
    order = np.random.default_rng(2).permutation(25)
    ids = pa.array(np.random.default_rng(3).choice(1000, 25, replace=False))
    returned = table(ids.take(pa.array(order)), tokens=lengths[order])
    assert check(ids, returned, lengths, counters(lengths)).ok
    by_position = table(ids.take(pa.array(order)), tokens=lengths)
    assert not check(ids, by_position, lengths, counters(lengths)).ok


def test_lost_doubled_and_foreign_rows_are_counted_and_named() -> None:
    verdict = check(IDS, table([*range(3, 25), 10, 10, 11, 99]), 7, counters([7] * 25))
    assert [verdict.rows[kind] for kind in ("out", "missing", "doubled", "unknown")] == [26, 3, 2, 1]
    assert verdict.problems == [
        "3 of 25 rows missing, first ids: 0, 1, 2",
        "2 of 25 rows doubled, first ids: 10, 11",
        "1 of 25 rows unknown, first ids: 99",
    ]


def test_a_null_output_and_a_null_id_are_found() -> None:
    verdict = check(IDS, table([*range(24), None], outputs=["a", None] + ["b"] * 23), 7, None)
    assert [verdict.rows[kind] for kind in ("null", "missing", "unknown")] == [1, 1, 1]
    assert "1 of 25 rows null, first ids: 1" in verdict.problems


def test_no_rows_at_all_is_not_a_fast_run() -> None:
    verdict = check(IDS, table(pa.array([], pa.int64()), outputs=pa.array([], pa.string())), 7, None)
    assert verdict.rows["missing"] == 25
    assert not verdict.ok


def test_a_result_without_its_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="expected columns id and output in the result"):
        check(IDS, pa.table({"id": IDS, "text": IDS}), 7, None)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.string(), pa.large_string()])
def test_ids_may_come_back_in_another_width(kind: pa.DataType) -> None:
    ids = IDS.cast(pa.string()) if "string" in str(kind) else IDS
    assert check(ids, table(ids.cast(kind), tokens=[7] * 25), 7, None).ok


def test_token_counts_of_rows_show_short_and_long_ones() -> None:
    tokens = [7] * 25
    tokens[4], tokens[5], tokens[6] = 6, 8, 1
    verdict = check(IDS, table(range(25), tokens=tokens), 7, None)
    assert (verdict.rows["short"], verdict.rows["long"]) == (2, 1)
    assert "2 of 25 rows short, first ids: 4, 6" in verdict.problems
    assert verdict.unchecked == [
        "the engines' own token counts (none was read: PROBE_INTERVAL_S is 0, or none had work)"
    ]


def test_outputs_swapped_between_rows_show_by_their_lengths() -> None:
    lengths = np.arange(25) + 1
    swapped = lengths.copy()
    swapped[[3, 20]] = swapped[[20, 3]]
    assert check(IDS, table(range(25), tokens=lengths), lengths, counters(lengths)).ok
    verdict = check(IDS, table(range(25), tokens=swapped), lengths, counters(swapped))
    assert verdict.problems == ["1 of 25 rows short, first ids: 20", "1 of 25 rows long, first ids: 3"]


def test_fixed_lengths_are_checked_by_finish_reasons_where_the_table_has_text_alone() -> None:
    assert check(IDS, table(range(25)), 7, counters([7] * 25)).ok
    verdict = check(IDS, table(range(25)), 7, counters([7] * 23 + [2, 1], stopped=2))
    assert verdict.rows["short"] == 2
    assert verdict.problems == [
        "the engines generated 164 tokens where 175 were asked for",
        "2 of 25 rows short, by the engines' finish reasons",
    ]


def test_varying_lengths_are_checked_by_histogram_where_the_table_has_text_alone() -> None:
    lengths = np.array([2] * 10 + [8] * 15)
    assert check(IDS, table(range(25)), lengths, counters(lengths, stopped=25)).ok
    # Three end early and three run on by as much: the sum of tokens does not show it.
    changed = lengths.copy()
    changed[:3], changed[-3:] = 9, 1
    verdict = check(IDS, table(range(25)), lengths, counters(changed, stopped=25))
    assert verdict.problems == ["3 of 25 rows short, at least, by the engines' histogram of lengths"]


def test_rows_that_the_engines_never_saw_are_missing_and_not_short() -> None:
    for expected in (7, np.full(25, 7)):
        verdict = check(IDS, table(range(20)), expected, counters([7] * 20))
        assert verdict.rows["missing"] == 5
        assert not verdict.rows["short"]
        assert "the engines finished 20 requests for 25 rows" in verdict.problems


def test_prompts_that_the_engines_saw_cut_or_longer_are_a_problem() -> None:
    returned, counted = table(range(25), tokens=[7] * 25), counters([7] * 25)
    assert check(IDS, returned, 7, counted, prompt_tokens=2500).ok
    assert check(IDS, returned, 7, counted, prompt_tokens=None).ok
    assert check(IDS, returned, 7, counted, prompt_tokens=2475).problems == [
        "the engines were given 2,500 prompt tokens where the dataset's prompts have 2,475: prompts were cut, or a "
        "chat template or special tokens added"
    ]


def test_prompt_tokens_of_other_numbers_of_requests_are_no_second_problem() -> None:
    verdict = check(IDS, table(range(25), tokens=[7] * 25), 7, counters([7] * 24), prompt_tokens=2500)
    assert "the engines finished 24 requests for 25 rows" in verdict.problems
    assert not any("prompt tokens" in problem for problem in verdict.problems)


def test_without_counters_or_token_counts_lengths_are_unknown_not_right() -> None:
    verdict = check(IDS, table(range(25)), 7, None)
    assert verdict.rows["short"] is None
    assert verdict.rows["long"] is None
    assert len(verdict.unchecked) == 2


def test_text_is_never_compared() -> None:
    first = table(range(25), tokens=[7] * 25)
    other = table(range(25), tokens=[7] * 25, outputs=["greedy text differs with batch shape"] * 25)
    assert check(IDS, first, 7, None) == check(IDS, other, 7, None)


def test_200_000_rows_take_about_a_second() -> None:
    ids = pa.array([f"request-{i}" for i in range(200_000)])
    order = np.random.default_rng(1).permutation(200_000)
    returned = table(ids.take(pa.array(order)), tokens=np.full(200_000, 7))
    start = time.perf_counter()
    assert check(ids, returned, 7, None).ok
    assert time.perf_counter() - start < 3
