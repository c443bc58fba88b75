"""Synthetic records for tests of the report and the statistics: shaped like real ones, measured nowhere."""

import copy
import uuid
from typing import Any

Record = dict[str, Any]

SETTINGS = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "chunked_prefill": True,
    "dtype": "bfloat16",
    "block_size": 16,
    "num_gpu_blocks": 10000,
    "prefix_caching": True,
    "attention_backend": "FLASH_ATTN",
}
CONFIG = {
    "MODEL_NAME": "Synthetic/Model",
    "LOAD_FORMAT": "dummy",
    "INPUT_PATH": "400_0-5_16.parquet",
    "OUTPUT_LEN": 16,
    "OUTPUT_LEN_DISTRIBUTION": "fixed",
    "CONCURRENCY": 1,
    "GPUS_PER_ENGINE": 1,
    "MAX_NUM_SEQS": 64,
    "KV_CACHE_MEMORY_BYTES": None,
    "RESULTS_PATH": "results",
    "COMPARISON_ID": None,
    "COMPARISON_TRIAL": None,
    "COMPARISON_PLACE": None,
    "COMPARISON_ARM": None,
}


def record(strategy: str = "naive-batch", wall_s: float = 40.0, steady_s: float = 20.0, **changes: Any) -> Record:
    """A valid run of 400 prompts; `changes` replace whole keys, a dict for a dict key is merged into it."""
    made: Record = {
        "schema": 1,
        "run_id": uuid.uuid4().hex,
        "strategy": strategy,
        "label": None,
        "started_at": "2026-01-01T00:00:00+00:00",
        "command": f"python benchmarking/vllm/{strategy}.py",
        "status": "ok",
        "error": None,
        "wall_s": wall_s,
        "phases_s": {
            "read_and_plan": 1.0,
            "engine_start": wall_s - steady_s - 3.0,
            "steady": steady_s,
            "tail": 1.5,
            "collect": 0.5,
        },
        "phase_tokens": {"engine_start": 0.0, "steady": 6000.0, "tail": 400.0},
        "idle_engine_s": 2.0,
        "imbalance": 1.0,
        "waterfall_s": {"read": 1.0, "weights": wall_s - steady_s - 3.0, "prefill": steady_s, "tail": 2.0},
        "rows": {"in": 400, "out": 400, "missing": 0, "doubled": 0, "unknown": 0, "null": 0, "short": 0},
        "tokens": {"prompt": 80000, "output": 6400},
        "cache_state": "cold",
        "warnings": [],
        "counters": {
            "prefix_cache_queries": 80000,
            "prefix_cache_hits": 40000,
            "preemptions": 0,
            "prompt_tokens": 80000,
            "generation_tokens": 6400,
        },
        "engines": [{"engine": "10.0.0.1:1", "node": "10.0.0.1", "pid": 1, "settings": dict(SETTINGS)}],
        "config": dict(CONFIG),
        "dataset": {"name": "400_0-5_16", "rows": 400, "files": 8, "fingerprint": "f1" * 8, "prompt_bytes": 400000},
        "hardware": {
            "nodes": 1,
            "ray_cpus": 16.0,
            "ray_gpus": 1.0,
            "driver_cpus": 16,
            "driver_memory_bytes": 10**11,
            "cpu": "Synthetic CPU",
            "gpus": ["NVIDIA H200"],
        },
        "versions": {"python": "3.12.0", "vllm": "0.26.0", "ray": "2.58.1"},
        "commit": "0" * 40,
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) and isinstance(made[key], dict) else value
    return made


def with_settings(made: Record, **settings: Any) -> Record:
    """The same run with other settings read back from its engines."""
    other = copy.deepcopy(made)
    for engine in other["engines"]:
        engine["settings"].update(settings)
    return other


def trial_of(comparison: str, trial: int, place: int, arm: str) -> dict[str, Any]:
    """The knobs that compare.py sets, for `config`."""
    return {
        "COMPARISON_ID": comparison,
        "COMPARISON_TRIAL": trial,
        "COMPARISON_PLACE": place,
        "COMPARISON_ARM": arm,
    }


def failed(strategy: str, error: str, **changes: Any) -> Record:
    """A run that ended before it knew anything but its configuration."""
    unknown = ("phases_s", "phase_tokens", "waterfall_s", "idle_engine_s", "imbalance", "rows", "tokens")
    measured = ("cache_state", "counters", "engines", "dataset", "hardware", "warnings")
    base = record(strategy, **changes)
    return {**base, **dict.fromkeys((*unknown, *measured)), "status": "failed", "error": error}
