"""How each strategy feeds its engines: which rows go where, in what order, how many at a time.

    feeds("ray-data", dataset, knobs) -> one Feed an engine

`knobs` are those of config.py, by name: `overrides.knob_values(config)` or a record's `config`. Engines that take the
next piece of work when they are free are modelled as taking turns.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from harness.planning import queues
from harness.prediction import daft_routing
from harness.prediction.compiled import Int32s, Int64s, compiled
from harness.prediction.daft_routing import Submission
from harness.prediction.engine_state import Feed, Prompts
from harness.prediction.text_order import SortedPrompts

Knobs = Mapping[str, Any]
# Batches of one block that Ray Data runs side by side: RAY_DATA_DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY of Ray 2.59.
RAY_BATCHES_A_BLOCK = 4
# Of an engine without work; of 100,000 engines most may have none, and one such feed serves all.
IDLE = Feed(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64), 1, 1)


class Dataset(NamedTuple):
    prompts: Prompts
    order: SortedPrompts
    file_rows: list[int]  # rows of each file, in order


def feeds(strategy: str, dataset: Dataset, knobs: Knobs) -> list[Feed]:
    """One Feed for each of knobs["CONCURRENCY"] engines; some may be empty. Raises ValueError for another strategy."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: expected one of {list(STRATEGIES)}")
    return STRATEGIES[strategy](dataset, knobs)


def _arrival(dataset: Dataset) -> Int32s:
    return np.arange(len(dataset.prompts.tokens), dtype=np.int32)


def static_batches(partitions: list[Int32s], knobs: Knobs) -> list[Feed]:
    """`LLM.generate` on one batch after the other. Daft deals the batches of a partition to all engines of a node."""
    size = knobs["NAIVE_BATCH_SIZE"]
    batches = [part[start : start + size] for part in partitions for start in range(0, len(part), size)]
    return [_lanes(dealt, size, 1, 1) for dealt in _deal(batches, knobs)]


def file_partitions(dataset: Dataset, knobs: Knobs) -> list[Int32s]:
    """Rows as they come. No batch of Daft 0.7.26 crosses files; more partitions than files split each of them."""
    files = np.split(_arrival(dataset), np.cumsum(dataset.file_rows)[:-1])
    parts = np.array_split(np.arange(max(knobs["NAIVE_PARTITIONS"], len(files))), len(files))
    return [piece for file, share in zip(files, parts, strict=True) for piece in np.array_split(file, len(share))]


def sorted_partitions(dataset: Dataset, knobs: Knobs) -> list[Int32s]:
    """Rows in order, as evenly as possible; Daft's partitions differ somewhat, since it cuts by sampled quantiles."""
    return np.array_split(dataset.order.rows, knobs["NAIVE_PARTITIONS"])


def daft_provider(strategy: str, dataset: Dataset, knobs: Knobs) -> list[Feed]:
    """Daft's provider: nothing holds a submission back, so an engine has all of its rows from the start."""
    sent: list[list[Int32s]] = [[] for _ in range(knobs["CONCURRENCY"])]
    for engine, rows in submissions(strategy, dataset, knobs):
        sent[engine].append(rows)
    return [at_once(np.concatenate(rows) if rows else np.empty(0, np.int32)) for rows in sent]


def submissions(strategy: str, dataset: Dataset, knobs: Knobs) -> Iterator[tuple[int, Int32s]]:
    """What Daft's provider sends: the engine and its rows, in order."""
    if knobs["CONTINUOUS_PARTITIONS"] != 1:
        raise ValueError(
            f"CONTINUOUS_PARTITIONS={knobs['CONTINUOUS_PARTITIONS']}: expected 1; Daft 0.7.26 loses rows with more"
        )
    router = daft_routing.Router(knobs["CONCURRENCY"], knobs["ROUTER_LOAD_BALANCE_THRESHOLD"])
    for submission in PROVIDED[strategy](dataset, knobs):
        yield router.route(submission.prefix, len(submission.rows)), submission.rows


def ray_data(dataset: Dataset, knobs: Knobs) -> list[Feed]:
    """Engines take blocks in turn and work on several at a time, on four batches of each."""
    dealt, open_blocks = _deal(ray_blocks(dataset, knobs), knobs), ray_open_blocks(knobs)
    return [_lanes(blocks, knobs["RAY_BATCH_SIZE"], open_blocks, RAY_BATCHES_A_BLOCK) for blocks in dealt]


def ray_blocks(dataset: Dataset, knobs: Knobs) -> list[Int32s]:
    return [block for block in np.array_split(_arrival(dataset), knobs["RAY_BLOCKS"]) if len(block)]


