"""A vLLM logits processor for tests: every request answers with the last token of its own prompt, again and again, so
that an answer shows which prompt it belongs to."""

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class Echo(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        self.last_tokens: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.last_tokens, batch_update, lambda _params, prompt, _output: prompt[-1])

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, token in self.last_tokens.items():
            logits[row] = -torch.inf
            logits[row, token] = 0.0
        return logits
