"""Engines and strategies in simulated time, against the replay, real schedulers' rules and times worked out by hand."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.data import generator
from harness.data.prompts import Shape
from harness.planning import window
from harness.planning.window import Tokenized
from harness.prediction import feeding, forecast, prompt_set
from harness.prediction.block_cache import replay
from harness.prediction.engine_state import Limits
from harness.prediction.feeding import Dataset
from harness.simulation import default_limits, fleet, job, planned, provider, stored_structure, structure
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, spread_starts
from harness.simulation.outcome import generated_by
from harness.simulation.step_time import StepTime
from prompt_sets import KNOBS as FEEDING_KNOBS
from prompt_sets import batches, dataset, numbered
from test_block_cache import random_case

# A token 1 ms, a cached token read 1 µs, a request 10 µs, a step 5 ms; weights, pairs and sampling nothing.
TIME = StepTime(1e-3, 0.0, 0.0, 0.0, 1e-6, 1e-5, 5e-3)
KNOBS = FEEDING_KNOBS | {
    "PLANNED_MAX_IN_FLIGHT": 512,
    "PLANNED_PACE": 1.0,
    "PLANNED_BURST_TOKENS": 16384,
    "PLANNED_WINDOW_TOKENS": 128_000_000,
}
ROOMY = Limits(4096, 64, 512, 4, async_scheduling=False)


def fleet_of(engines: int, engines_a_node: int | None = None, limits: Limits = ROOMY, submit_s: float = 0.0) -> Fleet:
    return Fleet([0.0] * engines, engines_a_node or engines, limits, TIME, 0.0, submit_s)


def in_blocks(rows: int, files: int) -> Dataset:
    return dataset(rows=rows)._replace(file_rows=[rows // files] * files)


@pytest.mark.parametrize("seed", range(40))
def test_an_engine_with_a_clock_does_what_the_replay_does(seed: int) -> None:
    prompts, outputs, sizes, limits, block_size = random_case(random.Random(seed))
    data = numbered(prompts, outputs, block_size)
    feed = batches(*sizes)
    expected = replay(data, feed, limits)
    engine, at_s, ends = Engine(data, limits, TIME, 0.0, 0.0), 0.0, [0, *feed.batch_end.tolist()]
    for begin, end in pairwise(ends):
        engine.give(feed.rows[begin:end], at_s)
        [(_, at_s)] = engine.run()
    at, trace = engine.state.at[0], engine.trace()
    for name in ("queries", "hits", "preemptions", "scheduled_tokens", "peak_running"):
        assert at[name] == getattr(expected, name), name
    assert len(trace) == expected.steps
    assert (trace["begin_s"][1:] >= trace["end_s"][:-1]).all()


def test_the_time_of_a_request_is_that_of_its_steps_by_hand() -> None:
    # 32 tokens of prompt, then one token in each of three steps; contexts 32 to 35.
    prompts = numbered([list(range(32))], outputs=4)
    engine = Engine(prompts, ROOMY, TIME, 10.0, 0.0)
    engine.give(np.array([0], np.int32), 0.0)
    [(batch, ended_s)] = engine.run()
    by_hand = (32 + 1 + 1 + 1) * 1e-3 + (32 + 33 + 34 + 35) * 1e-6 + 4 * (1e-5 + 5e-3)
    assert (batch, ended_s) == (0, pytest.approx(10.0 + by_hand))
    assert engine.run() == []
    assert engine.trace()["sampled"].tolist() == [1, 1, 1, 1]


def test_the_longer_of_matrix_arithmetic_and_weights_counts() -> None:
    prompts = numbered([list(range(32))], outputs=2)
    slow_weights = TIME._replace(weights_s=0.02)
    engine = Engine(prompts, ROOMY, slow_weights, 0.0, 0.0)
    engine.give(np.array([0], np.int32), 0.0)
    engine.run()
    spent = engine.trace()["end_s"] - engine.trace()["begin_s"]
    assert spent.tolist() == pytest.approx([0.032 + 32e-6 + 5.01e-3, 0.02 + 33e-6 + 5.01e-3])


def test_a_request_joins_once_its_token_ids_are_made_and_an_idle_engine_waits_for_it() -> None:
    prompts = numbered([list(range(i * 100, i * 100 + 32)) for i in range(3)], outputs=1)
    engine = Engine(prompts, ROOMY, TIME, 0.0, 0.1)  # 3.2 s a prompt
    engine.give(np.arange(3, dtype=np.int32), 1.0)
    engine.run()
    assert engine.trace()["begin_s"].tolist() == pytest.approx([4.2, 7.4, 10.6])


def test_with_asynchronous_scheduling_a_late_request_waits_for_the_step_that_is_already_planned() -> None:
    prompts = numbered([list(range(32)), list(range(500, 532))], outputs=8)
    limits = ROOMY._replace(async_scheduling=True, max_tokens=8)
    for engine_limits, steps_before in ((limits, 2), (limits._replace(async_scheduling=False), 1)):
        engine = Engine(prompts, engine_limits, TIME, 0.0, 0.0)
        engine.give(np.array([0], np.int32), 0.0)
        engine.give(np.array([1], np.int32), 0.001)  # while the first step runs
        while engine.run():
            pass
        assert int(np.flatnonzero(engine.trace()["requests"] == 2)[0]) == steps_before


def test_a_request_that_no_engine_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected every prompt with its output to fit .* of 3 blocks"):
        job.simulate("naive-batch", dataset(), KNOBS, fleet_of(2, limits=ROOMY._replace(kv_blocks=3)))
    with pytest.raises(ValueError, match="expected one of"):
        job.simulate("sideways", dataset(), KNOBS, fleet_of(2))


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("strategy", job.STRATEGIES)
def test_every_strategy_serves_each_row_once_and_accounts_for_all_of_its_time(strategy: str, engines: int) -> None:
    data = in_blocks(120, 4)
    ready = [1.0, 1.5, 3.0][:engines]
    many = fleet_of(engines)._replace(ready_s=ready, front_end_s_a_token=1e-3)
    found = job.simulate(strategy, data, KNOBS | {"RAY_BLOCKS": 12}, many)
    ran, _ = job.engines_after(strategy, data, KNOBS | {"RAY_BLOCKS": 12}, many)
    prompt_tokens = [int(engine.state.requests["prompt_tokens"].sum()) for engine in ran]
    assert sum(prompt_tokens) == data.prompts.tokens.sum() == found.queries
    assert sum(int(engine.trace()["sampled"].sum()) for engine in ran) == 120 * 4
    assert sum(found.phases_s.values()) == pytest.approx(found.job_s)
    assert sum(found.waterfall_s.values()) == pytest.approx(found.job_s)
    assert min([*found.phases_s.values(), *found.waterfall_s.values()]) > -1e-9


def test_predicted_hits_are_those_of_the_forecast_where_nothing_depends_on_time() -> None:
    data = dataset(rows=400, groups=40)
    for strategy in ("continuous-batch", "continuous-batch-sorted", "prefix-bucketing", "perfect-placement"):
        limits = Limits(100, 16, 128, 4)
        expected = forecast.forecast(strategy, data, KNOBS, limits)
        found = job.simulate(strategy, data, KNOBS, fleet_of(2, limits=limits))
        assert (found.hits, found.preemptions) == (expected.hits, expected.preemptions)


def test_five_static_batches_take_two_engines_as_long_as_three() -> None:
    knobs = KNOBS | {"NAIVE_PARTITIONS": 1, "NAIVE_BATCH_SIZE": 16}
    data = structure.published(80, 0, output_tokens=4, files=1)
    five, six = (
        job.simulate("naive-batch", set_, knobs, fleet_of(2)) for set_ in (data, structure.published(96, 0, 4, files=1))
    )
    assert five.imbalance == pytest.approx(3 / 2.5)
    assert five.generating_s == pytest.approx(six.generating_s)
    assert five.phases_s["tail"] == pytest.approx(five.generating_s / 3)


def test_a_static_batch_waits_for_the_slowest_request_of_the_one_before() -> None:
    prompts = numbered([list(range(i * 100, i * 100 + 32)) for i in range(8)], outputs=[1, 30] * 4)
    data = dataset(rows=8)._replace(prompts=prompts, file_rows=[8])
    knobs = KNOBS | {"NAIVE_PARTITIONS": 1, "NAIVE_BATCH_SIZE": 4}
    limits = ROOMY._replace(max_tokens=30)
    static = job.simulate("naive-batch", data, knobs, fleet_of(1, limits=limits))
    together = job.simulate("continuous-batch", data, knobs, fleet_of(1, limits=limits))
    assert static.generating_s > 1.2 * together.generating_s
    assert static.mean_running < together.mean_running / 2


def test_engines_on_nodes_without_a_partition_stay_idle() -> None:
    knobs = KNOBS | {"NAIVE_PARTITIONS": 2, "NAIVE_BATCH_SIZE": 4}
    spread, one_node = (job.simulate("naive-batch", in_blocks(120, 2), knobs, fleet_of(4, size)) for size in (1, 4))
    assert (spread.idle_engines, one_node.idle_engines) == (2, 0)
    assert spread.generating_s > 1.7 * one_node.generating_s


def test_an_engine_begins_its_first_static_batch_when_it_is_ready() -> None:
    ran, _ = job.engines_after("naive-batch", in_blocks(120, 4), KNOBS, fleet_of(2)._replace(ready_s=[1.0, 9.0]))
    assert [engine.trace()["begin_s"][0] for engine in ran] == [1.0, 9.0]


def test_fetching_results_takes_half_a_second_an_engine() -> None:
    # All end at 10 s, when the round has just begun anew: 64 engines are emptied one after the other.
    assert provider._collected_s(10.0, [10.0] * 64) == pytest.approx(10.0 + 64 * 0.5)
    # One engine, asked at 0, 0.5, 1.0, 1.5: that finds its last rows, which ended at 1.2.
    assert provider._collected_s(0.0, [1.2]) == pytest.approx(2.0)


def test_handing_rows_over_one_submission_after_the_other_delays_the_last_engine() -> None:
    data = structure.published(64, 0, output_tokens=4)
    ran, _ = job.engines_after("continuous-batch", data, KNOBS, fleet_of(4, submit_s=0.1))
    assert [float(engine.trace()["begin_s"][0]) for engine in ran] == pytest.approx([1.6, 3.2, 4.8, 6.4])


def test_the_ray_actor_that_is_ready_first_takes_all_that_it_may() -> None:
    knobs = KNOBS | {"RAY_BLOCKS": 4, "RAY_MAX_CONCURRENT_BATCHES": 4}
    many = fleet_of(2)._replace(ready_s=[1.0, 2.0])
    shared = job.simulate("ray-data", in_blocks(120, 4), knobs, many)  # two blocks an engine, as ray-data.py sets it
    assert shared.imbalance == pytest.approx(1.0)
    greedy = job.simulate("ray-data", in_blocks(120, 4), knobs | {"RAY_BLOCKS": 1}, many)
    assert greedy.idle_engines == 1


def test_planned_rows_in_flight_fit_in_the_kv_cache_and_under_the_knob() -> None:
    data = structure.published(400, 4, output_tokens=32)
    # 100 blocks of 16 tokens; a row holds some 256 own tokens and half of its output: six at a time.
    tight = fleet_of(1, limits=Limits(100, 64, 4096, 32))
    paced, at_once = (job.simulate(name, data, KNOBS, tight) for name in ("prefix-planned", "perfect-placement"))
    assert paced.preemptions == 0 < at_once.preemptions
    assert paced.mean_running > 3.5
    roomy = fleet_of(1, limits=Limits(8192, 64, 4096, 32))
    capped = job.simulate("prefix-planned", data, KNOBS | {"PLANNED_MAX_IN_FLIGHT": 16}, roomy)
    assert capped.mean_running <= 16
    assert capped.hits == job.simulate("perfect-placement", data, KNOBS, roomy).hits


def test_simulated_lengths_are_spread_as_those_of_runs_are() -> None:
    varying = KNOBS | {"OUTPUT_LEN_DISTRIBUTION": "log-uniform", "OUTPUT_LEN_MIN": 16, "OUTPUT_LEN_MAX": 512}
    lengths = structure.output_lengths(20_000, varying)
    assert (lengths.min(), lengths.max(), lengths.dtype) == (16, 512, np.int32)
    assert np.histogram(lengths, bins=[16, 32, 64, 128, 256, 513])[0] == pytest.approx(np.full(5, 4000), rel=0.1)
    assert (lengths == structure.output_lengths(20_000, varying)).all()
    assert set(structure.output_lengths(10, KNOBS)) == {KNOBS["OUTPUT_LEN"]}


def test_static_batches_wait_for_their_longest_answers_and_others_do_not() -> None:
    # 16 requests at a time, whose steps all take 5 ms.
    limits = Limits(4096, 16, 8192, 40, async_scheduling=False)
    engine = fleet_of(1, limits=limits)._replace(time=StepTime(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5e-3))

    def generating_s(strategy: str, lengths: list[int]) -> float:
        data = structure.published(64, 0, output_tokens=np.array(lengths, np.int32), files=1)
        outcome = job.simulate(strategy, data, KNOBS, engine)
        assert outcome.steady_tokens == pytest.approx(64 * 22)
        return outcome.generating_s

    assert KNOBS["NAIVE_BATCH_SIZE"] == 16
    static, continuous = (
        generating_s(strategy, [4, 40] * 32) / generating_s(strategy, [22] * 64)
        for strategy in ("naive-batch", "continuous-batch")
    )
    assert static == pytest.approx(40 / 22, rel=0.01)
    assert continuous < 1.25


@pytest.mark.parametrize("seed", range(10))
def test_stand_ins_for_tokens_are_planned_as_the_tokens_are(seed: int) -> None:
    draw = random.Random(seed)
    stems = [[draw.randrange(50) for _ in range(draw.randrange(40))] for _ in range(5)]
    prompts = [draw.choice(stems) + [draw.randrange(50) for _ in range(draw.randrange(1, 20))] for _ in range(30)]
    data, rows = numbered(prompts, outputs=4, block_size=4), np.arange(30, dtype=np.int32)
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    true = Tokenized(pa.array(rows), np.concatenate(prompts).astype(np.int32), lengths)
    stand_in = Tokenized(pa.array(rows), *planned.stand_ins(data, rows))
    expected, found = (window.plan(0, given, 4, 4) for given in (true, stand_in))
    assert stand_in.lengths.tolist() == lengths.tolist()
    assert sorted(found.shared) == sorted(expected.shared)
    assert len(found.groups) == len(expected.groups)
    assert found.work[-1] == expected.work[-1]


def test_a_planned_engine_that_is_ready_early_takes_over_from_one_that_is_late() -> None:
    data = structure.published(200, 10, output_tokens=8)
    together, apart = (
        job.engines_after("prefix-planned", data, KNOBS, fleet_of(2)._replace(ready_s=ready))[0]
        for ready in ([0.0, 0.0], [0.0, 60.0])
    )
    for engines in (together, apart):
        assert sum(engine.given for engine in engines) == 200
    assert abs(together[0].given - together[1].given) < 20
    assert apart[0].given > 110


def test_prefixes_are_shared_within_a_window_and_first_windows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "ROWS_A_PART", 64)
    data = structure.published(320, 8, output_tokens=4)
    knobs = KNOBS | {"PLANNED_WINDOW_TOKENS": 16 * 64 * 512}
    [engine] = job.engines_after("prefix-planned", data, knobs, fleet_of(1))[0]
    assert [len(part) for part in planned.windows(data.prompts, knobs, 4)] == [64, 128, 128]
    assert engine.state.at[0]["hits"] == 320 * 256 - 8 * 256  # the cache holds all eight from window to window


def test_tokens_by_a_time_grow_evenly_within_a_step() -> None:
    prompts = numbered([list(range(32))], outputs=4)
    engine = Engine(prompts, ROOMY, TIME, 0.0, 0.0)
    engine.give(np.array([0], np.int32), 0.0)
    engine.run()
    trace = engine.trace()
    middle = (trace["begin_s"][1] + trace["end_s"][1]) / 2
    assert generated_by(trace, middle) == pytest.approx(1.5)
    assert (generated_by(trace, 0.0), generated_by(trace, 1e9), generated_by(trace[:0], 1.0)) == (0.0, 4.0, 0.0)


def test_starts_spread_over_the_time_that_was_asked_for() -> None:
    starts = spread_starts(64, 60.0, 5.0)
    assert (min(starts), max(starts), len(set(starts))) == (60.0, 65.0, 64)
    assert spread_starts(1, 60.0, 5.0) == [60.0]
    assert fleet.Fleet(starts, 24, ROOMY, TIME, 0.0).nodes()[2] == list(range(48, 64))


@pytest.mark.parametrize("prefixes", [0, 3, 40])
def test_published_sets_without_texts_react_as_those_with_texts(
    prefixes: int, tokenizer: Any, model_folder: Path, tmp_path: Path
) -> None:
    manifest = generator.make(
        Shape(240, prefixes, 256 if prefixes else 0, 256 if prefixes else 512), tokenizer, f"{tmp_path}"
    )
    knobs = KNOBS | {
        "BLOCK_SIZE": 16, "OUTPUT_LEN": 4, "OUTPUT_LEN_DISTRIBUTION": "fixed", "MAX_MODEL_LEN": 1024, "CONCURRENCY": 2,
    }  # fmt: skip
    real = prompt_set.load(f"{tmp_path}/{manifest['name']}.parquet", str(model_folder), knobs, cache=None).data
    made = structure.published(240, prefixes, output_tokens=4)
    assert made.prompts.distinct == real.prompts.distinct
    assert made.file_rows == real.file_rows
    for strategy in feeding.STRATEGIES:
        one, other = (forecast.forecast(strategy, data, knobs, Limits(200, 16, 2048, 4)) for data in (made, real))
        # The order of arrival is another one, so arrival-order strategies agree only nearly.
        assert one.hits / one.queries == pytest.approx(other.hits / other.queries, abs=0.03), strategy


def test_a_stored_structure_feeds_engines_as_its_dataset_does(tmp_path: Path) -> None:
    data = dataset(rows=300, groups=20)._replace(file_rows=[100] * 3)
    path = tmp_path / "structure.parquet"
    stored_structure.write(path, data)
    kept = stored_structure.read(path, files=3)
    for strategy in job.STRATEGIES:
        one, other = (job.simulate(strategy, set_, KNOBS, fleet_of(2)) for set_ in (data, kept))
        assert one == other, strategy


@pytest.mark.parametrize(("memory_gib", "name"), [(24, "NVIDIA L4"), (141, "NVIDIA H200"), (80, "NVIDIA A100")])
def test_limits_that_are_not_set_are_those_of_the_installed_vllm(
    memory_gib: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.prediction import gpus
    from vllm.config import SchedulerConfig
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext

    platform = arg_utils.current_platform
    monkeypatch.setattr(type(platform), "get_device_total_memory", lambda *_: memory_gib * 2**30, raising=False)
    monkeypatch.setattr(type(platform), "get_device_name", lambda *_: name, raising=False)
    monkeypatch.setattr(type(platform), "is_cpu", lambda *_: False)
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(1)
    ours = default_limits.unset(ROOMY, "naive-batch", gpus.find(name))
    assert ours.max_num_batched_tokens == tokens[UsageContext.LLM_CLASS]
    assert ours.max_num_seqs == sequences[UsageContext.LLM_CLASS]
    assert UsageContext.ENGINE_CONTEXT not in tokens
    fallback = default_limits.unset(ROOMY, "prefix-bucketing", gpus.find(name))
    assert fallback.max_num_batched_tokens == SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS
    assert fallback.max_num_seqs == SchedulerConfig.DEFAULT_MAX_NUM_SEQS
