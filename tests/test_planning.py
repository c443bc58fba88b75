"""The plan: rows in order of their tokens, groups kept together, work shared out evenly. No Ray, no engine."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.overrides import SUITE_DIR
from harness.planning import reading
from harness.planning.queues import Queues, Stretch, shares
from harness.planning.survival import Survival
from harness.planning.suspects import FEW, Suspects
from harness.planning.window import Tokenized, Window, plan, window_tokens

SIZE, OUTPUT = 4, 8


def prompts(rng: random.Random, rows: int = 60) -> list[list[int]]:
    """Prefixes within prefixes, and none; some prompts are equal, some whole numbers of blocks."""
    stems = [rng.choices(range(9), k=rng.choice([0, 3, 8, 13])) for _ in range(4)]
    stems += [stem + rng.choices(range(9), k=8) for stem in stems]
    made = [rng.choice(stems) + rng.choices(range(9), k=rng.choice([1, 4, 7])) for _ in range(rows)]
    return made + made[: rows // 5]


def planned(rows: list[list[int]], number: int = 0) -> Window:
    tokens = np.array([token for row in rows for token in row], np.int32)
    lengths = np.array([len(row) for row in rows], np.int64)
    return plan(number, Tokenized(pa.array(range(len(rows))), tokens, lengths), SIZE, OUTPUT)


def distinct_blocks(rows: list[list[int]]) -> int:
    """Blocks that have to be computed at least once, counted by their whole prefix."""
    return len({tuple(row[: end + SIZE]) for row in rows for end in range(0, (len(row) - 1) // SIZE * SIZE, SIZE)})


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_in_order_of_their_tokens_each_once_with_its_own_id(seed: int) -> None:
    rows = prompts(random.Random(seed))
    window = planned(rows)
    places = range(len(window))
    assert sorted(window.ids.to_pylist()) == list(range(len(rows)))
    assert [window.prompt(place).tolist() for place in places] == [rows[i] for i in window.ids.to_pylist()]
    assert [window.prompt(place).tolist() for place in places] == sorted(rows)


@pytest.mark.parametrize("seed", range(20))
def test_in_the_planned_order_every_block_is_computed_once(seed: int) -> None:
    rows = [row for row in prompts(random.Random(seed)) if len(row) % SIZE]  # whole blocks: the next test
    window = planned(rows)
    computed = sum((len(row) - 1) // SIZE for row in rows) - int(window.shared.sum())
    assert computed == distinct_blocks(rows)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    assert planned([[1] * 8, [1] * 8, [1] * 9]).shared.tolist() == [0, 1, 2]


def read_in_batches(rows: list[list[int]], size: int) -> list[Tokenized]:
    """Rows as they come from their tokenising tasks, `size` at a time."""
    ids = pa.array(range(len(rows)))
    cut = [(ids[begin : begin + size], rows[begin : begin + size]) for begin in range(0, len(rows), size)]
    lengths = [np.array([len(row) for row in part], np.int64) for _, part in cut]
    tokens = [np.array([token for row in part for token in row], np.int32) for _, part in cut]
    return [Tokenized(*part) for part in zip([ids for ids, _ in cut], tokens, lengths, strict=True)]


def said_of(window: Window) -> tuple[list[list[int]], list[tuple[int, int]]]:
    arrays = [window.ids.to_pylist(), window.shared.tolist(), window.groups.tolist(), window.work.tolist()]
    return arrays, [(begin, end) for _, begin, end in shares(window, 3)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_plan_is_the_same_for_the_same_rows_however_they_are_batched(size: int) -> None:
    from harness.planning import reading  # brings Ray along, which the next test's process need not wait for

    rows = prompts(random.Random(1))
    batched, whole = (reading._window(0, read_in_batches(rows, cut)) for cut in (size, len(rows)))
    assert said_of(batched) == said_of(whole)


def plan_of_5000_rows() -> str:
    return hashlib.sha256(repr(said_of(planned(prompts(random.Random(1), 5000)))).encode()).hexdigest()


def test_another_process_makes_the_same_plan_from_the_same_seed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import test_planning; print(test_planning.plan_of_5000_rows())"],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": f"{SUITE_DIR}:{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == plan_of_5000_rows()


def test_windows_grow_to_their_full_size_and_may_be_thousands() -> None:
    assert [window_tokens(number, 1600) for number in (0, 1, 4, 5, 5000)] == [100, 200, 1600, 1600, 1600]


def test_equal_prompts_keep_the_order_of_the_dataset() -> None:
    assert planned([[2], [1], [2], [1], [2]]).ids.to_pylist() == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("engines", [1, 2, 3, 7])
def test_engines_get_equal_work_and_whole_groups_where_that_costs_nothing(engines: int) -> None:
    rng = random.Random(engines)
    stems = [rng.choices(range(99), k=8) for _ in range(700)]
    window = planned([[*stem, 99 + i] for stem in stems for i in range(3)])
    stretches = shares(window, engines)
    assert sum(stretch.rows for stretch in stretches) == len(window)
    works = [stretch.work for stretch in stretches]
    assert max(works) <= 1.03 * sum(works) / engines
    assert all(window.shared[stretch.begin] == 0 for stretch in stretches)


def test_a_group_larger_than_an_engines_share_is_cut() -> None:
    stretches = shares(planned([[1] * 8 + [i] for i in range(100)]), 4)
    assert [stretch.rows for stretch in stretches] == pytest.approx([25] * 4, abs=1)


def test_more_engines_than_rows_leave_some_without_any() -> None:
    assert sorted(stretch.rows for stretch in shares(planned([[1], [2]]), 4))[-2:] == [1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_taken_once_whoever_asks_and_whatever_is_put_back(seed: int) -> None:
    rng = random.Random(seed)
    window = planned(prompts(rng))
    queues = Queues(3)
    queues.add(window, [0, 1, 2])
    taken: Counter[int] = Counter()
    while len(queues):
        engine = rng.randrange(3)
        stretches = queues.take(engine, rng.randint(1, 9))
        if rng.random() < 0.3:
            queues.put_back(engine, stretches)
            continue
        taken.update(place for stretch in stretches for place in range(stretch.begin, stretch.end))
    assert taken == Counter(range(len(window)))
    assert queues.take(0, 5) == []


def test_an_idle_engine_takes_whole_groups_from_the_back_of_the_largest_queue() -> None:
    window = planned([[group] * 8 + [i] for group in range(10) for i in range(5)])
    queues = Queues(2)
    queues.add(window, [0])
    (stretch,) = queues.take(1, 10)
    assert (stretch.begin, stretch.rows) == (25, 10)
    assert queues.take(0, 5) == [Stretch(window, 0, 5)]


def test_only_the_last_group_is_cut_for_an_idle_engine_and_not_when_it_is_small() -> None:
    queues = Queues(2)
    queues.add(planned([[1] * 8 + [i] for i in range(40)]), [0])
    assert [(s.begin, s.end) for s in queues.take(1, 99)] == [(20, 40), (10, 20), (0, 10)]
    queues.add(planned([[1] * 8 + [i] for i in range(8)]), [0])
    assert [s.rows for s in queues.take(1, 99)] == [8]


def test_rows_that_are_put_back_come_first() -> None:
    queues = Queues(1)
    window = planned([[i] for i in range(10)])
    queues.add(window, [0])
    first = queues.take(0, 4)
    queues.put_back(0, first)
    assert queues.take(0, 4) == first


def test_planning_20_000_prompts_of_512_tokens_takes_seconds() -> None:
    rng = np.random.default_rng(0)
    prefixes = rng.integers(0, 150_000, (512, 256))
    tokens = np.hstack([prefixes[rng.integers(0, 512, 20_000)], rng.integers(0, 150_000, (20_000, 256))])
    rows = Tokenized(pa.array(range(20_000)), tokens.astype(np.int32).ravel(), np.full(20_000, 512, np.int64))
    started = time.process_time()
    window = plan(0, rows, 16, 128)
    # 200,000 have a minute.
    assert time.process_time() - started < 6
    assert len(window.groups) == 512
    assert int(window.shared.sum()) == (20_000 - 512) * 16


def test_a_row_that_kills_every_engine_is_found_out_and_all_others_run() -> None:
    rows, poison = list(range(100)), 41
    suspects, left, deaths, given_up = Suspects(), rows, 0, []
    while left or suspects:
        running = suspects.take() if suspects and not left else left
        left = [] if running is left else left
        if poison in running:
            deaths += 1
            again, hopeless = suspects.died(running)
            left, given_up = left + again, given_up + hopeless
    assert (given_up, deaths) == ([poison], 4)


def test_suspects_run_few_together_after_a_second_death_and_alone_after_a_third() -> None:
    suspects = Suspects()
    assert suspects.died(range(40)) == (list(range(40)), [])
    assert not suspects
    assert suspects.died(range(40)) == ([], [])
    few = suspects.take()
    assert len(few) == FEW
    suspects.died(few)
    pieces = [suspects.take() for _ in range(2 + FEW)]
    assert [len(piece) for piece in pieces] == [FEW, 40 - 2 * FEW] + [1] * FEW


def test_until_something_ends_early_all_are_expected_to_reach_the_limit() -> None:
    survival = Survival(10)
    assert (survival.mean_length, survival.mean_age) == (10, 4.5)
    ages = np.array([[3, 10, 11]])
    assert survival.chances(ages, np.array([3])).tolist() == [[1, 1, 0]]


def test_early_ends_lower_the_expectation_without_the_bias_of_short_ones_ending_first() -> None:
    rng, survival = random.Random(0), Survival(100)
    lengths = [rng.randint(1, 100) for _ in range(3000)]
    for age in range(1, 31):  # none is older than 30 yet
        survival.reached(np.array([age for length in lengths if length >= age]))
        for length in lengths:
            if length == age:
                survival.ended(age)
    chance = survival.chances(np.array([[31]]), np.array([1]))[0, 0]
    assert chance == pytest.approx(sum(length > 30 for length in lengths) / len(lengths), abs=0.01)
    # Those that ended had 15 tokens on average; the others are known to have more.
    assert survival.mean_length > 60


def test_the_script_that_measures_planning_plans_every_row_and_keeps_a_line(tmp_path: Path) -> None:
    environment = os.environ | {"BENCH_PROFILE": "local-cpu", "BENCH_RESULTS_PATH": str(tmp_path)}
    command = [sys.executable, "planning-speed.py", "--rows", "3000", "--tokens", "300"]
    done = subprocess.run(command, cwd=SUITE_DIR, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "planning-speed.jsonl").read_text())["planned"]
    # Every prefix is a group of its own.
    assert (kept["rows"], kept["groups"]) == (3000, 512)
    assert 0 < kept["plan_s"] < 30
    assert kept["peak_memory_bytes"] < 4e9


def test_small_files_are_tokenised_together_and_large_ones_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(range(10_000))
    for number, rows in enumerate([16] * 8 + [reading.BATCH_ROWS + 10]):
        part = [next(ids) for _ in range(rows)]
        pq.write_table(pa.table({"id": part, "prompt": [f"prompt {i}" for i in part]}), tmp_path / f"{number}.parquet")
    monkeypatch.setattr(config, "INPUT_PATH", str(tmp_path))
    batches = list(reading._batches(done=pa.array([1, 2])))
    # Each would have a process of its own, which competes with the engines while they start.
    assert [len(prompts) for _, prompts in batches] == [8 * 16 - 2 + reading.BATCH_ROWS, 10]
    read = [(i.as_py(), prompt) for some, prompts in batches for i, prompt in zip(some, prompts, strict=True)]
    assert read == [(i, f"prompt {i}") for i in range(8 * 16 + reading.BATCH_ROWS + 10) if i not in (1, 2)]


def committed(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SUITE_DIR / "results" / file).read_text().splitlines()]


def test_the_committed_measurement_planned_within_a_minute_and_carried_2_million_rows_in_less_than_4_gb() -> None:
    for kept in committed("planning-speed.jsonl"):
        planned, carried = kept["planned"], kept["carried"]
        assert (kept["cpus"], planned["rows"], planned["tokens"], carried["rows"]) == (2, 200_000, 512, 2_000_000)
        assert planned["plan_s"] < 60
        assert max(planned["peak_memory_bytes"], carried["peak_memory_bytes"]) < 4e9


@pytest.mark.parametrize("file", ["records.jsonl", "simulations.jsonl"])
def test_engines_idle_in_the_tail_less_than_3_per_cent_of_their_seconds_in_every_committed_run(file: str) -> None:
    runs = [run for run in committed(file) if run["strategy"] == "prefix-planned" and run["waterfall_s"]]
    assert any((run.get("config") or {"CONCURRENCY": run.get("engines")})["CONCURRENCY"] > 1 for run in runs)
    for run in runs:
        generating = [run["waterfall_s"][part] for part in ("first_wait", "prefill", "decode", "starved", "tail")]
        assert run["waterfall_s"]["tail"] < 0.03 * sum(generating), run
