"""How much faster, and how sure: effects with 95 % intervals from few trials.

    effect = estimate(cells, {"naive-batch": 1, "continuous-batch": -1})  # ratio above 1: continuous-batch is faster

A cell is the logarithm of one run's seconds. Trials are blocks: all strategies run in each, in random order, so the
difference within a block is free of what changes between blocks. Three differences alone say too little about their
own scatter (a plain bootstrap of three pairs is far too narrow), so the scatter is pooled: what remains of all cells
of a section after strategy and block are taken out, the A/A pair included. The interval is a bootstrap-t: residuals
are resampled within the layout of blocks, each resample is divided by its own scatter, and the quantile of that
statistic takes the place of Student's t (Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 12).

Assumption: strategies scatter alike, in per cent. Three blocks cannot tell otherwise; from four on, a pair whose own
scatter exceeds the pooled one is judged by its own. Simulated in tests/test_effects.py, with one strategy of six
scattering three times as much as the rest: its 95 % interval covers about 78 % at 3 trials and 90 % at 5.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 4000
# One block cannot show a pair's own scatter; fewer degrees of freedom make the interval useless (t above 2.8).
MIN_BLOCKS = 2
MIN_FREEDOM = 4
# Blocks from which a pair's own scatter says enough to be used where it is the larger one. With three, using it costs
# power (10 % at 3 % noise is called in 90 instead of 95 of 100) and repairs little.
OWN_SCATTER_BLOCKS = 4

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    block: str
    strategy: str
    log_s: float


@dataclass(frozen=True)
class Effect:
    """A ratio of times with its interval; above 1 the strategies with negative weight take less time."""

    ratio: float
    low: float
    high: float
    blocks: int


class TooFewTrialsError(ValueError):
    """There is no honest interval yet; the message says what is missing."""


def estimate(cells: Sequence[Cell], weights: Mapping[str, float], seed: int = 0) -> Effect:
    """The effect of `weights` on log seconds: {baseline: 1, contender: -1}, or four weights for an interaction.

    Several runs of a strategy in one block count as one with less scatter. Raises TooFewTrialsError.
    """
    cells = _in_shared_blocks(cells)
    contrasts = _contrasts(cells, weights)
    residual_maker, freedom = _residual_maker(cells)
    if len(contrasts) < MIN_BLOCKS or freedom < MIN_FREEDOM:
        raise TooFewTrialsError(_what_is_missing(cells, weights, len(contrasts), freedom))
    logs = np.array([cell.log_s for cell in cells])
    center = float((contrasts @ logs).mean())
    half = _half_width(logs, contrasts, residual_maker, freedom, seed)
    return Effect(math.exp(center), math.exp(center - half), math.exp(center + half), len(contrasts))


def _what_is_missing(cells: Sequence[Cell], weights: Mapping[str, float], blocks: int, freedom: int) -> str:
    """How many more blocks, of what the fullest one with all of `weights` holds, would be enough."""
    if not blocks:
        return "run them with compare.py"
    runs = [[c.strategy for c in cells if c.block == name] for name in {c.block for c in cells}]
    fullest = max(len(names) for names in runs if set(weights) <= set(names))
    # Each brings as many degrees of freedom as it has runs, less one for itself.
    return f"{max(MIN_BLOCKS - blocks, math.ceil((MIN_FREEDOM - freedom) / (fullest - 1)))} more needed"


def trials_needed(arms: int, strategies: int) -> int:
    """Trials after which two of at least two strategies can be told apart; a twin makes `arms` one more than them."""
    # Of `arms` runs a trial, strategies and blocks take as many degrees of freedom as they are, less one.
    return max(MIN_BLOCKS, math.ceil((MIN_FREEDOM + strategies - 1) / (arms - 1)))


def scatter(cells: Sequence[Cell]) -> float | None:
    """Standard deviation of one run's log time after strategy and block are taken out: the noise floor of a run."""
    cells = _in_shared_blocks(cells)
    residual_maker, freedom = _residual_maker(cells)
    if freedom < 1:
        return None
    residuals = residual_maker @ np.array([cell.log_s for cell in cells])
    return math.sqrt(float(residuals @ residuals) / freedom)


def _in_shared_blocks(cells: Sequence[Cell]) -> list[Cell]:
    """Without the runs that are alone in their block: they say nothing about differences or scatter."""
    return [cell for cell in cells if any(other.block == cell.block and other is not cell for other in cells)]


def _half_width(logs: Array, contrasts: Array, residual_maker: Array, freedom: int, seed: int) -> float:
    residuals = residual_maker @ logs * math.sqrt(len(logs) / freedom)
    draws = np.random.default_rng(seed).choice(np.concatenate([residuals, -residuals]), (len(logs), RESAMPLES))
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.abs(_product(contrasts, draws).mean(axis=0)) / _scatters(draws, contrasts, residual_maker, freedom)
    own = float(_scatters(logs[:, None], contrasts, residual_maker, freedom)[0])
    return float(np.nanquantile(t, LEVEL)) * own if own > 0 else 0.0


def _scatters(logs: Array, contrasts: Array, residual_maker: Array, freedom: int) -> Array:
    """Scatter that decides, a value for each column of `logs`: pooled, or the contrast's own where that is larger."""
    pooled = (_product(residual_maker, logs) * logs).sum(axis=0) / freedom
    if len(contrasts) >= OWN_SCATTER_BLOCKS:
        unit = contrasts / np.linalg.norm(contrasts, axis=1, keepdims=True)
        pooled = np.maximum(pooled, _product(unit, logs).var(axis=0, ddof=1))
    return np.asarray(np.sqrt(np.maximum(pooled, 0.0)))


def _product(a: Array, b: Array) -> Array:
    """a @ b without BLAS, whose threads cost more than products this small."""
    return np.asarray(np.einsum("ij,jr->ir", a, b))


def _contrasts(cells: Sequence[Cell], weights: Mapping[str, float]) -> Array:
    """One row of weights over the cells for each block that has a run of every strategy asked for."""
    rows = []
    for block in dict.fromkeys(cell.block for cell in cells):
        counts = {name: sum(c.block == block and c.strategy == name for c in cells) for name in weights}
        if all(counts.values()):
            rows.append([_weight(cell, block, weights, counts) for cell in cells])
    return np.array(rows, dtype=float).reshape(len(rows), len(cells))


def _weight(cell: Cell, block: str, weights: Mapping[str, float], counts: Mapping[str, int]) -> float:
    if cell.block != block or cell.strategy not in weights:
        return 0.0
    return weights[cell.strategy] / counts[cell.strategy]


def _residual_maker(cells: Sequence[Cell]) -> tuple[Array, int]:
    """The projection that takes strategy and block out of log times, and the degrees of freedom that it leaves."""
    columns: list[tuple[str, Any]] = sorted({("b", c.block) for c in cells} | {("s", c.strategy) for c in cells})
    design = np.array([[(k, v) in (("b", c.block), ("s", c.strategy)) for k, v in columns] for c in cells], dtype=float)
    design = design.reshape(len(cells), len(columns))
    rank = int(np.linalg.matrix_rank(design)) if len(cells) else 0
    return np.eye(len(cells)) - design @ np.linalg.pinv(design), len(cells) - rank
