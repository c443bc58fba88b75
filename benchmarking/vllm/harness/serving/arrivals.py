"""When requests arrive: random processes from a raw bit stream, so that one seed gives the same times everywhere."""

import math

import numpy as np

PROCESSES = ("poisson", "gamma", "replay")


def times(process: str, rate_rps: float, count: int, seed: int, burstiness: float = 1.0) -> list[float]:
    """`count` arrival times in seconds from 0, at a mean rate of exactly `rate_rps`.

    "poisson": independent gaps. "gamma": gaps of shape `burstiness`; below 1 they come in bursts, above 1 evenly, as
    in `vllm bench serve --burstiness`. The last arrival is at count / rate, as there.
    """
    shape = 1.0 if process == "poisson" else burstiness
    bits = np.random.PCG64(np.random.SeedSequence([seed, count]))
    gaps = _exponential(bits, count) if shape == 1.0 else _gamma(bits, count, shape)
    ends = np.cumsum(gaps)
    return [float(end) for end in ends / ends[-1] * (count / rate_rps)] if count else []


def uniform(bits: np.random.PCG64, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Numbers in (0, 1) from the raw stream, which numpy keeps across versions."""
    return ((bits.random_raw(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _exponential(bits: np.random.PCG64, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return -np.log(uniform(bits, count))


def _gamma(bits: np.random.PCG64, count: int, shape: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([_one_gamma(bits, shape) for _ in range(count)])


def _one_gamma(bits: np.random.PCG64, shape: float) -> float:
    """Marsaglia and Tsang (2000), with their boost for shapes below 1."""
    boost = 1.0
    if shape < 1:
        boost = float(uniform(bits, 1)[0]) ** (1 / shape)
        shape += 1
    d = shape - 1 / 3
    while True:
        u, v, w = (float(x) for x in uniform(bits, 3))
        normal = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
        cube = (1 + normal / math.sqrt(9 * d)) ** 3
        if cube > 0 and math.log(w) < 0.5 * normal**2 + d - d * cube + d * math.log(cube):
            return d * cube * boost
