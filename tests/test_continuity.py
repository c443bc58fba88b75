"""A run that outlives an engine or a kill: not stopped, checked by what can be checked, and never a time."""

import copy
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_story import log_of, story
from harness import checks, continuity, evidence
from harness.comparison import comparability, sections
from harness.data import dataset, storage
from harness.planning import reading
from harness.planning.answers import Answers
from harness.planning.parts import Parts
from harness.preflight.workload import Workload
from harness.watchdog import Watchdog
from synthetic import record

DEAD = [{"kind": "dead", "at": 21.0, "received_at": 21.0, "engine": "a", "node": "node", "pid": 1}]


@pytest.fixture
def outlived() -> Iterator[continuity.Continuity]:
    """What the strategy has told; forgotten after the test."""
    before = copy.deepcopy(continuity.current)
    yield continuity.current
    vars(continuity.current).update(vars(before))


def watchdog(log: object) -> Watchdog:
    return Watchdog(log, None, 2000, lambda _: None)  # type: ignore[arg-type]


def test_a_dead_engine_ends_no_run_of_a_strategy_that_sees_to_it(outlived: continuity.Continuity) -> None:
    dog = watchdog(log_of(story("a", ready=time.time() - 10, running=3), DEAD))
    assert "engine a died" in str(dog.verdict())
    outlived.survives_engines = True
    assert dog.verdict() is None


def test_a_replacement_has_the_time_of_a_start_and_no_more(
    outlived: continuity.Continuity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "WATCHDOG_STALL_S", 30.0)
    monkeypatch.setattr(config, "WATCHDOG_START_S", 200.0)
    dog = watchdog(log_of(story("a", ready=time.time() - 500), DEAD))
    outlived.survives_engines = True
    dog.verdict()
    dog.moved_at -= 100
    assert "no token generated for 100 s" in str(dog.verdict())
    outlived.starting_since = time.time() - 100
    assert dog.verdict() is None
    outlived.starting_since -= 101
    assert "no replacement was ready after 201 s (WATCHDOG_START_S)" in str(dog.verdict())


def test_work_that_an_earlier_run_did_is_not_waited_for(outlived: continuity.Continuity) -> None:
    dog = watchdog(log_of(story("a", ready=time.time() - 10, running=3), DEAD))
    assert dog.verdict() is not None
    outlived.continued_tokens = 1000
    assert dog.verdict() is None


def test_a_continued_run_says_at_once_how_many_rows_it_takes_over(
    outlived: continuity.Continuity, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = SimpleNamespace(discard=lambda: None, read=lambda: iter([TABLE]))
    monkeypatch.setattr(Parts, "open", lambda: kept)
    Answers()
    assert outlived.continued_rows == 3
    assert capsys.readouterr().err == "continues an earlier run that was killed: 3 rows are answered\n"


@pytest.fixture
def opened(outlived: continuity.Continuity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Any], Parts]:
    """The parts of a run over a dataset with these ids; fingerprints are of their texts."""

    def open_(ids: Any) -> Parts:
        pq.write_table(pa.table({"id": ids, "prompt": ["a"] * len(ids)}), tmp_path / "asked.parquet")
        monkeypatch.setattr(config, "INPUT_PATH", str(tmp_path / "asked.parquet"))
        monkeypatch.setattr(config, "OUTPUT_PATH", str(tmp_path / "answers"))
        outlived.fingerprint = dataset.fingerprint(dataset.read_batches(config.INPUT_PATH, ["id", "prompt"]))
        parts = Parts.open()
        assert parts is not None
        return parts

    return open_


def rows(parts: Parts) -> list[Any]:
    return [i for part in parts.read() for i in part["id"].to_pylist()]


BATCH = pa.record_batch({"id": [1, 2], "output": ["a", "b"], "output_tokens": [4, 4]})


def test_a_damaged_part_is_named_and_its_rows_are_answered_again(
    opened: Callable[[Any], Parts], capsys: pytest.CaptureFixture[str]
) -> None:
    parts = opened([1, 2, 3])
    parts.write(BATCH)
    parts.write(BATCH)
    first, second = sorted(Path(parts.folder).iterdir())
    second.write_bytes(second.read_bytes()[:40])
    assert rows(parts) == [1, 2]
    assert capsys.readouterr().err.startswith(f"left out: {second} is damaged (")
    first.write_bytes(b"")
    assert len(rows(parts)) == 0


