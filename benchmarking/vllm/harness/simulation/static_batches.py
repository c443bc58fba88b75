"""Static batches in time, as Daft's actor pool deals them: LLM.generate on 512 prompts, and on the next 512 after them.

As read in Daft 0.7.26 (`src/daft-local-execution/src/intermediate_ops/distributed_actor_pool_project.rs`): nothing is
dealt before all engines are ready. Each partition goes to a node, the partitions to all nodes in turn. There it has two
senders for each engine of the node, that hold a batch each until it is done and then take the partition's next one, so
a batch is bound to an engine before that is free. A node without a partition stays idle.
"""

import random
from collections import deque

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

    _bind(_partitions(strategy, dataset, knobs), fleet.nodes(), bound)
    for engine in range(len(engines)):
        serve(engine, max(fleet.ready_s))
    play(engines, more)
    return engines, max(engine.last_token_s() for engine in engines)


def _partitions(strategy: str, dataset: Dataset, knobs: Knobs) -> list[Batches]:
    """Each partition's batches; those of one that holds several files end with each file."""
    sort = strategy == "naive-batch-sorted"
    pieces = feeding.sorted_partitions(dataset, knobs) if sort else feeding.file_partitions(dataset, knobs)
    size, batches = knobs["NAIVE_BATCH_SIZE"], [deque[Int32s]() for _ in range(knobs["NAIVE_PARTITIONS"])]
    for number, piece in enumerate(pieces):
        partition = batches[number * len(batches) // len(pieces)]
        partition.extend(piece[start : start + size] for start in range(0, len(piece), size))
    return batches


def _bind(partitions: list[Batches], nodes: list[list[int]], bound: list[deque[tuple[Batches, Int32s]]]) -> None:
    """What each partition's senders take first. Daft begins with an engine by chance; here chance repeats itself."""
    chance = random.Random(0)
    for number, batches in enumerate(partitions):
        node = nodes[number % len(nodes)]
        first = chance.randrange(len(node))
        for sender in range(min(len(batches), SENDERS_AN_ENGINE * len(node))):
            bound[node[(first + sender) % len(node)]].append((batches, batches.popleft()))
