"""vLLM's AsyncLLM (0.26 and 0.27) as the planner uses it: token ids in, token ids out, one message a request and a
call at the end of each step."""

from collections.abc import Callable, Sequence
from typing import Any

import config

OnStep = Callable[[int], None]  # takes the number of requests that had their first token in the step


class RefusedError(Exception):
    """The engine does not take this request; others go on."""


class EngineLostError(Exception):
    """The engine's core is gone, and every request in it."""


class VllmEngine:
    """Built in the event loop that will use it."""

    def __init__(self, args: dict[str, Any], sampling: dict[str, Any], on_step: OnStep) -> None:
        from vllm import AsyncEngineArgs, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        # The text is made elsewhere, and nobody reads a request's tokens before it has ended.
        self._params = SamplingParams(**sampling, output_kind=RequestOutputKind.FINAL_ONLY, detokenize=False)
        engine_args = AsyncEngineArgs(model=config.MODEL_NAME, **args)
        self._llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=[_step_listener(on_step)])
        cache = self._llm.vllm_config.cache_config
        self.block_size = int(cache.block_size)
        # Without the null block, which vLLM keeps for itself.
        self.kv_blocks = int(cache.num_gpu_blocks) - 1

    async def submit(self, name: str, tokens: Sequence[int]) -> Any:
        """Hands a request over; requests are queued in the order of these calls. Raises RefusedError or
        EngineLostError."""
        from vllm import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return await self._llm.add_request(name, TokensPrompt(prompt_token_ids=list(tokens)), self._params)
        except EngineDeadError as error:
            raise EngineLostError(str(error)) from error
        except ValueError as error:
            raise RefusedError(str(error)) from error

    async def answer(self, submitted: Any) -> Sequence[int]:
        """The request's output tokens, once it has ended. Raises as `submit`."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            output = (await submitted.get()).outputs[0]
        except EngineDeadError as error:
            raise EngineLostError(str(error)) from error
        if output.finish_reason not in ("length", "stop"):
            raise RefusedError(f"ended by {output.finish_reason!r}")
        tokens: Sequence[int] = output.token_ids
        return tokens


def _step_listener(on_step: OnStep) -> Any:
    """vLLM calls its loggers once a step that generated something, before the requests that ended in it are woken."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepListener(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:  # noqa: ARG002
            if iteration_stats is not None:
                on_step(len(iteration_stats.time_to_first_tokens_iter))

        def log_engine_initialized(self) -> None: ...

    return StepListener
