"""What each strategy sends where: Daft's rules against the installed Daft, the others by what must hold."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.prediction import daft_routing, feeding
from harness.prediction.text_order import TextOrder
from prompt_sets import KNOBS, dataset


def random_texts(seed: int) -> list[str]:
    """Shared prefixes of many lengths, none to several hundred groups, characters of one to three bytes."""
    rng = random.Random(seed)
    prefixes = ["".join(rng.choices("abcdé ü€", k=rng.choice([0, 3, 20, 60]))) for _ in range(rng.choice([1, 9, 300]))]
    return [rng.choice(prefixes) + "".join(rng.choices("abé", k=rng.choice([1, 10, 40]))) for _ in range(700)]


def test_buckets_are_those_that_the_installed_daft_submits() -> None:
    datasets = [random_texts(seed) for seed in range(6)]
    for size, least, threshold in ((100, 16, 0.33), (0, 1, 0.8)):
        knobs = {
            "ROUTER_MAX_BUFFER_SIZE": size,
            "ROUTER_MIN_BUCKET_SIZE": least,
            "ROUTER_PREFIX_MATCH_THRESHOLD": threshold,
            "CONTINUOUS_BATCH_SIZE": 64,
        }
        options = {"max_buffer_size": size, "min_bucket_size": least, "prefix_match_threshold": threshold}
        for texts, expected in zip(datasets, installed_daft(datasets, options | {"batch_size": 64}), strict=True):
            found = list(daft_routing.in_buckets(np.arange(len(texts)), TextOrder(pa.array(texts)), knobs))
            assert [[texts[row] for row in sent.rows] for sent in found] == [prompts for _, prompts in expected]
            names = {(sent.prefix, prefix) for sent, (prefix, _) in zip(found, expected, strict=True)}
            # One key for each text that Daft takes for a prefix, and none where it has none.
            assert len(names) == len({key for key, _ in names}) == len({prefix for _, prefix in names})
            assert {key for key, prefix in names if prefix is None} <= {None}


def installed_daft(datasets: list[list[str]], options: dict[str, Any]) -> list[list[tuple[str | None, list[str]]]]:
    command = [sys.executable, str(Path(__file__).parent / "daft_submissions.py")]
    given = json.dumps({"datasets": datasets, "options": options})
    result = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=60)
    runs: list[list[tuple[str | None, list[str]]]] = json.loads(result.stdout)
    return runs


@pytest.mark.parametrize("seed", range(20))
def test_the_router_sends_everything_where_dafts_router_does(seed: int) -> None:
    from daft.execution.vllm import PrefixRouter

    rng = random.Random(seed)
    engines, threshold = rng.choice([1, 2, 5]), rng.choice([0, 16, 256])
    prefixes = [None, *(f"prefix {i}".encode() for i in range(rng.choice([2, 12, 40])))]
    ours, theirs = daft_routing.Router(engines, threshold or 1), PrefixRouter([None] * engines, threshold or 1)
    for _ in range(300):
        prefix, rows = rng.choice(prefixes), rng.randint(1, 40)
        assert ours.route(prefix, rows) == theirs.route(prefix, rows)


@pytest.mark.parametrize("engines", [1, 2, 5])
@pytest.mark.parametrize("strategy", feeding.STRATEGIES)
def test_each_row_goes_to_one_engine_once(strategy: str, engines: int) -> None:
    feeds = feeding.feeds(strategy, dataset(), KNOBS | {"CONCURRENCY": engines})
    assert len(feeds) == engines
    assert sorted(row for feed in feeds for row in feed.rows.tolist()) == list(range(120))
    for feed in feeds:
        assert feed.batch_end.tolist() == sorted(set(feed.batch_end.tolist()))
        assert feed.batch_end[-1:].tolist() == ([len(feed.rows)] if len(feed.rows) else [])
        assert feed.lane_end[-1:].tolist() == ([len(feed.batch_end)] if len(feed.rows) else [])


def test_static_batches_are_cut_at_partitions_and_dealt_to_the_engines() -> None:
    # 120 rows in 3 partitions of 40: batches of 16, 16 and 8 each.
    first, second = feeding.feeds("naive-batch", dataset(), KNOBS)
    sizes = [np.diff(feed.batch_end, prepend=0).tolist() for feed in (first, second)]
    assert sizes == [[16, 8, 16, 16, 8], [16, 16, 8, 16]]
    assert (first.open_lanes, first.open_batches) == (1, 1)
    assert second.rows[:16].tolist() == list(range(16, 32))


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        # As counted in the installed Daft, on eight files of 256 rows and batches of up to 512.
        (1, [256] * 8),
        (4, [256] * 8),
        (32, [64] * 32),
    ],
)
def test_static_batches_in_arrival_order_never_cross_files(partitions: int, expected: list[int]) -> None:
    data = dataset(rows=2048)._replace(file_rows=[256] * 8)
    knobs = KNOBS | {"CONCURRENCY": 1, "NAIVE_PARTITIONS": partitions, "NAIVE_BATCH_SIZE": 512}
    (feed,) = feeding.feeds("naive-batch", data, knobs)
    assert np.diff(feed.batch_end, prepend=0).tolist() == expected


def test_sorted_strategies_send_prompts_in_order_of_their_bytes() -> None:
    texts = ["é", "z", "a", "ab", "€", "", "Z"]
    order = TextOrder(pa.array(texts))
    assert [texts[row] for row in order.rows] == sorted(texts, key=str.encode)


def test_two_prompts_share_what_their_bytes_share() -> None:
    texts = sorted(random_texts(1), key=str.encode)
    order = TextOrder(pa.array(texts))
    pairs = np.sort(np.random.default_rng(0).choice(len(texts), (200, 2)), axis=1)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    for (a, b), shared in zip(pairs, order.shared(pairs[:, 0], pairs[:, 1]), strict=True):
        both = list(zip(texts[a].encode(), texts[b].encode(), strict=False))
        assert shared == next((i for i, (one, other) in enumerate(both) if one != other), len(both))


def test_perfect_placement_keeps_prefixes_together_and_work_even() -> None:
    data = dataset(rows=400, groups=40)
    feeds = feeding.feeds("perfect-placement", data, KNOBS | {"CONCURRENCY": 4})
    first_blocks = [{int(data.prompts.block_ids[data.prompts.first_block[row]]) for row in feed.rows} for feed in feeds]
    split = sum(len(blocks) for blocks in first_blocks) - len(set().union(*first_blocks))
    assert split <= 3  # one prefix at each cut
    sizes = [len(feed.rows) for feed in feeds]
    assert max(sizes) < 1.2 * min(sizes)


def test_ray_data_opens_four_batches_of_each_block_that_an_engine_works_on() -> None:
    feed = feeding.feeds("ray-data", dataset(), KNOBS | {"CONCURRENCY": 1})[0]
    assert (feed.open_lanes, feed.open_batches) == (2, 4)
    assert np.diff(feed.lane_end, prepend=0).tolist() == [6] * 5  # blocks of 24 rows in batches of 4


@pytest.mark.parametrize("strategy", feeding.STRATEGIES)
def test_engines_without_work_cost_next_to_nothing(strategy: str) -> None:
    """A user may ask about 100,000 of them; one idle feed stands for all."""
    fed = feeding.feeds(strategy, dataset(rows=20), KNOBS | {"CONCURRENCY": 500})
    idle = [feed for feed in fed if not len(feed.rows)]
    assert len(fed) == 500
    assert len(idle) >= 480
    assert len({id(feed.rows) for feed in idle}) == 1


def test_a_strategy_or_setting_without_a_forecast_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        feeding.feeds("sideways", dataset(), KNOBS)
    with pytest.raises(ValueError, match=r"CONTINUOUS_PARTITIONS=8: expected 1; Daft 0\.7\.26 loses rows"):
        feeding.feeds("continuous-batch", dataset(), KNOBS | {"CONTINUOUS_PARTITIONS": 8})
