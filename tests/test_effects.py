"""Intervals and verdicts, on simulated runs: no engine, many seeds."""

import math
import statistics

import numpy as np
import pytest
from harness.comparison.comparability import read_back_differences
from harness.comparison.effects import Cell, Effect, TooFewTrialsError, estimate, scatter, trials_needed
from harness.comparison.questions import answer, job_s, steady_s_per_token, strategy
from harness.comparison.sections import group
from synthetic import SETTINGS, record, trial_of, with_settings

# The default comparison: six strategies, the first of them twice.
DEFAULT = ("naive", "naive", "sorted", "continuous", "continuous-sorted", "bucketing", "ray")
TEN_PER_CENT = math.log(1.1)
REPEATS = 400


def simulated(
    seed: int, strategies: tuple[str, ...] = DEFAULT, blocks: int = 3, noise: float = 0.03, **extra: object
) -> list[Cell]:
    """Runs around 20 s with a shift for each block; `gains` (log) and `noises` are by strategy."""
    rng = np.random.default_rng(seed)
    gains, noises = extra.get("gains", {}), extra.get("noises", {})
    cells = []
    for block in range(blocks):
        shift = rng.normal(3.0, 0.05)
        for name in strategies:
            cells.append(Cell(str(block), name, shift - gains.get(name, 0.0) + rng.normal(0, noises.get(name, noise))))
    return cells


def effects(base: str, contender: str, repeats: int = REPEATS, **how: object) -> list[Effect]:
    return [estimate(simulated(seed, **how), {base: 1, contender: -1}) for seed in range(repeats)]


def is_called(effect: Effect) -> bool:
    return effect.low > 1 or effect.high < 1


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


PAIRS = [("sorted", "ray", DEFAULT), ("naive", "ray", DEFAULT), ("naive", "ray", ("naive", "naive", "ray"))]


@pytest.mark.parametrize(("base", "contender", "strategies"), PAIRS)
def test_equal_strategies_show_no_clear_difference_in_at_least_18_of_20(base, contender, strategies):
    found = [not is_called(effect) for effect in effects(base, contender, strategies=strategies)]
    assert sum(found[:20]) >= 18
    assert share(found) >= 0.92


@pytest.mark.parametrize(("base", "contender", "strategies"), PAIRS)
def test_ten_per_cent_at_three_per_cent_noise_is_called_in_at_least_18_of_20(base, contender, strategies):
    found = [
        effect.low > 1 for effect in effects(base, contender, strategies=strategies, gains={contender: TEN_PER_CENT})
    ]
    assert sum(found[:20]) >= 18
    assert share(found) >= 0.92


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_a_95_per_cent_interval_covers_the_truth_in_95_per_cent(blocks):
    found = effects("sorted", "ray", blocks=blocks, gains={"ray": TEN_PER_CENT})
    assert 0.925 <= share([effect.low <= 1.1 <= effect.high for effect in found]) <= 0.98


def test_a_strategy_that_scatters_three_times_as_much_is_covered_less_often_as_the_docstring_says():
    noisy = {"ray": 0.09}
    at_three = share([not is_called(e) for e in effects("sorted", "ray", noises=noisy)])
    at_five = share([not is_called(e) for e in effects("sorted", "ray", noises=noisy, blocks=5)])
    assert 0.73 <= at_three <= 0.83
    assert 0.85 <= at_five <= 0.94


def test_a_slower_strategy_is_called_slower():
    effect = estimate(simulated(1, gains={"ray": -TEN_PER_CENT}, noise=0.01), {"naive": 1, "ray": -1})
    assert effect.high < 1
    assert effect.ratio == pytest.approx(1 / 1.1, rel=0.02)


def test_what_changes_between_blocks_does_not_widen_the_interval():
    calm = simulated(3)
    moved = [Cell(c.block, c.strategy, c.log_s + 0.5 * int(c.block)) for c in calm]
    weights = {"sorted": 1, "ray": -1}
    assert estimate(moved, weights).high == pytest.approx(estimate(calm, weights).high)


