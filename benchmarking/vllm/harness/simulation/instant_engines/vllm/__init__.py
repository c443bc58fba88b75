"""A stand-in for vLLM whose engines answer at once, to see what a strategy's own orchestration carries.

Put the folder above this one first on PYTHONPATH, and the peers' unpatched code builds these engines instead of vLLM's.
No result of a run with them says anything about inference.
"""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from harness.simulation.served import Served

from vllm import outputs
from vllm.inputs.llm import TokensPrompt
from vllm.outputs import CompletionOutput, RequestOutput

__version__ = "0.27.0+instant"
# As long as 128 generated tokens, so that as much travels back as from a real engine.
ANSWER, TOKENS = "word " * 128, range(128)


def answer(prompt: Any, request_id: str) -> RequestOutput:
    text = prompt if isinstance(prompt, str) else prompt.get("prompt")
    return RequestOutput(request_id, text, [0], [CompletionOutput(ANSWER, list(TOKENS))])


class SamplingParams:
    def __init__(self, **_params: Any) -> None: ...


class LLM:
    def __init__(self, **_engine_args: Any) -> None:
        self.llm_engine = self
        self._served = Served()

    def generate(self, prompts: list[Any], *_: Any, **__: Any) -> list[RequestOutput]:
        self._served.count(len(prompts))
        return [answer(prompt, str(number)) for number, prompt in enumerate(prompts)]

    def do_log_stats(self) -> None: ...


class AsyncEngineArgs:
    def __init__(self, **args: Any) -> None:
        self._max_num_seqs = args.get("max_num_seqs") or 1024

    def create_engine_config(self) -> Any:
        scheduler = SimpleNamespace(max_num_seqs=self._max_num_seqs)
        return SimpleNamespace(scheduler_config=scheduler, parallel_config=SimpleNamespace(pipeline_parallel_size=1))


class AsyncLLMEngine:
    def __init__(self) -> None:
        self._served = Served()

    @classmethod
    def from_engine_args(cls, _args: AsyncEngineArgs, **_: Any) -> "AsyncLLMEngine":
        return cls()

    async def generate(
        self, prompt: Any, _params: Any = None, request_id: str = "", **_: Any
    ) -> AsyncIterator[RequestOutput]:
        self._served.count(1)
        yield answer(prompt, request_id)

    async def do_log_stats(self) -> None: ...

    async def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


__all__ = ["LLM", "AsyncEngineArgs", "AsyncLLMEngine", "SamplingParams", "TokensPrompt", "answer", "outputs"]
