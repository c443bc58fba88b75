"""What a live vLLM engine says of itself, read in its own front-end process (vLLM 0.26 and 0.27).

Counters come from vLLM's Prometheus registry: exact totals, not the averages that its log lines show. Settings come
from the engine object's configuration after its core has answered, so they are what runs, not what was asked for.
"""

import gc
import os
import re
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import config

SCALARS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "prefix_cache_queries": "vllm:prefix_cache_queries",
    "prefix_cache_hits": "vllm:prefix_cache_hits",
    "preemptions": "vllm:num_preemptions",
    "prompt_tokens": "vllm:prompt_tokens",
    "generation_tokens": "vllm:generation_tokens",
}
TIMES = {
    "queue_time": "vllm:request_queue_time_seconds",
    "ttft": "vllm:time_to_first_token_seconds",
    "inter_token_latency": "vllm:inter_token_latency_seconds",
}
HISTOGRAMS = {**TIMES, "e2e_latency": "vllm:e2e_request_latency_seconds"}
COUNTED = (FINISHED, LENGTHS) = "vllm:request_success", "vllm:request_generation_tokens"
# Columns of a time series; `idle_s`, `prefill_s`, `decode_s` are Clock's totals, `<time>_sum_s`/`_count` run totals.
SERIES = (
    *SCALARS,
    *(f"{name}_{part}" for name in TIMES for part in ("sum_s", "count")),
    "idle_s",
    "prefill_s",
    "decode_s",
    "gpu_memory_bytes",
    "gpu_utilization",
)
START_LOG = {
    "weights_s": r"(?:Model loading took .*? and|Loading weights took) ([\d.]+) seconds",
    "init_s": r"init engine \(.*?\) took ([\d.]+) s",
    "compile_s": r"init engine .*?compilation: ([\d.]+) s",
    "capture_s": r"Graph capturing finished in ([\d.]+) secs",
}
BACKEND_LOG = r"(?:Using|for) (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend"


def is_ready() -> bool:
    """Whether this process's engine has finished starting: vLLM publishes its cache's size last."""
    return bool(_children("vllm:cache_config_info"))


def require_all() -> None:
    """Raises RuntimeError where this vLLM does not publish all that is read here: what is missing would read as 0."""
    wanted = [*SCALARS.values(), *HISTOGRAMS.values(), *COUNTED]
    if missing := [metric for metric in wanted if not _children(metric)]:
        raise RuntimeError(f"expected vLLM to count {', '.join(missing)}, found no such metrics; use a pinned version")


def counters() -> dict[str, Any]:
    """Totals since the engine's start: counters as ints, histograms as {"sum", "count", "buckets": {le: count}}."""
    totals: dict[str, Any] = {name: int(_total(metric)) for name, metric in SCALARS.items() if name != "kv_cache_usage"}
    totals["finished"] = {labels[-1]: int(child._value.get()) for labels, child in _children(FINISHED)}
    for name, metric in HISTOGRAMS.items():
        totals[name] = _histogram(metric)
    totals["request_generation_tokens"] = _histogram(LENGTHS)
    return totals


def sample(clock: "Clock") -> dict[str, float | int | None]:
    """One row of the time series: the columns of SERIES."""
    row: dict[str, float | int | None] = {name: _total(metric) for name, metric in SCALARS.items()}
    for name, metric in TIMES.items():
        histogram = _histogram(metric)
        row[f"{name}_sum_s"], row[f"{name}_count"] = histogram["sum"], histogram["count"]
    memory, utilization = _gpus()
    return {**row, **clock.totals(), "gpu_memory_bytes": memory, "gpu_utilization": utilization}


class Clock:
    """Splits an engine's time after its start into idle, prefill and decode, by watching its counters.

    A stretch that ends with prompt tokens processed is prefill (with chunked prefill, decodes share its steps); one
    that ends with generated tokens only is decode. vLLM shows a first step only when it ends, so an idle stretch is
    cut at the moment the engine core scheduled its first request.
    """

    def __init__(self, engine: Any, before: dict[str, Any]) -> None:
        """`before`: the engine's counters at this moment, from which it counts on."""
        self._engine = engine
        self._seconds = {"idle_s": 0.0, "prefill_s": 0.0, "decode_s": 0.0}
        self._since = time.time()
        self._prompt, self._generated = int(before["prompt_tokens"]), int(before["generation_tokens"])
        self._busy = False
        # Ticked by the probe's thread, and by the engine's own where it reports.
        self._lock = threading.Lock()
        self.max_running = 0
        self.first_scheduled_at: float | None = None
        self.last_token_at: float | None = None

    def tick(self, now: float) -> tuple[bool, int]:
        """Accounts for the time up to `now`; returns (nothing is running or waiting, tokens generated so far)."""
        with self._lock:
            return self._tick(now)

    def _tick(self, now: float) -> tuple[bool, int]:
        prompt, generated = int(_total(SCALARS["prompt_tokens"])), int(_total(SCALARS["generation_tokens"]))
        running = int(_total(SCALARS["running"]))
        idle = running + int(_total(SCALARS["waiting"])) == 0
        self.max_running = max(self.max_running, running)
        if prompt > self._prompt or generated > self._generated:
            self._advance(now, "prefill_s" if prompt > self._prompt else "decode_s")
            self._prompt, self._generated = prompt, generated
            self._busy = not idle
        return idle, generated

    def totals(self) -> dict[str, Any]:
        seconds = dict(self._seconds)
        if not self._busy:
            seconds["idle_s"] += time.time() - self._since
        edges = {"first_scheduled_at": self.first_scheduled_at, "last_token_at": self.last_token_at}
        return {**seconds, **edges, "max_running": self.max_running}

    def _advance(self, now: float, kind: str) -> None:
        if not self._busy:
            scheduled = min(max(self._first_scheduled(now), self._since), now)
            self._seconds["idle_s"] += scheduled - self._since
            self.first_scheduled_at = self.first_scheduled_at or scheduled
            self._since = scheduled
        self._seconds[kind] += now - self._since
        self._since = self.last_token_at = now

    def _first_scheduled(self, now: float) -> float:
        """When the core scheduled the oldest request in flight, from its monotonic clock; `now` where unknown."""
        processor = getattr(self._engine, "output_processor", None)
        states = list(getattr(processor, "request_states", {}).values())
        times = [state.stats.scheduled_ts for state in states if state.stats and state.stats.scheduled_ts > 0]
        return now - (time.monotonic() - min(times)) if times else now


