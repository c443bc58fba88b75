"""What prefix-planned asks of its driver: seconds to plan, memory to carry a dataset through. No engine runs.

    python benchmarking/vllm/planning-speed.py                    # plan 200,000 prompts of 512 tokens
    python benchmarking/vllm/planning-speed.py --carry 2000000    # and carry 2,000,000 short prompts through

Planned are random token ids over 512 prefixes, as one window: sorted, shared blocks counted, cut into shares for 128
engines. Carried are prompts of some 8 tokens, read from Parquet, tokenised in Ray tasks, planned window by window and
answered with 8 tokens each by nobody: all that the driver holds but what is on its way to engines. Each in a process
of its own; adds a line to RESULTS_PATH/planning-speed.jsonl.
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import config
import numpy as np
from harness import arguments, machine, overrides, record_file, stdout
from harness.preflight import bounds, disk

PREFIXES, PREFIX_LEN, ENGINES = 512, 256, 128
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
ANSWER_LEN, FILE_ROWS = 8, 250_000

Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="What prefix-planned asks of its driver.")
    parser.add_argument("--rows", type=arguments.at_least(1), default=200_000, help="prompts to plan")
    parser.add_argument(
        "--tokens", type=arguments.at_least(PREFIX_LEN), default=512, help="tokens of each, 256 of them shared"
    )
    parser.add_argument(
        "--carry", type=arguments.at_least(0), default=0, metavar="ROWS", help="short prompts to carry through"
    )
    options = parser.parse_args()
    results = Path(config.RESULTS_PATH)
    try:
        bounds.require(overrides.knob_values(config))
    except ValueError as error:
        overrides.refuse(error)
    disk.require_results()
    conditions = {"cpus": os.cpu_count(), "versions": machine.versions()}
    record = {"schema": 1, **conditions, "planned": _apart(planned, options.rows, options.tokens)}
    print("planned {rows:,} prompts of {tokens} tokens in {plan_s:.1f} s, {peak_memory_bytes:,} bytes".format(
        **record["planned"]
    ))  # fmt: skip
    if options.carry:
        record["carried"] = _apart(carried, options.carry)
        print("carried {rows:,} prompts through in {carry_s:.0f} s, {peak_memory_bytes:,} bytes".format(
            **record["carried"]
        ))  # fmt: skip
    record_file.append_line(record, results / "planning-speed.jsonl")


def _apart(measure: Any, *arguments: int) -> Record:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found: Record = pool.submit(measure, *arguments).result()
    return found


def planned(rows: int, tokens: int) -> Record:
    import pyarrow as pa
    from harness.planning import queues, window

    draw = np.random.default_rng(config.DATASET_SEED)
    ids = draw.integers(0, 150_000, (rows, tokens), dtype=np.int32)
    ids[:, :PREFIX_LEN] = ids[draw.permutation(rows) % PREFIXES, :PREFIX_LEN]
    given = window.Tokenized(pa.array(np.arange(rows)), ids.ravel(), np.full(rows, tokens))
    started = time.perf_counter()
    plan = window.plan(0, given, config.BLOCK_SIZE, config.OUTPUT_LEN)
    shares = queues.shares(plan, ENGINES)
    plan_s = time.perf_counter() - started
    assert sum(share.rows for share in shares) == rows
    return {"rows": rows, "tokens": tokens, "plan_s": plan_s, "groups": len(plan.groups), **_memory()}


def carried(rows: int) -> Record:
    with tempfile.TemporaryDirectory() as folder:
        config.INPUT_PATH = _short_prompts(rows, Path(folder) / "short.parquet")
        return _carry(rows)


def _carry(rows: int) -> Record:
    import ray
    from harness import cluster
    from harness.planning.answers import Answers
    from harness.planning.engine_actor import Rows
    from harness.planning.reading import windows

    cluster.connect()
    started = time.perf_counter()
    answers = Answers()
    for window in windows(without=answers.done):
        for begin in range(0, len(window), 8192):
            count = min(8192, len(window) - begin)
            tokens = np.ones(count * ANSWER_LEN, np.int32)
            answers.add(window.ids[begin : begin + count], Rows(tokens[:count], tokens, np.full(count, ANSWER_LEN)))
            answers.flush()
    assert len(answers.table()) == rows
    carry_s = time.perf_counter() - started
    ray.shutdown()
    return {"rows": rows, "carry_s": carry_s, **_memory()}


def _short_prompts(rows: int, folder: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    draw = np.random.default_rng(config.DATASET_SEED)
    for begin in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - begin)
        prompts = [" ".join(WORDS[i] for i in row) for row in draw.integers(0, len(WORDS), (count, 8))]
        table = pa.table({"id": np.arange(begin, begin + count), "prompt": prompts})
        pq.write_table(table, folder / f"{begin}.parquet")
    return str(folder)


def _memory() -> Record:
    return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    stdout.exit_after(main)
