"""The engine limits that vLLM 0.26 and 0.27 take where none are set, as the published scripts leave them.

Read in `vllm/engine/arg_utils.py`, `get_batch_defaults`, and `vllm/config/scheduler.py`. They depend on who asks: `LLM`
has a row in the table, AsyncLLM behind Daft's provider and Ray Data has none and gets the scheduler's own defaults.
"""

from harness.prediction.engine_state import Limits
from harness.prediction.gpus import Gpu

LARGE_BYTES = 70 * 2**30
STATIC = ("naive-batch", "naive-batch-sorted")


def unset(limits: Limits, strategy: str, gpu: Gpu) -> Limits:
    """`limits` with max_num_seqs and max_num_batched_tokens as they come."""
    if strategy not in STATIC:
        return limits._replace(max_num_seqs=128, max_num_batched_tokens=2048)
    # An A100 counts as small whatever its memory.
    large = gpu.memory_bytes >= LARGE_BYTES and gpu.name != "A100"
    return limits._replace(max_num_seqs=1024 if large else 256, max_num_batched_tokens=16384 if large else 8192)
