"""Continuous batching in sorted order: as continuous-batch, after sorting by prompt.

python benchmarking/vllm/continuous-batch-sorted.py
"""

import config
import daft
import pyarrow as pa
from harness.engines import engine_args
from harness.run import run


def continuous_batch() -> pa.Table:
    from daft.functions import prompt
    from vllm import SamplingParams

    df = daft.read_parquet(config.INPUT_PATH).into_partitions(config.CONTINUOUS_PARTITIONS)
    df = df.sort("prompt")
    output = prompt(
        df["prompt"],
        provider="vllm-prefix-caching",
        model=config.MODEL_NAME,
        engine_args=engine_args(),
        generate_args={"sampling_params": SamplingParams(**config.SAMPLING_PARAMS)},
        concurrency=config.CONCURRENCY,
        gpus_per_actor=config.GPUS_PER_ENGINE,
        do_prefix_routing=False,
        batch_size=config.CONTINUOUS_BATCH_SIZE,
    )
    return df.with_column("output", output).select("id", "output").to_arrow()


if __name__ == "__main__":
    run(__file__, continuous_batch)