def ray_open_blocks(knobs: Knobs) -> int:
    """Blocks that an engine is given at a time, as ray-data.py sets it: no more than its share."""
    return int(min(knobs["RAY_MAX_CONCURRENT_BATCHES"], max(knobs["RAY_BLOCKS"] // knobs["CONCURRENCY"], 1)))


def perfect_placement(dataset: Dataset, knobs: Knobs) -> list[Feed]:
    """Sorted prompts, cut into one run an engine with equal work: tokens to compute and to generate.

    Prompts that share a prefix are neighbours, so each cut costs at most one prefix more.
    """
    rows = dataset.order.rows
    work = np.cumsum(fresh_tokens(dataset.prompts, rows) + dataset.prompts.outputs[rows])
    engines = knobs["CONCURRENCY"]
    cuts = np.searchsorted(work, work[-1] * np.arange(1, engines) / engines) if len(rows) else []
    return [at_once(run) for run in np.split(rows, cuts)]


def planned(dataset: Dataset, knobs: Knobs) -> list[Feed]:
    """As perfect placement, but no group is cut where engines get about even work without it, and a request is given
    to an engine when one has ended and its blocks will have room. Rows that idle engines take over at the end, in
    whole groups, hit as much there."""
    rows = dataset.order.rows
    fresh = fresh_tokens(dataset.prompts, rows)
    most = knobs["OUTPUT_LEN"] if knobs["OUTPUT_LEN_DISTRIBUTION"] == "fixed" else knobs["OUTPUT_LEN_MAX"]
    work = np.concatenate([[0], np.cumsum(fresh + most)])
    groups = np.flatnonzero(fresh == dataset.prompts.tokens[rows])
    shares = itertools.pairwise(queues.edges(work, groups, knobs["CONCURRENCY"]))
    in_flight = min(knobs["PLANNED_MAX_IN_FLIGHT"], knobs["MAX_NUM_SEQS"])
    feeds = (_lanes([rows[begin:end]] if end > begin else [], 1, 1, in_flight) for begin, end in shares)
    return [feed._replace(reserves=True) for feed in feeds]


def at_once(rows: Int32s) -> Feed:
    return _lanes([rows] if len(rows) else [], max(len(rows), 1), 1, 1)


@compiled
def fresh_tokens(prompts: Prompts, rows: Int32s) -> Int64s:
    """Tokens of each row that its predecessor in `rows` does not share, in full blocks."""
    fresh = np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        shared = 0
        if i:
            a, b = rows[i - 1], rows[i]
            begin_a, begin_b = prompts.first_block[a], prompts.first_block[b]
            most = min(prompts.first_block[a + 1] - begin_a, prompts.first_block[b + 1] - begin_b)
            while shared < most and prompts.block_ids[begin_a + shared] == prompts.block_ids[begin_b + shared]:
                shared += 1
        fresh[i] = prompts.tokens[rows[i]] - shared * prompts.block_size
    return fresh


def _deal(pieces: list[Int32s], knobs: Knobs) -> list[list[Int32s]]:
    engines = knobs["CONCURRENCY"]
    full = [piece for piece in pieces if len(piece)]
    return [full[engine::engines] for engine in range(engines)]


def _lanes(pieces: list[Int32s], batch_size: int, open_lanes: int, open_batches: int) -> Feed:
    """A lane for every piece, in batches of `batch_size`."""
    if not pieces:
        return IDLE
    sizes = [min(batch_size, len(piece) - start) for piece in pieces for start in range(0, len(piece), batch_size)]
    rows = np.concatenate(pieces)
    batches = [-(-len(piece) // batch_size) for piece in pieces]
    return Feed(rows, np.cumsum(sizes, dtype=np.int64), np.cumsum(batches, dtype=np.int64), open_lanes, open_batches)


PROVIDED: dict[str, Callable[[Dataset, Knobs], Iterable[Submission]]] = {
    "continuous-batch": lambda data, knobs: daft_routing.in_batches(_arrival(data), knobs["CONTINUOUS_BATCH_SIZE"]),
    "continuous-batch-sorted": lambda data, knobs: daft_routing.in_batches(
        data.order.rows, knobs["CONTINUOUS_BATCH_SIZE"]
    ),
    "prefix-bucketing": lambda data, knobs: daft_routing.in_buckets(_arrival(data), data.order, knobs),
    "prefix-bucketing-sorted": lambda data, knobs: daft_routing.in_buckets(data.order.rows, data.order, knobs),
}

STRATEGIES: dict[str, Callable[[Dataset, Knobs], list[Feed]]] = {
    "naive-batch": lambda data, knobs: static_batches(file_partitions(data, knobs), knobs),
    "naive-batch-sorted": lambda data, knobs: static_batches(sorted_partitions(data, knobs), knobs),
    "continuous-batch": lambda data, knobs: daft_provider("continuous-batch", data, knobs),
    "continuous-batch-sorted": lambda data, knobs: daft_provider("continuous-batch-sorted", data, knobs),
    "prefix-bucketing": lambda data, knobs: daft_provider("prefix-bucketing", data, knobs),
    "prefix-bucketing-sorted": lambda data, knobs: daft_provider("prefix-bucketing-sorted", data, knobs),
    "ray-data": ray_data,
    "prefix-planned": planned,
    "perfect-placement": perfect_placement,
}
