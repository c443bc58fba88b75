"""What the nodes have beside GPUs: a logical CPU for each CPU engine, and memory for the KV caches asked for.

Memory is looked at on this machine, so it tells only where the cluster is this machine alone.
"""

from collections.abc import Iterator, Sequence

import config
import psutil
from harness import machine
from harness.preflight.problem import Problem
from harness.requirements import on_cpu


def problems(node_cpus: Sequence[float]) -> Iterator[Problem]:
    """`node_cpus`: logical CPUs of each of Ray's nodes."""
    if config.GPUS_PER_ENGINE == 0 and sum(node_cpus) < config.CONCURRENCY:
        cpus = f"{sum(node_cpus):g}"
        change = (
            f"Set CONCURRENCY to at most {int(sum(node_cpus))}, or add CPUs (RAY_NUM_CPUS counts them on one machine)"
        )
        yield Problem(
            f"a CPU in the Ray cluster for each of CONCURRENCY = {config.CONCURRENCY:,} engines", cpus, change
        )
    if len(node_cpus) == 1 and config.KV_CACHE_MEMORY_BYTES is not None:
        yield from _kv_caches(config.KV_CACHE_MEMORY_BYTES)


def _kv_caches(kv_cache_bytes: int) -> Iterator[Problem]:
    engines = config.CONCURRENCY if on_cpu() else 1
    where = "this machine" if on_cpu() else "each GPU"
    memory = psutil.virtual_memory().total if on_cpu() else max(machine.gpu_memory_bytes(), default=None)
    if memory is None or kv_cache_bytes * engines <= memory:
        return
    each = f" for each of {engines:,} engines" if engines > 1 else ""
    yield Problem(
        f"memory on {where} for KV_CACHE_MEMORY_BYTES = {kv_cache_bytes:,}{each}",
        f"{memory:,} bytes in all",
        f"Set it to less than {memory // engines:,}, which weights and activations share"
        + (", or lower CONCURRENCY" if engines > 1 else ", or to none"),
    )
