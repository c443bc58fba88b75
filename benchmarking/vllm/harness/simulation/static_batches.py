"""Static batches in time, as Daft's actor pool deals them: LLM.generate on 512 prompts, and on the next 512 after them.

Daft 0.7.26 waits until all engines are ready. Each partition goes to a node, the partitions to all nodes in turn, and
its batches to that node's engines, to whichever is free; a node without a partition stays idle.
"""

from collections import deque

from harness.prediction import feeding
from harness.prediction.compiled import Int32s
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play

PARTITIONS = {"naive-batch": feeding.file_partitions, "naive-batch-sorted": feeding.sorted_partitions}


def run(strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    engines, nodes = fleet.engines(dataset.prompts), fleet.nodes()
    queues = _deal(PARTITIONS[strategy](dataset, knobs), knobs["NAIVE_BATCH_SIZE"], len(nodes))
    queue_of = {engine: queue for node, queue in zip(nodes, queues, strict=True) for engine in node}

    def more(engine: int, _ended: list[int], at_s: float) -> None:
        if queue_of[engine]:
            engines[engine].give(queue_of[engine].popleft(), at_s)

    for place in range(fleet.engines_a_node):
        for node in nodes:
            if place < len(node):
                more(node[place], [], max(fleet.ready_s))
    play(engines, more)
    return engines, max(engine.last_token_s() for engine in engines)


def _deal(partitions: list[Int32s], size: int, nodes: int) -> list[deque[Int32s]]:
    """Each node's batches."""
    queues: list[deque[Int32s]] = [deque() for _ in range(nodes)]
    for number, part in enumerate(partitions):
        queues[number % nodes].extend(part[start : start + size] for start in range(0, len(part), size))
    return queues
