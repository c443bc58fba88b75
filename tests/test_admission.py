"""Admission against vLLM's own scheduler, without a model: no preemption, and an engine as full as it can be."""

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import vllm_scheduler
from harness.planning.admission import START_LAG, Admission, Request
from harness.prediction.engine_state import Limits
from vllm.v1.core.sched.scheduler import Scheduler

BLOCK = 16


class Served(NamedTuple):
    preemptions: int
    prompt_steps: int
    hits: int
    steps: int
    mean_running: float
    most_running: int


class Server:
    """One engine: steps of vLLM's scheduler, with requests that arrive a step after they are admitted."""

    def __init__(self, model: Path, prompts: list[list[int]], outputs: list[int], limits: Limits) -> None:
        self.scheduler: Scheduler = vllm_scheduler._scheduler(str(model), limits, BLOCK)
        self.prompts, self.outputs, self.limits = prompts, outputs, limits
        self.requests = [vllm_scheduler._request(i, p, limits.max_tokens, BLOCK) for i, p in enumerate(prompts)]
        self.waiting = [Request(i, np.array(prompt, np.int32)) for i, prompt in enumerate(prompts)]
        self.left, self.ended, self.started = len(prompts), set[int](), set[int]()

    def serve(self, admission: Admission) -> Served:
        running: list[int] = []
        hits, on_the_way, in_flight, prompt_steps = 0, self._admit(admission), None, 0
        while self.left:
            prompt_steps += bool(on_the_way)
            for request in on_the_way:
                self.scheduler.add_request(self.requests[request])
            step = self.scheduler.schedule()
            hits += self.scheduler.kv_cache_manager.make_prefix_cache_stats().hits
            running.append(len(self.scheduler.running))
            if self.limits.async_scheduling:
                step, in_flight = in_flight, step
            if step is not None:
                self._update(step, admission)
            on_the_way = self._admit(admission)
        preemptions = sum(request.num_preemptions for request in self.requests)
        return Served(preemptions, prompt_steps, hits, len(running), sum(running) / len(running), max(running))

    def _admit(self, admission: Admission) -> list[int]:
        admitted = []
        while self.waiting and admission.allows(self.waiting[0]):
            admission.admit(self.waiting[0])
            admitted.append(self.waiting.pop(0).key)
        return admitted

    def _update(self, step: object, admission: Admission) -> None:
        """What the front end learns when a step has ended."""
        vllm_scheduler._update(self.scheduler, step, self.requests, self.outputs)
        of_step = [int(name) for name in step.num_scheduled_tokens]  # type: ignore[attr-defined]
        first = [i for i in of_step if self.requests[i].num_output_tokens and i not in self.started]
        self.started.update(first)
        if of_step:
            admission.stepped(len(first))
        for i in of_step:
            if self.requests[i].is_finished() and i not in self.ended:
                admission.ended(i, self.requests[i].num_output_tokens)
                self.ended.add(i)
                self.left -= 1


def served(
    model: Path,
    prompts: list[list[int]],
    outputs: list[int],
    limits: Limits,
    most: int = 512,
    pace: float = 1.0,
    burst: int = 0,
) -> Served:
    admission = Admission(limits.kv_blocks, BLOCK, limits.max_tokens, most, pace, burst)
    return Server(model, sorted(prompts), outputs, limits).serve(admission)


