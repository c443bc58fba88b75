"""How fast are prompts made: this suite's sampler and vLLM's, with the same tokenizer, in one run.

    python benchmarking/vllm/sampler-speed.py
    BENCH_MODEL_NAME=../../.local/model python benchmarking/vllm/sampler-speed.py --rows 2000 --prefixes 64

`words` and `published` end with the prompts as Python strings in memory. `words` includes what makes its lengths exact:
finding the words in the vocabulary and encoding a sample of the prompts. `words, written` is the whole way to a dataset
on disk: the same, then fingerprint, Parquet files and manifest. Loading the tokenizer and imports are in none.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import config
from harness import arguments, overrides, stdout
from harness.data import generator, prompts
from harness.data.prompts import Shape

# Imported here so that no import falls within a measured time.
from vllm.benchmarks.datasets import PrefixRepetitionRandomDataset


def words(shape: Shape, tokenizer: Any) -> int:
    """Prompts of the suite's sampler as strings in memory; returns their number."""
    texts: list[str] = []
    for batch in prompts.sample(shape, prompts.words(tokenizer), config.DATASET_FILES):
        generator.check_lengths(batch, tokenizer, generator.CHECKED_PER_FILE)
        texts += batch.column("prompt").to_pylist()
    return len(texts)


def words_written(shape: Shape, tokenizer: Any) -> int:
    """A whole dataset in a temporary folder; returns its rows."""
    with tempfile.TemporaryDirectory() as folder:
        rows: int = generator.make(shape, tokenizer, folder)["rows"]
    return rows


def published(shape: Shape, tokenizer: Any) -> int:
    """Prompts of vLLM's sampler as strings in memory; returns their number."""
    sampler = PrefixRepetitionRandomDataset(random_seed=shape.seed)
    lengths = {"prefix_len": shape.prefix_len, "suffix_len": shape.suffix_len, "num_prefixes": shape.prefixes}
    return len([request.prompt for request in sampler.sample(tokenizer, shape.rows, **lengths)])


def measure(make_prompts: Callable[[Shape, Any], int], shape: Shape, tokenizer: Any) -> dict[str, Any]:
    """Wall seconds of one call and the rows that it made."""
    start = time.perf_counter()
    rows = make_prompts(shape, tokenizer)
    return {"wall_s": time.perf_counter() - start, "rows": rows}


def main() -> None:
    """Measures all three, prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description="Compare the speed of the two prompt samplers.")
    parser.add_argument("--rows", type=arguments.at_least(1), default=20_000)
    parser.add_argument("--prefixes", type=arguments.at_least(1), default=512)
    args = parser.parse_args()
    try:
        shape = Shape(args.rows, args.prefixes, prefix_len=256, suffix_len=256)
        tokenizer = generator.load_tokenizer()
    except ValueError as error:
        overrides.refuse(error)
    arms = {"words": words, "words, written": words_written, "published": published}
    results = {}
    for name, arm in arms.items():
        print(f"{name} ...", file=sys.stderr)
        results[name] = measure(arm, shape, tokenizer)
    conditions = {
        "shape": vars(shape),
        "tokenizer": generator.request(shape, tokenizer, "words")["tokenizer"],
        "cpus": os.cpu_count(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in ("numpy", "pyarrow", "tokenizers", "transformers")},
    }
    report(conditions, results)


def report(conditions: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    """A table for people, then one JSON line; the factor compares seconds a prompt."""
    for name, value in conditions.items():
        print(f"{name}: {value}")
    cost = {name: result["wall_s"] / result["rows"] for name, result in results.items()}
    print(f"\n{'sampler':<16}{'rows':>8}{'seconds':>10}{'prompts/s':>12}{'factor':>8}")
    for name, result in results.items():
        factor = cost["published"] / cost[name]
        print(f"{name:<16}{result['rows']:>8}{result['wall_s']:>10.2f}{1 / cost[name]:>12.0f}{factor:>8.1f}")
    print("\n" + json.dumps({**conditions, "results": results}))


if __name__ == "__main__":
    stdout.exit_after(main)
