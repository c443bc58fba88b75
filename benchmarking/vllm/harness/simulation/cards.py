"""Cards that no record was made on: what the fit of a measured card says of them, and how sure that is.

Two things are unknown, and each is taken in two ways:
    rates     "data sheet": as printed. "derated": that, times what the measured card's kernels reach of *its* sheet.
    reading   what grows with the requests in a step, reading KV or a time for each (fitting.py)
A card below its data sheet for reasons of its own, such as a power limit, is slower than all four.
"""

from typing import NamedTuple

from harness.prediction import roofline
from harness.prediction.gpus import TERA, Gpu
from harness.prediction.model_shape import ModelShape
from harness.simulation.step_time import Efficiency, StepTime, step_time

# NVIDIA's data sheet of the H200 SXM: bf16 without sparsity, memory bandwidth. gpus.py has what was measured.
SHEET_FLOPS, SHEET_BANDWIDTH = 989 * TERA, 4.8 * TERA


class Card(NamedTuple):
    """One way to take a card; the first of `cards` is the one that is reported, the others are its range."""

    rates: str
    reading: str
    time: StepTime


def cards(gpu: Gpu, measured: Gpu, model: ModelShape, readings: dict[str, Efficiency]) -> list[Card]:
    rates = {"measured": gpu} if gpu.measured else {"derated": _derated(gpu, measured), "data sheet": gpu}
    return [
        Card(name, reading, step_time(roofline.step_cost(model, rated), efficiency))
        for name, rated in rates.items()
        for reading, efficiency in readings.items()
    ]


def _derated(gpu: Gpu, measured: Gpu) -> Gpu:
    return gpu._replace(
        flops=gpu.flops * measured.flops / SHEET_FLOPS, bandwidth=gpu.bandwidth * measured.bandwidth / SHEET_BANDWIDTH
    )