def find_engine() -> Any:
    """The engine object of this process, whoever holds it; None where there is none."""
    kinds = {"AsyncLLM", "LLMEngine"}
    return next((o for o in gc.get_objects() if type(o).__name__ in kinds and hasattr(o, "vllm_config")), None)


def settings(engine: Any, start_log: dict[str, Any]) -> dict[str, Any]:
    """What the engine runs with, read from its live configuration; null where this vLLM does not say."""
    config = getattr(engine, "vllm_config", None)
    read = {name: _attribute(config, path) for name, path in _SETTINGS.items()}
    return {**read, "attention_backend": start_log["attention_backend"], "versions": _versions()}


def read_start_log() -> dict[str, Any]:
    """Seconds that the core's own log states for its start, and its attention backend, from this process's output
    files (Ray gives each worker its own); null where a line is missing."""
    text = "".join(_own_output(descriptor) for descriptor in (1, 2))
    found: dict[str, Any] = {name: _first_number(pattern, text) for name, pattern in START_LOG.items()}
    backend = re.search(BACKEND_LOG, text)
    found["attention_backend"] = backend.group(1) if backend else None
    return found


_SETTINGS = {
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "async_scheduling": "scheduler_config.async_scheduling",
    "max_model_len": "model_config.max_model_len",
    "dtype": "model_config.dtype",
    "enforce_eager": "model_config.enforce_eager",
    "block_size": "cache_config.block_size",
    "num_gpu_blocks": "cache_config.num_gpu_blocks",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
}


def _attribute(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root if root is None or isinstance(root, int | float | bool) else str(root).removeprefix("torch.")


def _versions() -> dict[str, str]:
    import torch
    import vllm

    return {"vllm": str(vllm.__version__), "torch": str(torch.__version__)}


def _own_output(descriptor: int) -> str:
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    return path.read_text(errors="replace") if path.is_file() else ""


def _first_number(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    return float(match.group(1)) if match else None


def _children(metric: str) -> list[tuple[tuple[str, ...], Any]]:
    from prometheus_client import REGISTRY

    collector = REGISTRY._names_to_collectors.get(metric)
    return list(collector._metrics.items()) if collector is not None else []


def _total(metric: str) -> float:
    return float(sum(child._value.get() for _, child in _children(metric)))


def _histogram(metric: str) -> dict[str, Any]:
    """Sum, count and cumulative buckets over the engines of this process."""
    buckets: dict[str, int] = {}
    total = 0.0
    for _, child in _children(metric):
        running = 0
        for bound, bucket in zip(child._upper_bounds, child._buckets, strict=True):
            running += int(bucket.get())
            buckets[str(bound)] = buckets.get(str(bound), 0) + running
        total += child._sum.get()
    return {"sum": total, "count": buckets.get("inf", 0), "buckets": buckets}


def _gpus() -> tuple[int | None, float | None]:
    """Memory in use (bytes, summed) and mean utilisation (0 to 1) of this worker's GPUs; null without one."""
    handles = _gpu_handles()
    if not handles:
        return None, None
    memory = sum(nvml.nvmlDeviceGetMemoryInfo(handle).used for nvml, handle in handles)
    rates = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for nvml, handle in handles]
    return memory, sum(rates) / len(rates)


@cache
def _gpu_handles() -> list[tuple[Any, Any]]:
    """(NVML, handle) of each GPU that Ray gave this worker."""
    devices = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if not devices or config.LOGICAL_GPUS:
        return []
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    return [(pynvml, _gpu_handle(pynvml, device)) for device in devices]


def _gpu_handle(nvml: Any, device: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(device)) if device.isdigit() else nvml.nvmlDeviceGetHandleByUUID(device)
