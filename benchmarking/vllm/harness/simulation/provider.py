"""Daft's provider in time (Daft 0.7.26, `src/daft-local-execution/src/streaming_sink/vllm.rs`, one partition).

One submission after the other, each waiting until its engine is ready. Engines never wait for results to be fetched,
but the job does: once all is submitted, one engine is asked for its finished rows, the next half a second later, and so
on in turn, until every engine was found finished and empty.
"""

from harness.prediction import feeding
from harness.prediction.feeding import Dataset, Knobs
from harness.simulation.engine import Engine
from harness.simulation.fleet import Fleet, play

POLL_INTERVAL_S = 0.5


def run(strategy: str, dataset: Dataset, knobs: Knobs, fleet: Fleet) -> tuple[list[Engine], float]:
    """The engines after their work, and when the rows are back."""
    engines = fleet.engines(dataset.prompts)
    now_s = 0.0
    for number, rows in feeding.submissions(strategy, dataset, knobs):
        engine = engines[number]
        now_s = max(now_s, engine.ready_s) + len(rows) * fleet.submit_s_a_row
        engine.give(rows, now_s)
    play(engines, lambda *_: None)
    return engines, _collected_s(now_s, [engine.last_token_s() for engine in engines])


def _collected_s(submitted_s: float, last_token_s: list[float]) -> float:
    """When all rows are fetched. A poll empties one engine; a finished and empty one leaves the round."""
    waiting = list(range(len(last_token_s)))
    emptied: set[int] = set()
    now_s = submitted_s
    while True:
        while waiting and waiting[0] in emptied:
            waiting.pop(0)
        if not waiting:
            return now_s
        number = waiting.pop(0)
        waiting.append(number)
        if now_s >= last_token_s[number]:
            emptied.add(number)
        now_s += POLL_INTERVAL_S
