"""How long an engine step takes on a card: its roofline, at the efficiencies that real engines reached.

    step = matrix + attention + sequences + step itself

    matrix     the longer of (tokens through the layers, sampled tokens through the output projection, attention's
               arithmetic) at `matrix_efficiency` of the card's rate and the weights read once at its full bandwidth
    attention  keys and values of every cached token that the step's requests read, at `kv_efficiency` of the bandwidth
    sequences  `sequence_s` for each request in the step: sampling from the whole vocabulary, and the host's bookkeeping
    step       `step_s`: launching, scheduling, what no size of the step explains

The parts add up, since kernels of one step run one after the other. `front_end_s_a_token` is no part of a step: it is
how long the engine's front end takes to make ids of one prompt token before the request can join (LLM and AsyncLLM
tokenise one prompt after the other).
"""

from typing import NamedTuple

from harness.prediction.compiled import compiled
from harness.prediction.engine_state import StepCost


class Efficiency(NamedTuple):
    """What is fitted to records (fitting.py). Shares are of the rates in gpus.py."""

    matrix_efficiency: float
    kv_efficiency: float
    sequence_s: float
    step_s: float
    front_end_s_a_token: float


class StepTime(NamedTuple):
    """Seconds of each unit in a step; from a card's least ones (roofline.step_cost) and an efficiency."""

    token_s: float
    pair_s: float
    sample_s: float
    weights_s: float
    context_s: float
    sequence_s: float
    step_s: float


def step_time(least: StepCost, found: Efficiency) -> StepTime:
    return StepTime(
        token_s=least.token_s / found.matrix_efficiency,
        pair_s=least.pair_s / found.matrix_efficiency,
        sample_s=least.sample_s / found.matrix_efficiency,
        weights_s=least.weights_s,
        context_s=least.context_s / found.kv_efficiency,
        sequence_s=found.sequence_s,
        step_s=found.step_s,
    )


@compiled
def seconds(time: StepTime, tokens: int, pairs: int, context: int, sampled: int, requests: int) -> float:
    """One step's seconds; sizes as in engine_state.STEP."""
    matrix_s = tokens * time.token_s + pairs * time.pair_s + sampled * time.sample_s
    return max(matrix_s, time.weights_s) + context * time.context_s + requests * time.sequence_s + time.step_s
