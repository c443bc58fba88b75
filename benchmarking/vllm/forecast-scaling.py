"""How time and memory of a forecast grow with the dataset.

    python benchmarking/vllm/forecast-scaling.py                  # 50,000, 200,000 and 800,000 prompts of 512 tokens
    python benchmarking/vllm/forecast-scaling.py 50000 200000

Prompts over 512 prefixes, made for the local model's tokenizer; eight engines with the KV cache that Qwen3-8B leaves on
an H200. Each size is measured in a process of its own: reading, tokenising (near 0 where the tokens are kept from an
earlier run), planning (sorting the texts, numbering the blocks) and the study (all strategies at five KV capacities and
three engine counts). Adds a line a size to `results/forecast-scaling.jsonl`.
"""

import argparse
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import config
from harness import arguments, overrides, record_file, stdout
from harness.data import local_model
from harness.prediction import gpus, model_shape, prefix_tree, prompt_set, study
from harness.preflight import disk

LOCAL = overrides.SUITE_DIR.parents[1] / ".local"
SIZES = (50_000, 200_000, 800_000)
PREFIXES, PREFIX_LEN, SUFFIX_LEN = 512, 256, 256
ENGINES, KV_TOKENS = 8, 735_000


def main() -> None:
    sizes = _arguments()
    disk.require_results()
    local_model.make(LOCAL / "model")
    results = Path(config.RESULTS_PATH)
    records: list[dict[str, Any]] = []
    # Spawned, one a size: memory and compiled code of one do not help or burden the next.
    for rows in sizes:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            url = pool.apply(make, (rows,))
            records.append(pool.apply(measure, (url,)))
        record_file.append_line(records[-1], results / "forecast-scaling.jsonl")
        print(_line(records[-1], records[0]))


def make(rows: int) -> str:
    """The dataset of this size, made unless it is there."""
    from harness.data import generator
    from harness.data.prompts import Shape
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(LOCAL / "model")
    folder = str(LOCAL / "forecast-scaling")
    manifest = generator.make(Shape(rows, PREFIXES, PREFIX_LEN, SUFFIX_LEN), tokenizer, folder)
    return f"{folder}/{manifest['name']}.parquet"


def measure(url: str) -> dict[str, Any]:
    """Seconds of each part and the most memory that the process held."""
    model_folder = str(LOCAL / "model")
    knobs = overrides.knob_values(config) | {"CONCURRENCY": ENGINES}
    prompts = prompt_set.load(url, model_folder, knobs)
    started = time.perf_counter()
    profile = prefix_tree.profile(prompts.data)
    done = study.run(prompts, knobs, model_shape.read(model_folder), gpus.find("H200"), KV_TOKENS)
    study_s = time.perf_counter() - started
    return {
        "schema": 1,
        "rows": profile.rows,
        "tokens": profile.tokens,
        "read_s": prompts.read_s,
        "tokenize_s": prompts.tokenize_s,
        "plan_s": prompts.plan_s,
        "study_s": study_s,
        "after_tokenizing_s": prompts.plan_s + study_s,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "replays": len(done.results) * (1 + len(done.changes)),
        "cpus": os.cpu_count(),
    }


def _line(record: dict[str, Any], first: dict[str, Any]) -> str:
    growth = record["after_tokenizing_s"] / first["after_tokenizing_s"] / (record["rows"] / first["rows"])
    return (
        f"{record['rows']:>9,} prompts: read {record['read_s']:.1f} s, tokenise {record['tokenize_s']:.1f} s, "
        f"plan {record['plan_s']:.1f} s, {record['replays']} replays {record['study_s']:.1f} s, "
        f"{record['peak_memory_bytes'] / 1e9:.2f} GB; {growth:.2f} of linear growth"
    )


def _arguments() -> list[int]:
    parser = argparse.ArgumentParser(description="How time and memory of a forecast grow with the dataset.")
    parser.add_argument("rows", type=arguments.at_least(1), nargs="*", default=SIZES, help="sizes of the datasets")
    return list(parser.parse_args().rows)


if __name__ == "__main__":
    stdout.exit_after(main)
