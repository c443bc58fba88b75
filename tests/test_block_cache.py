"""The replay against vLLM's own scheduler, and against cases whose answer is known."""

import random
from pathlib import Path

import pytest
import vllm_scheduler
from harness.prediction import feeding, forecast, prefix_tree
from harness.prediction.block_cache import replay
from harness.prediction.engine_state import Limits
from prompt_sets import KNOBS, batches, dataset, numbered

ROOMY = Limits(4096, 64, 512, 4)
# Prompts and outputs that fill all that they ask for; a hundred of these take three seconds.
CASES = 150


def test_replay_counts_what_vllms_scheduler_counts_request_by_request(model_folder: Path) -> None:
    seen = {"preempted": 0, "chunked": 0, "asynchronous": 0}
    for seed in range(CASES):
        prompts, outputs, sizes, limits, block_size = random_case(random.Random(seed))
        order = [list(range(end - size, end)) for size, end in zip(sizes, running_sum(sizes), strict=True)]
        expected = vllm_scheduler.run(str(model_folder), prompts, outputs, order, limits, block_size)
        found = replay(numbered(prompts, outputs, block_size), batches(*sizes), limits)
        counted = (found.queries, found.hits, found.preemptions, found.steps, found.scheduled_tokens)
        assert (*counted, found.hit_tokens.tolist(), outputs) == tuple(expected), f"case {seed}: {limits}"
        seen["preempted"] += expected.preemptions > 0
        seen["chunked"] += max(map(len, prompts)) > limits.max_num_batched_tokens
        seen["asynchronous"] += limits.async_scheduling
    # The comparison is worth something only if the cases reach the scheduler's corners.
    assert min(seen.values()) >= 10, seen


def random_case(rng: random.Random) -> tuple[list[list[int]], list[int], list[int], Limits, int]:
    def tokens(*lengths: int) -> list[int]:
        return [rng.randrange(1000, 2000) for _ in range(rng.choice(lengths))]

    prefixes = [tokens(0, 7, 33, 64, 130) for _ in range(rng.choice([1, 3, 8]))]
    prompts = [rng.choice(prefixes) + tokens(1, 5, 16, 40) for _ in range(rng.choice([5, 30, 80]))]
    if rng.random() < 0.5:
        prompts += [list(rng.choice(prompts)) for _ in range(len(prompts) // 3)]
    if rng.random() < 0.5:
        prompts.sort()
    count, most, block_size = len(prompts), rng.choice([1, 4, 20, 50]), rng.choice([4, 16, 32])
    outputs = [most] * count if rng.random() < 0.5 else [rng.randint(1, most) for _ in prompts]
    fewest = -(-(max(map(len, prompts)) + most) // block_size)
    kv_blocks = rng.choice([fewest, fewest + 3, fewest * 2, fewest * 4, fewest * 20])
    limits = Limits(kv_blocks, rng.choice([1, 4, 16, 64]), rng.choice([64, 100, 256]), most, rng.random() < 0.5)
    size = -(-count // rng.choice([1, 3, count]))
    return prompts, outputs, [min(size, count - start) for start in range(0, count, size)], limits, block_size


def running_sum(sizes: list[int]) -> list[int]:
    return [sum(sizes[: i + 1]) for i in range(len(sizes))]


def test_equal_prompts_hit_all_full_blocks_but_the_one_with_the_last_token() -> None:
    # 201 tokens are 12 full blocks of 16: 63 prompts find 192 tokens each, as counted by a real engine.
    found = replay(numbered([list(range(201))] * 64), batches(64), ROOMY)
    assert (found.queries, found.hits) == (12_864, 12_096)
    # 192 tokens are 12 full blocks as well, but the last token has to be computed again: 11 hit.
    assert replay(numbered([list(range(192))] * 2), batches(2), ROOMY).hits == 176


def test_a_prefix_shorter_than_a_block_never_hits() -> None:
    prompts = [[*range(100, 115), *range(i * 1000, i * 1000 + 30)] for i in range(20)]
    assert replay(numbered(prompts), batches(20), ROOMY).hits == 0
    assert replay(numbered(prompts, block_size=8), batches(20), ROOMY).hits == 19 * 8


def test_distinct_prompts_in_a_tiny_cache_hit_nothing_and_are_preempted() -> None:
    prompts = [list(range(i * 1000, i * 1000 + 32)) for i in range(40)]
    found = replay(numbered(prompts, outputs=64), batches(40), Limits(16, 16, 512, 64))
    assert found.hits == 0
    assert found.preemptions > 0
    assert found.queries == 40 * 32


def test_counting_every_lookup_counts_waiting_prompts_again() -> None:
    prompts = numbered([list(range(i * 1000, i * 1000 + 64)) for i in range(20)])
    limits = Limits(12, 16, 512, 4)
    assert replay(prompts, batches(20), limits).queries == 20 * 64
    assert replay(prompts, batches(20), limits._replace(counts_retries=True)).queries > 20 * 64


def test_a_batch_waits_for_the_end_of_the_one_before() -> None:
    prompts = numbered([list(range(i * 1000, i * 1000 + 32)) for i in range(8)], outputs=[1, 30] * 4)
    limits = Limits(4096, 64, 512, 30)
    together, in_pairs = (replay(prompts, batches(*sizes), limits) for sizes in ([8], [2, 2, 2, 2]))
    assert together.peak_running == 8
    assert in_pairs.peak_running == 2
    assert in_pairs.steps > 3 * together.steps


def test_a_prompt_that_cannot_fit_is_refused_with_its_row() -> None:
    prompts = numbered([list(range(20)), list(range(200))])
    with pytest.raises(ValueError, match=r"row 1: expected prompt and output to fit .* 200 \+ 4 tokens"):
        replay(prompts, batches(2), Limits(12, 4, 64, 4))


@pytest.mark.parametrize("kv_blocks", [12, 40, 4096])
@pytest.mark.parametrize("strategy", feeding.STRATEGIES)
def test_no_strategy_finds_more_than_is_possible(strategy: str, kv_blocks: int) -> None:
    data = dataset()
    found = forecast.forecast(strategy, data, KNOBS, Limits(kv_blocks, 16, 128, 4))
    assert found.queries == data.prompts.tokens.sum()
    assert found.hits <= prefix_tree.possible_hits(data.prompts)


def test_one_roomy_engine_reaches_what_is_possible() -> None:
    data = dataset()
    found = forecast.forecast("continuous-batch", data, KNOBS | {"CONCURRENCY": 1}, ROOMY)
    assert found.hits == prefix_tree.possible_hits(data.prompts)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_requests_that_are_held_back_until_they_have_room_are_never_preempted(asynchronous: bool) -> None:
    preempted = 0
    for seed in range(100):
        prompts, outputs, sizes, limits, block_size = random_case(random.Random(seed))
        limits = limits._replace(async_scheduling=asynchronous)
        numbers, feed = numbered(prompts, outputs, block_size), batches(*sizes)
        preempted += replay(numbers, feed, limits).preemptions
        held_back = replay(numbers, feed._replace(reserves=True), limits)
        assert held_back.preemptions == 0, f"case {seed}: {limits}"
        assert held_back.queries == sum(map(len, prompts))
    assert preempted > 100
