"""Ray Data: its vLLM processor over the same prompts, tokenised in a stage of its own, on a fixed pool of engines.

python benchmarking/vllm/ray-data.py
"""

from typing import Any

import config
import pyarrow as pa
import ray
from harness.data import dataset, storage
from harness.engines import engine_args
from harness.run import run


def request(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "prompt": row["prompt"], "sampling_params": dict(config.SAMPLING_PARAMS)}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "output": row["generated_text"], "output_tokens": row["num_generated_tokens"]}


def ray_data() -> pa.Table:
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    engine_share = max(config.RAY_BLOCKS // config.CONCURRENCY, 1)
    engines = vLLMEngineProcessorConfig(
        model_source=config.MODEL_NAME,
        engine_kwargs=engine_args(),
        concurrency=(config.CONCURRENCY, config.CONCURRENCY),
        batch_size=config.RAY_BATCH_SIZE,
        max_concurrent_batches=config.RAY_MAX_CONCURRENT_BATCHES,
        max_tasks_in_flight_per_actor=min(config.RAY_MAX_CONCURRENT_BATCHES, engine_share),
        chat_template_stage=False,
        log_engine_metrics=False,
        placement_group_config={"bundle_per_worker": {"CPU": 1, "GPU": min(config.GPUS_PER_ENGINE, 1)}},
    )
    processor = build_processor(engines, preprocess=request, postprocess=answer)
    files, path = storage.filesystem(config.INPUT_PATH)
    # By the last two it reads `id` and `prompt` alone, as the others do. Without, it fails on faults of any other
    # column, and below a folder named prompt=v2 every prompt is "v2".
    rows = ray.data.read_parquet(path, filesystem=files, schema=dataset.schema(config.INPUT_PATH), partitioning=None)
    return pa.Table.from_pylist(processor(rows.repartition(config.RAY_BLOCKS)).take_all())


if __name__ == "__main__":
    run(__file__, ray_data)
