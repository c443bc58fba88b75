"""Ends each request at its own length, in every strategy: a vLLM scheduler.

Named in the engine's arguments, `scheduler_cls="harness.output_length.scheduler"`, it reaches engines that take one
SamplingParams for all rows, Daft's provider included. The settings arrive as BENCH_ variables, which the engine's
process inherits.

A request's length is set once, as it enters the engine, as min_tokens and max_tokens of its own: from then on the
engine does what it does with a fixed length, at the same cost a step. (A logits processor, by which lengths varied
until 2026-11-30, puts the engine on vLLM's older model runner, which then handles every request's tokens in Python in
each step.)
"""

from typing import Any

from harness.target_length import target_length
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class ForcedLength:
    """Before a scheduler of vLLM's: no end token ends a request early, and none goes on for longer."""

    def add_request(self, request: Any) -> None:
        if request.prompt_token_ids is None:
            raise ValueError("ForcedLength needs prompts as token ids: found embeddings alone")
        length = min(target_length(request.prompt_token_ids), request.max_tokens)
        request.max_tokens = length
        request.sampling_params.min_tokens = request.sampling_params.max_tokens = length
        super().add_request(request)  # type: ignore[misc]


class Synchronous(ForcedLength, Scheduler):  # type: ignore[misc]
    pass


class Asynchronous(ForcedLength, AsyncScheduler):  # type: ignore[misc]
    pass


def scheduler(*, vllm_config: Any, **arguments: Any) -> Scheduler:
    """What the engine's core builds in place of a class that is given by name: the kind that it would build itself."""
    kind = Asynchronous if vllm_config.scheduler_config.async_scheduling else Synchronous
    return kind(vllm_config=vllm_config, **arguments)
