"""Prefix-cache hit rate over time, from the counters that a run's probe wrote to `timeseries/<run_id>.parquet`."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness.schema import Record
from numpy.typing import NDArray

WINDOWS = 30
COUNTERS = ("prefix_cache_queries", "prefix_cache_hits")

Array = NDArray[np.float64]


def hit_rates(record: Record, results_path: Path) -> list[tuple[float, float]] | None:
    """(seconds since the first sample, hit rate in the window that ends there); none without a series.

    Differences of counters over windows of one thirtieth of the time in which prompts were looked up: not the engine's
    logged rate, which averages over its last 1,000 requests. Windows without a look-up are left out.
    """
    path = results_path / "timeseries" / f"{record['run_id']}.parquet"
    if not path.exists():
        return None
    try:
        columns = pq.read_table(path, columns=["engine", "t_s", *COUNTERS]).to_pydict()
    except (pa.ArrowException, OSError) as error:
        print(f"warning: {path} is drawn as no time series: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    engines = np.array(columns["engine"])
    times, queries, hits = (np.array(columns[name], dtype=float) for name in ("t_s", *COUNTERS))
    edges = _edges(times, queries)
    asked, found = (np.diff(_totals(edges, engines, times, counter)) for counter in (queries, hits))
    return [(float(t), float(h / q)) for t, q, h in zip(edges[1:], asked, found, strict=True) if q > 0]


def _edges(times: Array, queries: Array) -> Array:
    """Window borders from the last sample before a look-up to the first that holds all of them."""
    busy = times[queries > 0]
    if len(busy) == 0:
        return np.array([0.0])
    before = times[times < busy.min()]
    return np.linspace(before.max() if len(before) else 0.0, busy.max(), WINDOWS + 1)


def _totals(edges: Array, engines: NDArray[np.str_], times: Array, counter: Array) -> Array:
    """A counter at each edge, summed over the engines; between samples it is taken to grow evenly."""
    total = np.zeros(len(edges))
    for engine in np.unique(engines):
        own = (engines == engine) & ~np.isnan(counter)
        order = np.argsort(times[own], kind="stable")
        total += np.interp(edges, times[own][order], counter[own][order], left=0.0)
    return total
