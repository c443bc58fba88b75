"""Static batches in arrival order: each engine is given 512 prompts, and the next 512 when all of them are done.

python benchmarking/vllm/naive-batch.py
"""

import config
import daft
import pyarrow as pa
from harness import batch_stats
from harness.engines import engine_args
from harness.run import run


def naive_batch() -> pa.Table:
    # In here, so that a Daft without daft.cls is refused by name before this is looked at.
    @daft.cls(max_concurrency=config.CONCURRENCY, gpus=config.GPUS_PER_ENGINE)
    class StaticBatches:
        def __init__(self) -> None:
            from vllm import LLM, SamplingParams

            self.llm = LLM(model=config.MODEL_NAME, **engine_args())
            self.sampling_params = SamplingParams(**config.SAMPLING_PARAMS)

        @daft.method.batch(return_dtype=str, batch_size=config.NAIVE_BATCH_SIZE)
        def generate(self, prompts: daft.Series) -> daft.Series:
            outputs = self.llm.generate(prompts.to_pylist(), self.sampling_params, use_tqdm=False)
            batch_stats.show(self.llm)
            return daft.Series.from_pylist([output.outputs[0].text for output in outputs])

    df = daft.read_parquet(config.INPUT_PATH).into_partitions(config.NAIVE_PARTITIONS)
    df = df.with_column("output", StaticBatches().generate(df["prompt"]))
    return df.select("id", "output").to_arrow()


if __name__ == "__main__":
    run(__file__, naive_batch)
