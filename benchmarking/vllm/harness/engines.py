"""The arguments that every strategy gives its vLLM engines: one place, so that the limits are equal everywhere.

Daft and Ray Data write into the dicts they are given, so each call returns a new one.
"""

from typing import Any

import config

# Ends each request at its own length.
FORCED_LENGTH = "harness.output_length.scheduler"


def engine_args() -> dict[str, Any]:
    """vLLM engine arguments without the model's name, for LLM, Daft's provider and Ray Data alike."""
    args: dict[str, Any] = {
        "load_format": config.LOAD_FORMAT,
        "tensor_parallel_size": max(config.GPUS_PER_ENGINE, 1),
        "max_model_len": config.MAX_MODEL_LEN,
        "max_num_seqs": config.MAX_NUM_SEQS,
        "max_num_batched_tokens": config.MAX_NUM_BATCHED_TOKENS,
        "gpu_memory_utilization": config.GPU_MEMORY_UTILIZATION,
        "kv_cache_memory_bytes": config.KV_CACHE_MEMORY_BYTES,
        "block_size": config.BLOCK_SIZE,
        "enforce_eager": config.ENFORCE_EAGER,
        "enable_prefix_caching": config.ENABLE_PREFIX_CACHING,
        # LLM switches its statistics off unless told otherwise; AsyncLLM keeps them on.
        "disable_log_stats": False,
    }
    if config.OUTPUT_LEN_DISTRIBUTION != "fixed":
        args["scheduler_cls"] = FORCED_LENGTH
    processors = [name.strip() for name in (config.LOGITS_PROCESSORS or "").split(",") if name.strip()]
    return {**args, "logits_processors": processors} if processors else args
