"""The least time that the hardware allows, and the least time of each engine step.

Notation: P layer matrix parameters, V output projection parameters, h query heads, d head size, L layers, F operations
a second, B bytes a second, all of one engine (a GPU, or several with tensor parallelism, taken as ideal).

Arithmetic, in seconds (a multiplication and an addition count as two operations):
    a token in all layers           2 P / F
    a pair of query and key         4 L h d / F       (scores and weighted values)
    a sampled token                 2 V / F           (output projection; prompt tokens but the last need none)
Memory, in seconds:
    a step                          weight bytes / B  (all but the input embedding)
    a cached token that is read     KV bytes a token / B
Sources: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1, for 2 P; Williams et al. 2009,
"Roofline", for the longer of arithmetic and memory.

The floor of a whole job takes the longer of all arithmetic and all memory traffic, as if they overlapped perfectly:
    prompt tokens to compute   all, less what a perfect cache finds
    decode steps               generated tokens (the first of each prompt comes with its prefill) / reachable batch
    KV reads                   prompt length plus tokens so far, for each generated token
It leaves out activations, sampling, communication, start-up and every gap, so nothing can be faster: with weights in
bf16, without speculative decoding, and unless a kernel reads a prefix once for several sequences (cascade attention).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.prediction.engine_state import Limits, StepCost
from harness.prediction.gpus import Gpu
from harness.prediction.model_shape import ModelShape
from harness.preflight import kv_cache

# GPU memory that holds neither weights nor KV cache: activations of the largest step, CUDA graphs, CUDA itself.
# Measured: of an H200's 126 GiB at 0.9 utilisation, Qwen3-8B's weights and 735,000 tokens of KV cache leave 10 GiB.
WORKING_MEMORY_SHARE = 0.07


class Totals(NamedTuple):
    """What a dataset adds up to for a model's tokenizer; enough for the floor of any job on it."""

    rows: int
    prompt_tokens: int
    possible_hits: int  # prompt tokens that a perfect cache finds
    prefill_pairs: int  # query and key pairs that remain at least


class Floor(NamedTuple):
    """Seconds; `wall_s` is the longer of arithmetic and memory."""

    prefill_s: float
    decode_compute_s: float
    decode_memory_s: float
    batch: float  # sequences that a decode step can hold at most, mean

    @property
    def wall_s(self) -> float:
        return max(self.prefill_s + self.decode_compute_s, self.decode_memory_s)


def step_cost(model: ModelShape, gpu: Gpu, gpus_per_engine: int = 1) -> StepCost:
    """Least seconds of the parts of a step."""
    flops, bandwidth = gpu.flops * max(gpus_per_engine, 1), gpu.bandwidth * max(gpus_per_engine, 1)
    return StepCost(
        token_s=2 * model.layer_matrix_parameters / flops,
        pair_s=4 * model.layers * model.heads * model.head_dim / flops,
        sample_s=2 * model.head_parameters / flops,
        weights_s=model.step_weight_bytes / bandwidth,
        context_s=model.kv_token_bytes / bandwidth,
    )


def configured_kv_tokens(model: ModelShape, gpu: Gpu, knobs: Mapping[str, Any]) -> int:
    """Tokens of KV cache that an engine has under `knobs`: in KV_CACHE_MEMORY_BYTES on each GPU where that is set.

    Raises ValueError if the weights leave no room.
    """
    gpus = max(knobs["GPUS_PER_ENGINE"], 1)
    if knobs["KV_CACHE_MEMORY_BYTES"] is None:
        return kv_tokens(model, gpu, knobs["GPU_MEMORY_UTILIZATION"], gpus)
    return kv_cache.tokens_held(knobs["KV_CACHE_MEMORY_BYTES"] * gpus, model.kv_token_bytes)


def kv_tokens(model: ModelShape, gpu: Gpu, gpu_memory_utilization: float = 0.9, gpus_per_engine: int = 1) -> int:
    """Tokens of KV cache that vLLM finds room for; exact figures are in its log and in records.

    Raises ValueError if the weights leave no room.
    """
    memory = gpu.memory_bytes * max(gpus_per_engine, 1)
    room = memory * (gpu_memory_utilization - WORKING_MEMORY_SHARE) - model.weight_bytes
    if room <= 0:
        raise ValueError(
            f"expected weights of {model.weight_bytes / 1e9:.1f} GB to fit in {gpus_per_engine} {gpu.name}, found room "
            f"for {memory * (gpu_memory_utilization - WORKING_MEMORY_SHARE) / 1e9:.1f} GB; use more GPUs an engine"
        )
    return int(room / model.kv_token_bytes)


def floor(totals: Totals, output_tokens: int, cost: StepCost, limits: Limits, engines: int, block_size: int) -> Floor:
    """The least seconds of a job on `engines` engines that share it evenly.

    `output_tokens` of all rows; were they shared unevenly, the true floor is a little higher.
    """
    rows = totals.rows
    if not rows:
        return Floor(0.0, 0.0, 0.0, 0.0)
    prefill_tokens = totals.prompt_tokens - totals.possible_hits
    later = max(output_tokens / rows - 1, 0.0)  # tokens a row after its first
    context = later * totals.prompt_tokens + rows * later * (later + 1) / 2
    resident = (prefill_tokens + output_tokens / 2) / rows  # what a running request needs for itself
    batch = max(1.0, min(limits.max_num_seqs, rows / engines, limits.kv_blocks * block_size / max(resident, 1.0)))
    prefill_s = prefill_tokens * cost.token_s + totals.prefill_pairs * cost.pair_s + rows * cost.sample_s
    compute_s = rows * later * (cost.token_s + cost.sample_s) + context * cost.pair_s
    memory_s = rows * later / batch * cost.weights_s + context * cost.context_s
    return Floor(prefill_s / engines, compute_s / engines, memory_s / engines, batch)
