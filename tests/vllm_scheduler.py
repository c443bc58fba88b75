"""vLLM's own scheduler without a model: every step's tokens are made up, so only scheduling and caching happen.

What the replay is checked against, step by step and request by request.
"""

import os
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import EngineArgs, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

END_TOKEN = 5


class Counted(NamedTuple):
    queries: int
    hits: int
    preemptions: int
    steps: int
    scheduled_tokens: int
    hit_tokens: list[int]
    output_tokens: list[int]


def run(
    model: str,
    prompts: list[list[int]],
    outputs: list[int],
    batches: list[list[int]],
    limits: Any,
    block_size: int,
    scheduler_cls: str | None = None,
) -> Counted:
    """Serves `batches` of prompt indices one after the other; a batch starts when the one before has ended."""
    scheduler = _scheduler(model, limits, block_size, scheduler_cls)
    requests = [_request(i, prompt, limits.max_tokens, block_size) for i, prompt in enumerate(prompts)]
    hits = [-1] * len(prompts)
    queries = hit_sum = steps = tokens = 0
    waiting = list(batches)
    in_flight: SchedulerOutput | None = None
    while waiting or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            for i in waiting.pop(0):
                scheduler.add_request(requests[i])
        step = scheduler.schedule()
        for new in step.scheduled_new_reqs:
            hits[int(new.req_id)] = new.num_computed_tokens
        stats = scheduler.kv_cache_manager.make_prefix_cache_stats()
        queries, hit_sum = queries + stats.queries, hit_sum + stats.hits
        steps += step.total_num_scheduled_tokens > 0
        tokens += step.total_num_scheduled_tokens
        if not limits.async_scheduling:
            _update(scheduler, step, requests, outputs)
            continue
        if in_flight is not None:
            _update(scheduler, in_flight, requests, outputs)
        in_flight = step
    preemptions = sum(request.num_preemptions for request in requests)
    generated = [request.num_output_tokens for request in requests]
    return Counted(queries, hit_sum, preemptions, steps, tokens, hits, generated)


def _scheduler(model: str, limits: Any, block_size: int, scheduler_cls: str | None = None) -> Scheduler:
    config = EngineArgs(
        model=model,
        load_format="dummy",
        max_model_len=1024,
        block_size=block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        enforce_eager=True,
        scheduler_cls=scheduler_cls,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = limits.async_scheduling  # on a CPU, vLLM switches it off
    blocks = limits.kv_blocks + 1
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    init_none_hash(sha256)
    grammar = StructuredOutputManager(config)
    scheduler: Scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=grammar,
        block_size=block_size,
        log_stats=True,
    )
    return scheduler


def _request(index: int, prompt: list[int], max_tokens: int, block_size: int) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    params.update_from_generation_config({}, END_TOKEN)
    hasher = get_request_block_hasher(block_size, sha256)
    return Request(str(index), list(prompt), params, None, block_hasher=hasher)


def _update(scheduler: Scheduler, step: SchedulerOutput, requests: list[Request], outputs: list[int]) -> None:
    """Tokens as a model would return them: none for a prompt in parts, the end token at a row's hidden length."""
    names = list(step.num_scheduled_tokens)
    sampled = [_sample(requests[int(name)], step, outputs[int(name)]) for name in names]
    output = ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled
    )
    scheduler.update_from_output(step, output)


def _sample(request: Request, step: SchedulerOutput, length: int) -> list[int]:
    if request.status == RequestStatus.FINISHED_STOPPED or not _completes(request, step):
        return []
    at_end = request.num_output_tokens + 1 >= length
    # A number of its own for every request: generated blocks are no one else's.
    return [END_TOKEN if at_end else 100_000 + int(request.request_id)]


def _completes(request: Request, step: SchedulerOutput) -> bool:
    before = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
    cached = step.scheduled_cached_reqs
    before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return before[request.request_id] + step.num_scheduled_tokens[request.request_id] >= request.num_tokens