def test_many_kept_parts_are_not_read_without_a_word(
    opened: Callable[[Any], Parts], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.planning.parts.MANY", 1)
    parts = opened([1, 2])
    parts.write(BATCH)
    rows(parts)
    assert not capsys.readouterr().err
    parts.write(BATCH)
    rows(parts)
    assert f"reading 2 kept parts in {parts.folder}" in capsys.readouterr().err


def test_damage_to_the_rows_of_a_part_costs_them_and_changes_none(opened: Callable[[Any], Parts]) -> None:
    """Half of such damage raises OSError, some of it nothing: without a checksum, other text is read."""
    parts = opened([1, 2, 3])
    parts.write(BATCH)
    (path,) = Path(parts.folder).iterdir()
    whole = path.read_bytes()
    for at in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")):  # up to the footer
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        read = [row for part in parts.read() for row in part.to_pylist()]
        assert read in ([], BATCH.to_pylist()), at


def test_a_run_whose_ids_are_of_another_type_is_another_run(opened: Callable[[Any], Parts]) -> None:
    numbers, texts = opened([1, 2, 3]), opened(["1", "2", "3"])
    numbers.write(BATCH)
    assert (len(rows(numbers)), len(rows(texts))) == (2, 0)


def test_a_run_goes_on_keeping_answers_where_an_equal_one_has_ended(opened: Callable[[Any], Parts]) -> None:
    one, other = opened([1, 2, 3]), opened([1, 2, 3])
    one.write(BATCH)
    other.write(BATCH)
    one.discard()
    other.write(BATCH)
    assert len(rows(other)) == 2


def test_answers_that_do_not_fit_on_the_disk_are_named_and_leave_no_half_of_a_file(
    opened: Callable[[Any], Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = opened([1, 2, 3])

    def full(_: Any, path: str, **__: Any) -> None:
        Path(path).write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(storage.StorageError, match=r"unfinished-.*\.parquet: \[Errno 28\] No space left on device"):
        parts.write(BATCH)
    assert list(Path(parts.folder).iterdir()) == []


def test_kept_answers_are_taken_over_a_part_at_a_time_each_row_once(
    outlived: continuity.Continuity, opened: Callable[[Any], Parts]
) -> None:
    """Together they may be more than one array of text can hold (2 GiB): taken whole, they could not be continued."""
    for ids in (["a", "b"], ["c"], ["b", "d"]):  # two runs at a time may both have answered a row
        kept = opened(["a", "b", "c", "d"])
        kept.run = ids[0]
        kept.write(pa.record_batch({"id": ids, "output": [f"{i}!" for i in ids], "output_tokens": [4] * len(ids)}))
    assert [part["id"].to_pylist() for part in kept.read()] == [["a", "b"], ["d"], ["c"]]
    answers = Answers()
    assert sorted(answers.done.to_pylist()) == ["a", "b", "c", "d"]
    assert (outlived.continued_rows, outlived.continued_tokens) == (4, 16)
    assert sorted(answers.table()["output"].to_pylist()) == ["a!", "b!", "c!", "d!"]


def test_what_an_earlier_run_left_is_found_in_a_second_or_two_among_a_million_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The watchdog waits for the first token meanwhile."""
    rows = 1_000_000
    ids = np.random.default_rng(0).permutation(rows)
    for file, part in enumerate(np.split(ids, 4)):
        prompts = pa.array(["a prompt"]).take(pa.array(np.zeros(len(part), np.int64)))
        pq.write_table(pa.table({"id": part, "prompt": prompts}), tmp_path / f"{file}.parquet")
    monkeypatch.setattr(config, "INPUT_PATH", str(tmp_path))
    done = pa.array(np.delete(ids, [3, 400_000, rows - 1])[::-1])
    started = time.process_time()
    left = [row for batch in reading._left(done) for row in batch["id"].to_pylist()]
    assert time.process_time() - started < 5
    assert left == ids[[3, 400_000, rows - 1]].tolist()
    assert sum(len(batch) for batch in reading._left(pa.array([], pa.int64()))) == rows


@pytest.mark.parametrize(
    ("knob", "value"),
    [("MODEL_NAME", "/b/model"), ("LOAD_FORMAT", "dummy"), ("OUTPUT_LEN", 7), ("LOGITS_PROCESSORS", "a:B")],
)
def test_answers_of_another_model_or_length_are_not_taken_over(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[Any], Parts], knob: str, value: object
) -> None:
    monkeypatch.setattr(config, "MODEL_NAME", "/a/model")
    opened(["a"])
    folders = [kept.folder for _ in range(2) if (kept := Parts.open())]
    monkeypatch.setattr(config, knob, value)
    other = Parts.open()
    assert folders[0] == folders[1]
    assert other
    assert other.folder != folders[0]


COUNTED = checks.Counters(prompt_tokens=20, generation_tokens=8, finished={"length": 2}, request_generation_tokens={})
TABLE = pa.table({"id": [1, 2, 3], "output": ["a", "b", "c"], "output_tokens": [4, 4, 4]})


def test_engines_are_asked_for_what_an_earlier_run_left() -> None:
    verdict = checks.check(TABLE["id"].combine_chunks(), TABLE, 4, COUNTED)
    assert "the engines finished 2 requests for 3 rows" in str(verdict.error)
    continued = checks.Elsewhere(continued_rows=1, continued_tokens=4)
    assert checks.check(TABLE["id"].combine_chunks(), TABLE, 4, COUNTED, continued).ok


def test_rows_that_ran_twice_leave_the_totals_unchecked_and_say_so() -> None:
    verdict = checks.check(TABLE["id"].combine_chunks(), TABLE, 4, COUNTED, checks.Elsewhere(redone_rows=1))
    assert verdict.ok
    assert "1 rows were run again after an engine died" in verdict.unchecked[0]
    short = TABLE.set_column(2, "output_tokens", pa.array([4, 3, 4]))
    assert not checks.check(TABLE["id"].combine_chunks(), short, 4, COUNTED, checks.Elsewhere(redone_rows=1)).ok


def test_prompt_tokens_are_held_against_the_dataset_only_where_each_prompt_ran_once_in_this_run(
    outlived: continuity.Continuity, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {**dict.fromkeys(evidence.SUMMED, 0), **COUNTED, "generation_tokens": 12, "finished": {"length": 3}}
    monkeypatch.setattr(evidence, "counters_total", lambda *_: counted)
    monkeypatch.setattr(config, "CONCURRENCY", 0)

    def problems(prompt_tokens: int) -> list[str]:
        workload = Workload(TABLE["id"].combine_chunks(), 1, "fingerprint", 3, 4, prompt_tokens)
        return evidence.evidence(log_of(), workload, TABLE, 0.0, 30.0)["problems"]

    assert problems(20) == []
    assert "given 20 prompt tokens where the dataset's prompts have 30" in problems(30)[0]
    outlived.lost_engines.append("killed before it answered anything")
    assert problems(30) == []


def test_a_row_that_cannot_run_makes_the_run_invalid_and_is_named(outlived: continuity.Continuity) -> None:
    outlived.given_up["17"] = "refused twice: too odd"
    found = evidence.evidence(log_of(story("a", ready=None)), None, None, 0.0, 30.0)
    assert "row 17 cannot run: refused twice: too odd" in found["problems"]


def test_a_replaced_engine_is_no_engine_too_many(
    outlived: continuity.Continuity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 1)
    log = log_of(story("a"), story("b"))
    assert evidence.wrong_engine_count(log) == ["2 engines were built, expected CONCURRENCY = 1"]
    outlived.lost_engines.append("killed")
    assert evidence.wrong_engine_count(log) == []
    assert "1 engines died" in evidence.disturbances()[0]


def test_a_run_that_finds_nothing_left_to_do_needs_no_engine(outlived: continuity.Continuity) -> None:
    """Killed when the last row was answered and the answers' own file not yet written."""
    workload = Workload(TABLE["id"].combine_chunks(), 1, "fingerprint", 3, 4)
    assert evidence.evidence(log_of(), workload, TABLE, 0.0, 30.0)["problems"] == [
        "0 engines were built, expected CONCURRENCY = 128"
    ]
    outlived.continued_rows, outlived.continued_tokens = 3, 12
    found = evidence.evidence(log_of(), workload, TABLE, 0.0, 30.0)
    assert found["problems"] == []
    assert found["warnings"] == [
        "3 rows were answered by an earlier run that was killed",
        "not checked: the engines' own token counts (none was read: PROBE_INTERVAL_S is 0, or none had work)",
    ]


@pytest.mark.parametrize("kind", ["continued", "redone"])
def test_a_run_that_was_continued_or_repaired_is_never_compared_and_the_report_says_why(kind: str) -> None:
    whole, other = record("prefix-planned"), record("prefix-planned")
    other["rows"] = {**(other["rows"] or {}), kind: 12}
    (section,) = sections.group([whole, other])
    assert section.kept == [whole]
    assert section.set_apart == [(other, comparability.disturbances(other))]
    assert comparability.disturbances(other)[0].startswith("12 rows")
