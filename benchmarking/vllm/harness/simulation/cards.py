"""Cards that no record was made on: what the fit of a measured card says of them, from the slow end to the fast one.

Two things are unknown, and both ends are taken of each:
    rates     slow: the data sheet's, times what the measured card's kernels reach of *its* sheet. fast: as printed.
    reading   what grows with the requests in a step (fitting.py). slow: reading KV at the fitted share of the
              bandwidth, so that less bandwidth costs more. fast: a time for each request, the same on every card.
A card that stays below its data sheet for reasons of its own, such as a power limit, is slower than the slow end.
"""

from typing import NamedTuple

from harness.prediction import roofline
from harness.prediction.gpus import TERA, Gpu
from harness.prediction.model_shape import ModelShape
from harness.simulation.step_time import Efficiency, StepTime, step_time

# NVIDIA's data sheet of the H200 SXM: bf16 without sparsity, memory bandwidth. gpus.py has what was measured.
SHEET_FLOPS, SHEET_BANDWIDTH = 989 * TERA, 4.8 * TERA


class Card(NamedTuple):
    """One end of what is expected of a card."""

    end: str  # "measured", "slow" or "fast"
    reading: str
    time: StepTime


def cards(gpu: Gpu, measured: Gpu, model: ModelShape, readings: dict[str, Efficiency]) -> list[Card]:
    """A measured card as it is, which both readings agree on; of another, the slow end first."""
    if gpu.measured:
        return [_card("measured", gpu, "attention", model, readings)]
    slow = _card("slow", _derated(gpu, measured), "attention", model, readings)
    return [slow, _card("fast", gpu, "sequences", model, readings)]


def _card(end: str, rated: Gpu, reading: str, model: ModelShape, readings: dict[str, Efficiency]) -> Card:
    return Card(end, reading, step_time(roofline.step_cost(model, rated), readings[reading]))


def _derated(gpu: Gpu, measured: Gpu) -> Gpu:
    return gpu._replace(
        flops=gpu.flops * measured.flops / SHEET_FLOPS, bandwidth=gpu.bandwidth * measured.bandwidth / SHEET_BANDWIDTH
    )
