"""How many rows a second each strategy's own orchestration carries, with engines that answer at once (simulated).

    python benchmarking/vllm/orchestration-speed.py
    python benchmarking/vllm/orchestration-speed.py --engines 1 4 --rows 8192 --strategies naive-batch

The scripts, Daft and Ray run as they are, on this machine; in the workers, `vllm` is a stand-in that answers every
prompt with the same 128 words (harness/simulation/instant_engines). So a rate is an upper limit of what the strategy
could feed, on this machine's cores, and says nothing about inference. Ray Data's tokenising is left out, since it is an
engine's in Daft's strategies; prefix-planned tokenises before its engines have anything to do. Each case runs in a
process of its own; a line for each goes to `orchestration-speed.jsonl`.

    rows/s    rows that reach engines, from when all are ready until the last row is there. Daft builds the engine of a
              static batch when its first batch comes: with fewer batches than engines, some are never built
    collect   seconds from then until all rows are back in the driver
    driver    CPU seconds of the driver's process from its first call to the last row, start-up of engines included. It
              is what stays on one machine however many others there are; the difference between two runs that differ
              in rows alone is the rows' share of it. Daft plans and routes in actors, which are not in it
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import config
from harness import arguments, machine, overrides, record_file, stdout
from harness.data import generator, local_model
from harness.data.prompts import Shape
from harness.preflight import bounds, disk
from harness.simulation import served

LOCAL = overrides.SUITE_DIR.parents[1] / ".local"
INSTANT = overrides.SUITE_DIR / "harness" / "simulation" / "instant_engines"
STRATEGIES = ("naive-batch", "continuous-batch", "prefix-bucketing", "ray-data", "prefix-planned")
ENGINES = (1, 4, 16, 64)
TIMEOUT_S = 600
EXIT_FAILED = 2  # as of a run that did not end
# Ray and Daft print lines of their own.
MARK = "carried: "
# More than any machine has cores: Ray's CPUs are logical, and every actor and stage wants its own.
RAY_CPUS = 512


def main() -> None:
    args = _arguments()
    # So that a case that is stopped stops its own process, and Ray with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    if args.child:
        print(MARK, json.dumps(_carry(*args.child)), sep="")
        return
    try:
        bounds.require(overrides.knob_values(config))
    except ValueError as error:
        overrides.refuse(error)
    disk.require_results()
    dataset = _dataset(args.rows)
    print("engines that answer at once: simulated")
    print(f"{'strategy':20}{'engines':>8}{'rows':>9}{'rows/s':>10}{'collect s':>11}{'driver s':>10}")
    for engines in args.engines:
        for strategy in args.strategies:
            try:
                found = _measure(strategy, engines, args.rows, dataset)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"failed: {strategy}, {engines} engines: {error}. Lines before it are kept", file=sys.stderr)
                sys.exit(EXIT_FAILED)
            record_file.append_line(found, Path(config.RESULTS_PATH) / "orchestration-speed.jsonl")
            print(
                f"{strategy:20}{found['engines']:>8}{found['rows']:>9,}{found['rows_per_s']:>10,.0f}"
                f"{found['collect_s']:>11.1f}{found['driver_cpu_s']:>10.1f}"
            )


def _dataset(rows: int) -> str:
    """Prompts of 512 tokens over 512 prefixes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(local_model.make(LOCAL / "model"))
    folder = f"{LOCAL}/orchestration"
    return f"{folder}/{generator.make(Shape(rows, min(512, rows), 256, 256), tokenizer, folder)['name']}.parquet"


def _measure(strategy: str, engines: int, rows: int, dataset: str) -> dict[str, Any]:
    """One case in a process of its own, with Ray and all."""
    folder = Path(tempfile.mkdtemp()) / str(time.time())
    folder.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{INSTANT}:{overrides.SUITE_DIR}",
        served.FOLDER: str(folder),
        "RAY_ADDRESS": "local",
        "HF_HUB_OFFLINE": "1",
        "BENCH_MODEL_NAME": str(LOCAL / "model"),
        "BENCH_INPUT_PATH": dataset,
        "BENCH_CONCURRENCY": str(engines),
        "BENCH_GPUS_PER_ENGINE": "0",
        # As many rows a block as config.py gives to the published sets.
        "BENCH_RAY_BLOCKS": str(max(rows * config.RAY_BLOCKS // config.DATASET_ROWS, engines)),
        # Instant engines have no steps by which prefix-planned could pace its prompts.
        "BENCH_PLANNED_PACE": "0",
    }
    command = [sys.executable, __file__, "--child", strategy, str(folder)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    finally:
        kept = list(folder.iterdir()) and served.summary(folder)
        shutil.rmtree(folder.parent)
    if done.returncode or not kept:
        raise RuntimeError(f"{strategy} on {engines} instant engines failed:\n{done.stderr[-3000:]}")
    child = json.loads(next(line for line in done.stdout.splitlines() if line.startswith(MARK)).removeprefix(MARK))
    if child["rows"] != rows:
        raise RuntimeError(f"expected {rows:,} rows back, found {child['rows']:,}; rows that are lost cost no time")
    seconds = kept.last_row_s - kept.ready_s
    return {
        "schema": 1,
        "engines_are": "instant (simulated)",
        "strategy": strategy,
        "engines": kept.engines,
        "engines_asked": engines,
        "rows": child["rows"],
        "rows_per_s": kept.rows_after_ready / seconds,
        "carrying_s": seconds,
        "collect_s": child["ended_at"] - float(folder.name) - kept.last_row_s,
        "driver_cpu_s": child["driver_cpu_s"],
        "cpus": os.cpu_count(),
        "versions": machine.versions(),
    }


def _carry(strategy: str, _folder: str) -> dict[str, Any]:
    """In the child: the strategy's own function, on a Ray of its own."""
    import daft
    import ray

    ray.init(address="local", num_cpus=RAY_CPUS, include_dashboard=False, log_to_driver=False)
    daft.set_runner_ray()
    ray.data.DataContext.get_current().enable_progress_bars = False
    if strategy == "ray-data":
        _leave_out_tokenising()
    specification = importlib.util.spec_from_file_location("strategy", overrides.SUITE_DIR / f"{strategy}.py")
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    before_s = time.process_time()
    table = getattr(script, strategy.replace("-", "_"))()
    ended_at, driver_cpu_s = time.time(), time.process_time() - before_s
    if len(table) != len(set(table["id"].to_pylist())):
        raise RuntimeError("expected each row once, found some doubled")
    return {"rows": len(table), "ended_at": ended_at, "driver_cpu_s": driver_cpu_s}


def _leave_out_tokenising() -> None:
    from functools import partial

    import ray.data.llm as ray_llm

    ray_llm.vLLMEngineProcessorConfig = partial(
        ray_llm.vLLMEngineProcessorConfig, tokenize_stage=False, detokenize_stage=False
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Rows a second that orchestration carries, with instant engines.")
    parser.add_argument("--engines", type=arguments.at_least(1), nargs="+", default=ENGINES)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--rows", type=arguments.at_least(1), default=32_768)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    stdout.exit_after(main)