def grouped(groups: int, each: int, prefix: int, own: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    stems = [rng.choices(range(1000, 2000), k=prefix) for _ in range(groups)]
    return [stem + rng.choices(range(1000, 2000), k=own) for stem in stems for _ in range(each)]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("pace", [0.0, 1.0, 1.5])
def test_requests_of_one_length_are_never_preempted_however_small_the_cache(
    asynchronous: bool, pace: float, model_folder: Path
) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        prompts = grouped(12, rng.choice([1, 4, 9]), rng.choice([0, 32, 70]), rng.choice([5, 16, 40]), seed)
        output = rng.choice([1, 17, 40])
        largest = -(-(max(map(len, prompts)) + output) // BLOCK)
        blocks = rng.choice([largest + 1, 3 * largest, 8 * largest])
        limits = Limits(blocks, 64, 256, output, asynchronous)
        found = served(model_folder, prompts, [output] * len(prompts), limits, pace=pace)
        assert found.preemptions == 0, f"seed {seed}: {limits}"


def test_a_small_cache_is_as_full_as_it_can_be(model_folder: Path) -> None:
    """A quarter of an H200's published load: 512 groups of 4 with 2,047 blocks, in proportion."""
    prompts, output, blocks = grouped(96, 4, 64, 64), 32, 512
    found = served(model_folder, prompts, [output] * len(prompts), Limits(blocks, 256, 2048, output))
    # A request holds its own 4 blocks, 0 to 2 for its output, and a quarter of its group's 4.
    possible = blocks / (4 + 1.5 + 1)
    assert found.preemptions == 0
    # And the last ones end after all others.
    assert found.steps < 1.1 * (len(prompts) * output / possible + output)
    # In waves fewer run on average.
    waves = served(model_folder, prompts, [output] * len(prompts), Limits(blocks, 256, 2048, output), pace=0)
    assert found.mean_running >= waves.mean_running


def test_requests_enter_together_and_the_cache_stays_full(model_folder: Path) -> None:
    prompts, output = grouped(48, 4, 64, 64), 96
    limits = Limits(1024, 512, 4096, output)
    alone = served(model_folder, prompts, [output] * len(prompts), limits)
    together = served(model_folder, prompts, [output] * len(prompts), limits, burst=100_000)
    assert together.prompt_steps < alone.prompt_steps / 3
    assert together.preemptions == 0
    assert together.steps < 1.1 * alone.steps


def test_a_cache_of_few_requests_does_not_wait_for_many(model_folder: Path) -> None:
    prompts, output = grouped(12, 1, 0, 64), 32
    limits = Limits(24, 64, 4096, output)
    alone = served(model_folder, prompts, [output] * len(prompts), limits)
    assert served(model_folder, prompts, [output] * len(prompts), limits, burst=100_000).steps <= alone.steps


def test_each_prefix_is_computed_once(model_folder: Path) -> None:
    prompts = grouped(24, 5, 48, 20)
    found = served(model_folder, prompts, [12] * len(prompts), Limits(40, 64, 256, 12))
    assert found.hits == 24 * 4 * 48


def test_an_engine_with_room_has_as_many_requests_as_it_may(model_folder: Path) -> None:
    prompts = grouped(50, 4, 32, 20)
    found = served(model_folder, prompts, [16] * len(prompts), Limits(100_000, 64, 512, 16), most=24)
    # One may join in the step in which another's last token is noticed.
    assert 24 <= found.most_running <= 24 + START_LAG
    assert found.mean_running > 20


def test_varying_lengths_are_learnt_and_hardly_ever_preempted(model_folder: Path) -> None:
    rng = random.Random(3)
    prompts = grouped(120, 4, 64, 64)
    outputs = [min(160, int(4 * 40 ** rng.random())) for _ in prompts]
    limits = Limits(512, 256, 2048, 160)
    found = served(model_folder, prompts, outputs, limits)
    # As if all reached the limit, no more than 512 / (4 + 10 + 1) would run.
    assert found.most_running > 1.3 * 512 / 15
    assert found.preemptions <= 0.02 * len(prompts)


def test_an_idle_engine_takes_any_request() -> None:
    admission = Admission(10, BLOCK, 100, 4, 1.0)
    assert admission.allows(Request(0, np.arange(1000, dtype=np.int32)))


def test_a_refused_request_leaves_its_room_to_the_next() -> None:
    admission = Admission(10, BLOCK, 16, 1, 0)
    first, second = (Request(key, np.arange(50, dtype=np.int32)) for key in (1, 2))
    admission.admit(first)
    assert not admission.allows(second)
    admission.ended(1, 0)
    assert admission.allows(second)
    assert admission.in_flight == 0
