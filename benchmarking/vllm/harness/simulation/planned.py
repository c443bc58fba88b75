"""prefix-planned in time: its own windows, queues and admission, around simulated engines.

Not simulated: tokenising and planning, which are done while engines start; the actor's and the driver's own seconds.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from harness.planning import window
from harness.planning.admission import Admission, Request
from harness.planning.queues import Queues, Stretch
from harness.planning.window import Int32s, Int64s, Tokenized, Window
from harness.prediction.engine_state import FINISHED, Prompts
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play

# Rows that the driver reads at a time; windows are cut between such parts.
ROWS_A_PART = 4096
# What is handed over when a step has ended comes too late for the one that the scheduler plans at that moment.
HAND_OVER_S = 1e-4
REPORTED = ("tokens", "prompt_tokens", "state")


def run(_strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    most = min(knobs["PLANNED_MAX_IN_FLIGHT"], fleet.limits.max_num_seqs)
    engines = [PlannedEngine(dataset.prompts, knobs, fleet, ready_s, most) for ready_s in fleet.ready_s]
    queues, coming = Queues(len(engines)), deque(windows(dataset.prompts, knobs, fleet.limits.max_tokens))

    def more(number: int, _ended: Sequence[int], _at_s: float) -> None:
        while coming and queues.is_low(len(engines), most):
            queues.add(coming.popleft(), range(len(engines)))
        wanted = queues.in_hand(len(engines), most, bool(coming))
        engines[number].take(queues, number, wanted)

    for number in range(len(engines)):
        more(number, [], 0.0)
    play(engines, more)
    return list(engines), max(engine.last_token_s() for engine in engines)


class PlannedEngine(Engine):
    """An engine and its actor's admission: rows wait in the actor until the KV cache will have room for them."""

    def __init__(self, prompts: Prompts, knobs: Knobs, fleet: Fleet, ready_s: float, most_in_flight: int) -> None:
        super().__init__(prompts, fleet.limits, fleet.time, ready_s, front_end_s_a_token=0.0)
        self._admission = Admission(
            fleet.limits.kv_blocks,
            prompts.block_size,
            fleet.limits.max_tokens,
            most_in_flight,
            knobs["PLANNED_PACE"],
            knobs["PLANNED_BURST_TOKENS"],
        )
        self._waiting: deque[Request] = deque()
        self._asks_below = 0
        # In flight, in order of admission: the engine's requests, their rows, and tokens that the actor knows of.
        self._requests, self._rows, self._generated = (np.zeros(0, np.int64) for _ in range(3))

    def take(self, queues: Queues, number: int, wanted: int) -> None:
        """Fills up what this engine, `number`, has in hand; it asks again when half of that is left."""
        if len(self._waiting) <= wanted // 2:
            for stretch in queues.take(number, wanted - len(self._waiting)):
                self._waiting.extend(_requests(stretch))
        self._asks_below = wanted // 2 if len(queues) else -1

    def run(self) -> list[tuple[int, float]]:
        """Until more rows are wanted, or all have ended."""
        while self._waiting or len(self._requests):
            self._admit()
            self.step()
            self._report()
            if len(self._waiting) <= self._asks_below:
                return [(0, self.now_s)]
        return []

    def _admit(self) -> None:
        rows: list[int] = []
        while self._waiting and self._admission.allows(self._waiting[0]):
            request = self._waiting.popleft()
            self._admission.admit(request)
            rows.append(request.key)
        if rows:
            self._requests = np.append(self._requests, np.arange(self.given, self.given + len(rows)))
            self._rows = np.append(self._rows, rows)
            self._generated = np.append(self._generated, np.zeros(len(rows), np.int64))
            self.give(np.array(rows, np.int32), self.now_s + HAND_OVER_S)

    def _report(self) -> None:
        """What the actor is told when a step has ended: first tokens, then requests that are through."""
        known, asked, state = (self.state.requests[name][self._requests] for name in REPORTED)
        generated = (known - asked).astype(np.int64)
        if (generated > self._generated).any():
            self._admission.stepped(int(((generated > 0) & (self._generated == 0)).sum()))
        through = state == FINISHED
        for row, tokens in zip(self._rows[through].tolist(), generated[through].tolist(), strict=True):
            self._admission.ended(row, tokens)
        self._requests, self._rows, self._generated = (a[~through] for a in (self._requests, self._rows, generated))


def _requests(stretch: Stretch) -> Iterator[Request]:
    rows = stretch.window.ids[stretch.begin : stretch.end].to_pylist()
    for place, row in zip(range(stretch.begin, stretch.end), rows, strict=True):
        yield Request(row, stretch.window.prompt(place))


def windows(prompts: Prompts, knobs: Knobs, max_tokens: int) -> Iterator[Window]:
    """As the driver cuts them."""
    begin, number = 0, 0
    ends = np.cumsum(prompts.tokens, dtype=np.int64)
    while begin < len(ends):
        wanted = window.window_tokens(number, knobs["PLANNED_WINDOW_TOKENS"]) + (ends[begin - 1] if begin else 0)
        parts = -(-(int(np.searchsorted(ends, wanted)) + 1 - begin) // ROWS_A_PART)
        rows = np.arange(begin, min(begin + parts * ROWS_A_PART, len(ends)), dtype=np.int32)
        given = Tokenized(pa.array(rows), *stand_ins(prompts, rows))
        yield window.plan(number, given, prompts.block_size, max_tokens)
        begin, number = int(rows[-1]) + 1, number + 1


def stand_ins(prompts: Prompts, rows: Int32s) -> tuple[Int32s, Int64s]:
    """Numbers in place of token ids, equal exactly where whole blocks are: each block's id, once for each token."""
    lengths = prompts.tokens[rows].astype(np.int64)
    first = prompts.first_block[rows]
    full = prompts.first_block[rows + 1] - first
    ids = prompts.block_ids[first[0] : first[-1] + full[-1]]
    # After its blocks, each row has tokens that are no block's.
    counts = np.full(len(ids) + len(rows), prompts.block_size, np.int64)
    tails = np.cumsum(full + 1) - 1
    counts[tails] = lengths - full * prompts.block_size
    values = np.insert(ids, np.cumsum(full), prompts.distinct + np.arange(len(rows), dtype=np.int32))
    return np.repeat(values, counts).astype(np.int32), lengths
