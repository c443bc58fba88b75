"""Ends each request at its own length, in every strategy: a vLLM logits processor.

Named in the engine's arguments, `logits_processors=["harness.output_length:ForcedLength"]`, it reaches engines that
take one SamplingParams for all rows, Daft's provider included. The settings arrive as BENCH_ variables, which the
engine's process inherits.

Needs vLLM's model runner V1 (0.26 and 0.27 fall back to it by themselves when a logits processor is named; dense
models otherwise run on V2 on a GPU). To compare fixed with varying lengths on equal terms, name the processor in both.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from vllm import SamplingParams
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from harness.target_length import target_length


class Request(NamedTuple):
    """What decides when a request of the batch ends."""

    last: int  # tokens it has generated when its last one is due
    output: Sequence[int]  # the engine's own list, which grows as it generates
    end_token: int


class ForcedLength(LogitsProcessor):  # type: ignore[misc]
    """Forbids the tokens that end a request until its last one is due, then allows nothing else.

    A preempted request comes back with the tokens it had generated, so its count goes on. With asynchronous
    scheduling the latest token may still be a placeholder, but it is counted.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        self.device = device
        self.requests: dict[int, Request] = {}  # by row of the batch
        self.stop_tokens: set[int] = set()
        self.stop_columns = self._indices([])
        self.due: list[tuple[int, int]] = []  # (row, end token) of the requests whose last token is next

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if sampling_params.ignore_eos:
            raise ValueError("ForcedLength ends requests by their end token: expected ignore_eos=False, found True")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows the batch; called once a step, before its forward pass."""
        if batch_update:
            process_dict_updates(self.requests, batch_update, _request)
            self._collect_stop_tokens(batch_update)
        self.due = [(row, end) for row, (last, output, end) in self.requests.items() if len(output) >= last]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits`: float32 [requests in the batch, vocabulary], changed in place."""
        # Whole columns: a write of a few values a row, and no index to rebuild as requests come and go.
        logits.index_fill_(1, self.stop_columns, -torch.inf)
        if self.due:
            rows, end_tokens = map(self._indices, zip(*self.due, strict=True))
            logits.index_fill_(0, rows, -torch.inf)
            logits[rows, end_tokens] = 0.0
        return logits

    def _collect_stop_tokens(self, batch_update: BatchUpdate) -> None:
        tokens = self.stop_tokens.union(*(params.all_stop_token_ids for _, params, _, _ in batch_update.added))
        if tokens != self.stop_tokens:
            self.stop_tokens = tokens
            self.stop_columns = self._indices(sorted(tokens))

    def _indices(self, values: Sequence[int]) -> torch.Tensor:
        # Pinned and asynchronous: a plain copy would wait for the step that the GPU still computes.
        return async_tensor_h2d(list(values), device=self.device, dtype=torch.int64)


def _request(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Request | None:
    """None where max_tokens ends the request in time by itself."""
    if prompt is None:
        raise ValueError("ForcedLength needs prompts as token ids: found embeddings alone")
    length = target_length(prompt)
    return None if length >= params.max_tokens else Request(length - 1, output, _end_token(params))


def _end_token(params: SamplingParams) -> int:
    """The token that this request stops at; the model's own where the engine runs without a tokenizer."""
    candidates: list[int | None] = [params.eos_token_id, *sorted(params.stop_token_ids or ())]
    return next(token for token in candidates if token is not None)
