"""Follows a server from a thread while a row runs: /metrics and the GPU once a second.

Readings are kept as they came and read after the row: parsing would hold the client's interpreter for milliseconds.
"""

import os
import threading
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import config
from harness.serving import server_metrics
from harness.serving.connection import Endpoint
from harness.serving.http_call import call

INTERVAL_S = 1.0
GAUGES = ("running", "waiting", "kv_cache_usage", "preemptions")


@dataclass(frozen=True)
class Gpu:
    memory_bytes: int
    utilization: float


class Watch:
    """`with Watch(endpoint, gpus=True) as watch: …`, then `watch.series()`."""

    def __init__(self, endpoint: Endpoint, gpus: bool) -> None:
        """`gpus`: whether the server runs on this machine's."""
        self._endpoint = endpoint
        self._read_gpus = read_gpus if gpus and config.GPUS_PER_ENGINE else lambda: None
        self._read_gpus()
        self._readings: list[tuple[float, str, Gpu | None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="watch")
        self._zero = perf_counter()

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def series(self) -> list[dict[str, float | int | None]]:
        """One row a reading: `t_s` since the start, GAUGES, GPU memory and utilisation (0 to 1)."""
        rows: list[dict[str, float | int | None]] = []
        for t_s, text, gpu in self._readings:
            snapshot = server_metrics.parse(text)
            rows.append(
                {
                    "t_s": round(t_s, 2),
                    **{name: snapshot.scalar(name) for name in GAUGES},
                    "gpu_memory_bytes": gpu.memory_bytes if gpu else None,
                    "gpu_utilization": gpu.utilization if gpu else None,
                }
            )
        return rows

    def _follow(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            answer = call(self._endpoint, "GET", "/metrics", timeout_s=INTERVAL_S)
            self._readings.append((perf_counter() - self._zero, answer.text if answer.is_ok else "", self._read_gpus()))


def read_gpus() -> Gpu | None:
    """Memory in use (summed) and mean utilisation of the server's GPUs; null without one."""
    nvml = _nvml()
    if nvml is None:
        return None
    handles = [_handle(nvml, device) for device in visible_devices(nvml.nvmlDeviceGetCount())]
    memory = sum(nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles)
    rates = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
    return Gpu(memory, sum(rates) / len(rates)) if rates else None


def visible_devices(count: int) -> list[str]:
    """The first GPUS_PER_ENGINE of CUDA_VISIBLE_DEVICES, or of all: those that a server started here takes."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [str(index) for index in range(count)] if named is None else [name for name in named.split(",") if name]
    return devices[: config.GPUS_PER_ENGINE]


@cache
def _nvml() -> Any:
    """The library, loaded once: that takes seconds the first time. None without a driver or vLLM."""
    try:
        from vllm.third_party import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _handle(nvml: Any, device: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(device)) if device.isdigit() else nvml.nvmlDeviceGetHandleByUUID(device)
