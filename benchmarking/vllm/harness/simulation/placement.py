"""Planned placement in time: each engine has its run of the sorted prompts, as token ids made ahead of the engines.

perfect-placement   everything is in the engine's queue from the start
prefix-planned      as many rows as the engine's KV cache has room for, and PLANNED_MAX_IN_FLIGHT at most. What that
                    strategy does beyond it is not simulated: it foresees each step, paces prompts, and takes work
                    from the busiest queue at the end.
"""

from collections import deque

from harness.prediction import feeding
from harness.prediction.compiled import Int32s
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play

ROWS_A_PIECE = 8


def run(strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    engines = fleet.engines(dataset.prompts, tokenises=False)
    runs = [feed.rows for feed in feeding.perfect_placement(dataset, knobs)]
    planned = strategy == "prefix-planned"
    left = [_pieces(rows, ROWS_A_PIECE if planned else max(len(rows), 1)) for rows in runs]

    def more(number: int, ended: list[int], at_s: float) -> None:
        for _ in range(min(len(ended), len(left[number]))):
            engines[number].give(left[number].popleft(), at_s)

    for number, engine in enumerate(engines):
        room = _room(dataset, runs[number], fleet, knobs) if planned else 1
        more(number, [0] * room, engine.ready_s)
    play(engines, more)
    return engines, max(engine.last_token_s() for engine in engines)


def _pieces(rows: Int32s, size: int) -> deque[Int32s]:
    return deque(rows[start : start + size] for start in range(0, len(rows), size))


def _room(dataset: Dataset, rows: Int32s, fleet: Fleet, knobs: Knobs) -> int:
    """Pieces that an engine holds at a time, by the mean size of its rows, which are half generated on average.

    Rows that share a prefix hold it once, so each needs its own tokens and those that it has generated.
    """
    prompts, limits = dataset.prompts, fleet.limits
    own = feeding.fresh_tokens(prompts, rows) + (prompts.outputs[rows] + prompts.block_size) / 2
    held = limits.kv_blocks * prompts.block_size / own.mean() if len(rows) else 0
    return max(1, int(min(held, limits.max_num_seqs, knobs["PLANNED_MAX_IN_FLIGHT"]) / ROWS_A_PIECE))
