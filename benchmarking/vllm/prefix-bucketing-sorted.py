"""Prefix bucketing in sorted order: as prefix-bucketing, after sorting by prompt.

python benchmarking/vllm/prefix-bucketing-sorted.py
"""

import config
import daft
import pyarrow as pa
from harness.engines import engine_args
from harness.run import run


def prefix_bucketing() -> pa.Table:
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
        do_prefix_routing=True,
        max_buffer_size=config.ROUTER_MAX_BUFFER_SIZE,
        min_bucket_size=config.ROUTER_MIN_BUCKET_SIZE,
        prefix_match_threshold=config.ROUTER_PREFIX_MATCH_THRESHOLD,
        load_balance_threshold=config.ROUTER_LOAD_BALANCE_THRESHOLD,
        batch_size=config.CONTINUOUS_BATCH_SIZE,
    )
    return df.with_column("output", output).select("id", "output").to_arrow()


if __name__ == "__main__":
    run(__file__, prefix_bucketing)
