"""The engine to which requests are handed, and whose answers are waited for, one by one."""

from types import SimpleNamespace
from typing import Any

from harness.simulation.served import Served

from vllm import AsyncEngineArgs, answer


class AsyncLLM:
    def __init__(self, args: AsyncEngineArgs, step_listeners: list[Any]) -> None:
        self._served = Served()
        # Room for everything: what an instant engine holds at a time is nothing.
        self.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=50_000))
        self._listeners = [listener(args) for listener in step_listeners]

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs, stat_loggers: list[Any]) -> "AsyncLLM":
        return cls(args, stat_loggers)

    async def add_request(self, request_id: str, prompt: Any, _params: Any) -> "Answered":
        """Answered at once, in a step of its own."""
        self._served.count(1)
        for listener in self._listeners:
            listener.record(None, SimpleNamespace(time_to_first_tokens_iter=[0.0]))
        return Answered(prompt, request_id)


class Answered:
    def __init__(self, prompt: Any, request_id: str) -> None:
        self._output = answer(prompt, request_id)

    async def get(self) -> Any:
        return self._output
