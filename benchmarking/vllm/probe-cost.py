"""What watching an engine costs it: the same batches through one engine with and without the probe, in turn.

    BENCH_PROFILE=local-cpu python benchmarking/vllm/probe-cost.py --rounds 10

A round generates one batch twice, once with the probe's thread reading the engine as it does in a run and once
without, in alternating order and with an empty prefix cache each time. Prints the ratio of the seconds with its 95 %
interval, and one JSON line last.
"""

import argparse
import json
import random
import statistics
import time
from contextlib import nullcontext
from typing import Any

import config
from harness import arguments, engine_metrics, engine_probe, machine, overrides, stdout
from harness.data import dataset
from harness.data.storage import StorageError
from harness.engines import engine_args
from harness.preflight import bounds

RESAMPLES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the probe's cost.")
    parser.add_argument("--rounds", type=arguments.at_least(1), default=10)
    parser.add_argument("--prompts", type=arguments.at_least(1), default=config.NAIVE_BATCH_SIZE)
    options = parser.parse_args()
    try:
        bounds.require(vars(config))
        batch = prompts(options.prompts)
    except (ValueError, StorageError) as error:
        overrides.refuse(error)
    seconds = measure(options.rounds, batch)
    ratios = [with_probe / without for with_probe, without in seconds]
    low, high = interval(ratios)
    median = statistics.median(ratios)
    print(f"vLLM {machine.versions()['vllm']}, {options.prompts} prompts, OUTPUT_LEN {config.OUTPUT_LEN}")
    print(
        f"seconds with the probe / without: {median:.4f}, 95 % interval {low:.4f} to {high:.4f}, {len(ratios)} rounds"
    )
    conditions = {"prompts": options.prompts, "gpus": machine.gpu_names(), "versions": machine.versions()}
    knobs = overrides.knob_values(config)
    print(json.dumps({"ratio": median, "interval_95": [low, high], "seconds": seconds, **conditions, "config": knobs}))


def measure(rounds: int, batch: list[str]) -> list[tuple[float, float]]:
    """(seconds with the probe, seconds without) by round, after one round that warms the engine up."""
    from vllm import LLM

    llm = LLM(model=config.MODEL_NAME, **engine_args())
    generate(llm, batch)
    return [one_round(llm, batch, number) for number in range(rounds)]


def one_round(llm: Any, batch: list[str], number: int) -> tuple[float, float]:
    seconds = {}
    for watched_now in (True, False) if number % 2 else (False, True):
        clock = engine_metrics.Clock(llm.llm_engine, engine_metrics.counters())
        with engine_probe.watching(clock) if watched_now else nullcontext():
            seconds[watched_now] = generate(llm, batch)
    return seconds[True], seconds[False]


def generate(llm: Any, batch: list[str]) -> float:
    """Seconds for one batch from an empty prefix cache."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    started = time.perf_counter()
    llm.generate(batch, SamplingParams(**config.SAMPLING_PARAMS), use_tqdm=False)
    return time.perf_counter() - started


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % percentile interval of the median, by resampling the rounds."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def prompts(count: int) -> list[str]:
    batches = dataset.read_batches(config.INPUT_PATH, ["prompt"])
    return [prompt for batch in batches for prompt in batch["prompt"].to_pylist()][:count]


if __name__ == "__main__":
    stdout.exit_after(main)