def test_the_interval_is_the_same_each_time():
    assert estimate(simulated(1), {"naive": 1, "ray": -1}) == estimate(simulated(1), {"naive": 1, "ray": -1})


def test_a_lost_run_leaves_the_others_usable():
    cells = [
        cell for cell in simulated(4, noise=0.01, gains={"ray": 0.2}) if (cell.block, cell.strategy) != ("1", "ray")
    ]
    effect = estimate(cells, {"sorted": 1, "ray": -1})
    assert effect.blocks == 2
    assert effect.low < math.exp(0.2) < effect.high


def test_runs_that_are_alone_in_their_block_change_nothing():
    cells = simulated(5)
    alone = [Cell(f"by hand {i}", "ray", 9.0) for i in range(20)]
    weights = {"sorted": 1, "ray": -1}
    assert estimate([*cells, *alone], weights) == estimate(cells, weights)
    assert scatter([*cells, *alone]) == pytest.approx(scatter(cells))


@pytest.mark.parametrize("strategies", [("naive", "ray"), ("naive", "naive", "ray"), DEFAULT])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_too_few_trials_says_how_many_more_and_exactly_those_are_enough(strategies, blocks):
    weights = {"naive": 1, "ray": -1}
    enough = next(n for n in range(1, 9) if is_enough(simulated(1, strategies, n), weights))
    if blocks >= enough:
        assert is_enough(simulated(1, strategies, blocks), weights)
        return
    with pytest.raises(TooFewTrialsError, match=f"^{enough - blocks} more needed$"):
        estimate(simulated(1, strategies, blocks), weights)


def is_enough(cells, weights):
    try:
        return bool(estimate(cells, weights))
    except TooFewTrialsError:
        return False


def test_blocks_that_lack_one_side_leave_only_a_block_with_both_to_be_added():
    whole, *others = (simulated(1, blocks=1, noise=0.03) for _ in range(3))
    lacking = [Cell(f"later {n}", c.strategy, c.log_s) for n, some in enumerate(others) for c in some[:-1]]
    with pytest.raises(TooFewTrialsError, match=r"^1 more needed$"):
        estimate([*whole, *lacking], {"naive": 1, "ray": -1})


def test_runs_by_hand_are_no_trial_of_a_comparison():
    alone = [Cell(name, name, 3.0) for name in ("naive", "ray")]
    with pytest.raises(TooFewTrialsError, match=r"^run them with compare\.py$"):
        estimate(alone, {"naive": 1, "ray": -1})


@pytest.mark.parametrize("strategies", [DEFAULT, DEFAULT[1:], ("naive", "ray"), ("naive", "naive", "ray")])
def test_the_trials_that_a_verdict_needs_are_known_beforehand(strategies):
    needed = trials_needed(len(strategies), len(set(strategies)))
    assert estimate(simulated(0, strategies, blocks=needed), {"naive": 1, "ray": -1})
    with pytest.raises(TooFewTrialsError):
        estimate(simulated(0, strategies, blocks=needed - 1), {"naive": 1, "ray": -1})


def test_scatter_is_the_noise_of_one_run():
    found = [scatter(simulated(seed, noise=0.03)) for seed in range(200)]
    assert statistics.mean(found) == pytest.approx(0.03, rel=0.05)


def test_an_interaction_is_found_where_both_bring_more_than_the_product():
    four = ("a", "a", "sort", "route", "both")
    gains = {"sort": 0.1, "route": 0.2, "both": 0.6}
    weights = {"a": -1, "sort": 1, "route": 1, "both": -1}
    effect = estimate(simulated(2, strategies=four, noise=0.01, gains=gains), weights)
    assert effect.low < math.exp(0.3) < effect.high
    assert effect.low > 1


def compared(change=lambda made: made, trials=3):
    """The answer for naive-batch → ray-data from records in which ray-data takes 20 % less time."""
    rng = np.random.default_rng(0)
    made = []
    for trial in range(1, trials + 1):
        for place, (arm, gain) in enumerate({"naive-batch": 1.0, "naive-batch-again": 1.0, "ray-data": 0.8}.items(), 1):
            steady_s = 20 * gain * math.exp(rng.normal(0, 0.01))
            name = arm.removesuffix("-again")
            run = record(name, steady_s + 20, steady_s, config=trial_of("c", trial, place, arm))
            made.append(change(run) if name == "ray-data" else run)
    return group(made)[0]


