"""Instant engines behind each peer's own, unpatched code, in a process: `python instant_engines.py FOLDER`."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import vllm
from harness.simulation import served


async def planned() -> int:
    from harness.planning.vllm_engine import VllmEngine

    engine = VllmEngine({}, {"max_tokens": 4}, lambda _: None)
    return len(await engine.answer(await engine.submit("a", [1, 2, 3])))


async def ray_data() -> int:
    from ray.llm._internal.batch.stages.vllm_engine_stage import vLLMEngineWrapper

    engine = vLLMEngineWrapper(
        idx_in_batch_column="i", model="m", model_source="m", log_engine_metrics=False, max_num_seqs=64
    )
    row: dict[str, Any] = {"i": 0, "prompt": "hello", "sampling_params": {"max_tokens": 4}}
    _, answer, _ = await engine.generate_async(row)
    return int(answer["num_generated_tokens"])


def daft_provider() -> int:
    from daft.execution.vllm import LocalVLLMExecutor
    from daft.recordbatch import RecordBatch

    executor = LocalVLLMExecutor("m", {}, {})
    executor.submit("", ["a", "b"], RecordBatch.from_pydict({"id": [1, 2]}))
    executor.finished_submitting()
    while not executor.completed_tasks:
        time.sleep(0.01)
    time.sleep(0.1)
    polled = executor.poll()
    assert executor.all_tasks_finished()
    return len(polled[0]) if polled else 0


def static_batches() -> int:
    return len(vllm.LLM(model="m").generate(["a", "b", "c"], vllm.SamplingParams(max_tokens=4)))


def main() -> None:
    answered = [asyncio.run(planned()), asyncio.run(ray_data()), daft_provider(), static_batches()]
    print(json.dumps([answered, list(served.summary(Path(sys.argv[1])))]))


if __name__ == "__main__":
    main()
