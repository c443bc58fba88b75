"""Fits an engine's efficiency to records: three numbers for all runs, from the seconds of prefill and decode steps.

The steps that a run takes hardly depend on how long each takes. So each record is simulated once, the efficiencies are
fitted to the sizes of its steps, and both are repeated until they agree.

Keys and values that are read, and requests in a step, cannot be told apart where all requests are about as long, as in
the committed records. `reading` names what the time that grows with both is taken for:
    attention    reading keys and values at a fitted share of the bandwidth
    sequences    reading at full bandwidth, and a fitted time for every request in a step
On the card that was measured both say the same; on another card they differ, which gives its prediction a range.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from harness.prediction.engine_state import StepCost
from harness.simulation.step_time import Efficiency, StepTime, step_time

Float64s = npt.NDArray[np.float64]
READINGS = ("attention", "sequences")
# Where the search begins; the result does not depend on it (tested).
BEGIN = {"attention": (0.8, 0.8, 1e-3), "sequences": (0.8, 5e-6, 1e-3)}
ROUNDS = 3
STEPS = 40
# Relative change of an efficiency below which the search ends.
SMALL = 1e-6


class Measured(NamedTuple):
    """A run's seconds in steps with prompts and in others, means over its engines."""

    prefill_s: float
    decode_s: float


# Traces of a run's engines under an efficiency.
Simulate = Callable[[Efficiency], list[Any]]


def fit(
    runs: Sequence[tuple[Simulate, Measured]],
    least: StepCost,
    front_end_s_a_token: float,
    reading: str,
    near: Efficiency | None = None,
) -> Efficiency:
    """The efficiency under which simulated prefill and decode seconds come nearest to the measured ones.

    Each run counts the same: its differences are shares of its own busy time. So does the sum of the two, which is
    exact, whereas the probe looks every 20 ms and so cannot always tell steps of 10 ms apart. `near` is a fit to nearly
    the same runs, whose steps are near enough.
    """
    wanted = np.array([measured for _, measured in runs])
    found = near or _efficiency(np.array(BEGIN[reading]), front_end_s_a_token, reading)
    for _ in range(1 if near else ROUNDS):
        traces = [simulate(found) for simulate, _ in runs]

        def differences(values: Float64s, traces: list[list[Any]] = traces) -> Float64s:
            time = step_time(least, _efficiency(values, front_end_s_a_token, reading))
            seconds = np.array([_mean_seconds(of_run, time) for of_run in traces])
            shares: Float64s = _with_sum(seconds - wanted) / wanted.sum(axis=1, keepdims=True)
            return shares.ravel()

        found = _efficiency(_least_squares(differences, _free(found, reading)), front_end_s_a_token, reading)
    return found


def _efficiency(values: Float64s, front_end_s_a_token: float, reading: str) -> Efficiency:
    matrix, growing, step_s = values.tolist()
    kv, sequence_s = (growing, 0.0) if reading == "attention" else (1.0, growing)
    return Efficiency(matrix, kv, sequence_s, step_s, front_end_s_a_token)


def _free(found: Efficiency, reading: str) -> Float64s:
    growing = found.kv_efficiency if reading == "attention" else found.sequence_s
    return np.array([found.matrix_efficiency, growing, found.step_s])


def _mean_seconds(traces: list[Any], time: StepTime) -> Float64s:
    """(prefill, decode), means over engines."""
    mean: Float64s = np.mean([_seconds(trace, time) for trace in traces], axis=0)
    return mean


def _with_sum(differences: Float64s) -> Float64s:
    return np.concatenate([differences, differences.sum(axis=1, keepdims=True)], axis=1)


def _seconds(trace: Any, time: StepTime) -> tuple[float, float]:
    """As step_time.seconds, for all steps of a trace at once."""
    matrix_s = trace["tokens"] * time.token_s + trace["pairs"] * time.pair_s + trace["sampled"] * time.sample_s
    seconds = np.maximum(matrix_s, time.weights_s) + trace["context"] * time.context_s
    seconds += trace["requests"] * time.sequence_s + time.step_s
    prefill = trace["tokens"] > trace["requests"]
    return float(seconds[prefill].sum()), float(seconds[~prefill].sum())


def _least_squares(differences: Callable[[Float64s], Float64s], begin: Float64s) -> Float64s:
    """Levenberg and Marquardt's method on logarithms, so that values stay positive."""
    logs, damping = np.log(begin), 1e-3
    now = differences(begin)
    for _ in range(STEPS):
        slopes = np.stack([(differences(np.exp(logs + nudge)) - now) / 1e-4 for nudge in 1e-4 * np.eye(len(logs))], 1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(logs)), -slopes.T @ now)
        then = differences(np.exp(logs + step))
        if then @ then >= now @ now:
            damping *= 8
            continue
        converged = np.abs(step).max() < SMALL
        logs, now, damping = logs + step, then, damping / 4
        if converged:
            break
    found: Float64s = np.exp(logs)
    return found