WEIGHTS = {"naive-batch": 1, "ray-data": -1}


def test_steady_generation_and_whole_job_are_separate_answers():
    section = compared()
    steady = answer(section, WEIGHTS, steady_s_per_token, strategy)
    job = answer(section, WEIGHTS, job_s, strategy)
    assert (steady.verdict, job.verdict) == ("faster", "faster")
    assert steady.ratio == pytest.approx(1.25, rel=0.03)
    assert job.ratio == pytest.approx(40 / 36, rel=0.03)


def test_unequal_limits_are_not_comparable_and_say_why():
    section = compared(lambda run: with_settings(run, max_num_seqs=128))
    verdict = answer(section, WEIGHTS, job_s, strategy)
    assert verdict.verdict == "not comparable because max_num_seqs: 64 / 128"
    assert verdict.ratio is None


def test_a_warm_cache_is_not_compared_with_a_cold_one():
    section = compared(lambda run: {**run, "cache_state": "warm"})
    assert answer(section, WEIGHTS, job_s, strategy).verdict == "not comparable because cache_state: cold / warm"


def test_a_cache_state_or_limit_that_was_not_read_back_is_not_taken_for_equal():
    section = compared(lambda run: {**run, "cache_state": None})
    assert answer(section, WEIGHTS, job_s, strategy).verdict == (
        "not comparable because cache_state: cold / not read back"
    )
    section = compared(lambda run: with_settings(run, max_num_seqs=None))
    assert "max_num_seqs: 64 / not read back" in answer(section, WEIGHTS, job_s, strategy).verdict


def test_runs_whose_own_engines_had_unequal_limits_are_not_comparable_even_where_they_are_unequal_alike():
    unequal = {"engines": [{"settings": SETTINGS}, {"settings": SETTINGS | {"max_num_seqs": 128}}]}
    a, b = (record(strategy, **unequal) for strategy in ("naive-batch", "ray-data"))
    assert read_back_differences(a, b) == ["max_num_seqs: unequal engines: [64, 128] / unequal engines: [64, 128]"]


@pytest.mark.parametrize("steady", [None, 0.2])
def test_an_unknown_or_tiny_steady_phase_gives_no_answer_for_it_but_one_for_the_job(steady):
    section = compared(lambda run: {**run, "phases_s": {**run["phases_s"], "steady": steady}})
    found = answer(section, WEIGHTS, steady_s_per_token, strategy)
    assert found.verdict == "no answer: the steady phase of ray-data is unknown, or under 1 s or 10% of the output"
    assert answer(section, WEIGHTS, job_s, strategy).verdict == "faster"


def test_a_steady_phase_with_little_of_the_output_gives_no_answer():
    section = compared(lambda run: {**run, "phase_tokens": {**run["phase_tokens"], "steady": 100}})
    assert answer(section, WEIGHTS, steady_s_per_token, strategy).verdict.startswith("no answer")


def test_one_trial_gives_a_ratio_without_an_interval():
    found = answer(compared(trials=1), WEIGHTS, job_s, strategy)
    assert found.verdict.startswith("too few trials")
    assert found.ratio == pytest.approx(40 / 36, rel=0.05)
    assert found.low is None


def test_runs_of_a_block_on_other_cards_are_not_paired():
    def run(trial: int, arm: str, card: str):
        made = record(arm, config=trial_of("c", trial, 1, arm))
        return made | {"hardware": made["hardware"] | {"gpu_ids": [card]}}

    cards = {1: ("GPU-a", "GPU-a"), 2: ("GPU-a", "GPU-b")}
    runs = [run(n, arm, card) for n in cards for arm, card in zip(("naive-batch", "ray-data"), cards[n], strict=True)]
    (section,) = group(runs)
    found = answer(section, {"naive-batch": 1, "ray-data": -1}, steady_s_per_token, strategy)
    assert found.verdict == "too few trials: 4 more needed"
