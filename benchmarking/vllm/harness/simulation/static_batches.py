"""Static batches in time, as Daft's actor pool deals them: LLM.generate on 512 prompts, and on the next 512 after them.

As read in Daft 0.7.26 (`src/daft-local-execution/src/intermediate_ops/distributed_actor_pool_project.rs`): each
partition goes to a node, the partitions to all nodes in turn. There it has two senders for each engine of the node,
which hold a batch each until it is done and then take the partition's next one, so a batch is bound to an engine before
that is free. An engine begins with its first batch when it is ready. A node without a partition stays idle.

Which engine a partition begins with is chance, and so is where Daft's sort cuts partitions, by sampled quantiles. Where
an engine's share of sorted rows is known, as in a record, ENGINE_ROWS says it.
"""

import random
from collections import deque

import numpy as np
from harness.prediction import feeding
from harness.prediction.compiled import Int32s
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play

SENDERS_AN_ENGINE = 2

Batches = deque[Int32s]


def run(strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    engines = fleet.engines(dataset.prompts)
    # Of each engine: partitions whose next batch is bound to it, first come first served.
    bound: list[deque[tuple[Batches, Int32s]]] = [deque() for _ in engines]
    serving: dict[int, Batches] = {}

    def serve(engine: int, at_s: float) -> None:
        if bound[engine]:
            serving[engine], rows = bound[engine].popleft()
            engines[engine].give(rows, at_s)

    def more(engine: int, _ended: list[int], at_s: float) -> None:
        partition = serving[engine]
        if partition:
            bound[engine].append((partition, partition.popleft()))
        serve(engine, at_s)

    if "ENGINE_ROWS" in knobs:
        for engine, rows in enumerate(np.split(dataset.order.rows, np.cumsum(knobs["ENGINE_ROWS"])[:-1])):
            bound[engine].extend((deque(), batch) for batch in _batches(rows, knobs))
    else:
        _bind(_partitions(strategy, dataset, knobs), fleet.nodes(), bound)
    for engine in range(len(engines)):
        serve(engine, fleet.ready_s[engine])
    play(engines, more)
    return engines, max(engine.last_token_s() for engine in engines)


def _partitions(strategy: str, dataset: Dataset, knobs: Knobs) -> list[Batches]:
    """Each partition's batches; those of one that holds several files end with each file."""
    sort = strategy == "naive-batch-sorted"
    pieces = feeding.sorted_partitions(dataset, knobs) if sort else feeding.file_partitions(dataset, knobs)
    partitions = [deque[Int32s]() for _ in range(knobs["NAIVE_PARTITIONS"])]
    for number, piece in enumerate(pieces):
        partitions[number * len(partitions) // len(pieces)].extend(_batches(piece, knobs))
    return partitions


def _batches(rows: Int32s, knobs: Knobs) -> list[Int32s]:
    size = knobs["NAIVE_BATCH_SIZE"]
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _bind(partitions: list[Batches], nodes: list[list[int]], bound: list[deque[tuple[Batches, Int32s]]]) -> None:
    """What each partition's senders take first. Daft begins with an engine by chance; here chance repeats itself."""
    chance = random.Random(0)
    for number, batches in enumerate(partitions):
        node = nodes[number % len(nodes)]
        first = chance.randrange(len(node))
        for sender in range(min(len(batches), SENDERS_AN_ENGINE * len(node))):
            bound[node[(first + sender) % len(node)]].append((batches, batches.popleft()))
