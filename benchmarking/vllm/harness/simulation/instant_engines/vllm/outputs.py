"""The parts of vLLM's answers that Daft, Ray Data and the scripts read."""

from dataclasses import dataclass
from typing import Any


@dataclass
class CompletionOutput:
    text: str
    token_ids: list[int]
    logprobs: Any = None
    finish_reason: str = "length"


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: Any = None
    prompt_logprobs: Any = None


class PoolingRequestOutput: ...
