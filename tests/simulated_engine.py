"""An engine without a model, in the place of VllmEngine: requests grow by a token a step and answer with the last
token of their prompt, as echo.py does. Nothing is computed, so it shows what the driver does, not how fast."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.planning.vllm_engine import EngineLostError, RefusedError

KV_BLOCKS, BLOCK_SIZE = 2048, 16


class SimulatedEngine:
    """Set in the environment: SIMULATED_STEP_S, SIMULATED_FOLDER (each engine leaves its process's id and the names of
    the requests that it was given there), SIMULATED_BROKEN (so many engines fail to start), SIMULATED_OVERLAP (neither
    planning nor engines start until the other has begun), SIMULATED_ENGINES (none works until so many have started),
    and, as token ids, SIMULATED_REFUSED and SIMULATED_DEADLY prompts' firsts."""

    def __init__(self, _args: dict[str, Any], sampling: dict[str, Any], on_step: Callable[[int], None]) -> None:
        self.kv_blocks, self.block_size = KV_BLOCKS, BLOCK_SIZE
        self._max_tokens, self._on_step = int(sampling["max_tokens"]), on_step
        self._step_s = float(os.environ.get("SIMULATED_STEP_S", "0.01"))
        self._together = int(os.environ.get("SIMULATED_ENGINES", "1"))
        self._running: dict[str, tuple[list[int], int, asyncio.Future[list[int]]]] = {}
        self._lost = False
        folder = Path(os.environ["SIMULATED_FOLDER"])
        for number in range(int(os.environ.get("SIMULATED_BROKEN", "0"))):
            with suppress(FileExistsError):
                (folder / f"{number}.broken").touch(exist_ok=False)
                raise ValueError("the simulated engine does not start")
        if "SIMULATED_OVERLAP" in os.environ:
            (folder / f"{os.getpid()}.starting").touch()
            wait_for((folder / "planned").exists)
        (folder / f"{os.getpid()}.engine").touch()
        self._log = (folder / f"{os.getpid()}.requests").open("a", buffering=1)
        self._steps = asyncio.get_running_loop().create_task(self._step())

    async def submit(self, name: str, tokens: Sequence[int]) -> "asyncio.Future[list[int]]":
        if self._lost:
            raise EngineLostError("the simulated core was killed")
        if str(tokens[0]) == os.environ.get("SIMULATED_REFUSED"):
            raise RefusedError("the simulated engine does not like it")
        self._log.write(f"{name}\n")
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._running[name] = list(tokens), 0, answer
        return answer

    async def answer(self, submitted: "asyncio.Future[list[int]]") -> list[int]:
        return await submitted

    async def _step(self) -> None:
        while len(list(Path(os.environ["SIMULATED_FOLDER"]).glob("*.engine"))) < self._together:
            await asyncio.sleep(self._step_s)
        while not self._lost:
            await asyncio.sleep(self._step_s)
            running, first_tokens = dict(self._running), 0
            if any(str(tokens[0]) == os.environ.get("SIMULATED_DEADLY") for tokens, _, _ in running.values()):
                self._lose()
                return
            for name, (tokens, generated, answer) in running.items():
                first_tokens += generated == 0
                self._running[name] = tokens, generated + 1, answer
                if generated + 1 == self._max_tokens:
                    del self._running[name]
                    answer.set_result([tokens[-1]] * self._max_tokens)
            if running:
                self._on_step(first_tokens)
            if (Path(os.environ["SIMULATED_FOLDER"]) / f"{os.getpid()}.kill-core").exists():
                self._lose()

    def _lose(self) -> None:
        self._lost = True
        for _, _, answer in self._running.values():
            answer.set_exception(EngineLostError("the simulated core was killed"))


def wait_for(found: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
