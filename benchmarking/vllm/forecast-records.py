"""Records beside their forecasts: predicted against counted hit rate, floor against measured time.

    python benchmarking/vllm/forecast-records.py
    python benchmarking/vllm/forecast-records.py --datasets s3://bucket/sets --model ~/models/qwen3-8b --write

Looks for each record's dataset by name below --datasets and makes sure by its fingerprint that it is the same. --write
adds the possible hit rate, the floor and the working set to `results/bounds.jsonl`, from where the report takes them.
A run that was continued or repaired did other work than its dataset's: it is named, not forecast. Exits 1 if another
run's prediction is off by more than three percentage points, or cannot be made.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import config
from harness import overrides, record_file, stdout
from harness.comparison.comparability import disturbances
from harness.data.storage import StorageError
from harness.prediction import model_shape, prompt_set, record_forecast
from harness.prediction.model_shape import ModelShape
from harness.prediction.prompt_set import PromptSet
from harness.prediction.record_forecast import Record
from harness.report import bounds

TOLERANCE = 0.03
HEAD = (
    f"{'run':10}{'strategy':26}{'dataset':18}{'predicted':>10}{'counted':>10}{'points':>8}"
    f"{'floor':>10}{'took':>10}{'floor / took':>14}"
)


def main() -> None:
    args = _arguments()
    try:
        off = _compare(args)
    except (ValueError, OSError) as error:
        overrides.refuse(error)
    sys.exit(1 if off else 0)


def _compare(args: argparse.Namespace) -> int:
    """A line for each record that is whole; how many are off or cannot be forecast."""
    records = [record for record in record_forecast.load(args.results) if record.get("status", "ok") == "ok"]
    if not records:
        raise ValueError(f"{args.results}: expected a run that ended well, found none with status ok; run a strategy")
    if args.write:
        bounds.load(args.results)  # broken lines are known before the first is appended
    model = model_shape.read(args.model)
    print(HEAD)
    known: dict[Any, PromptSet] = {}
    off = 0
    for record in records:
        try:
            with record_forecast.whole(record):
                if reasons := disturbances(record):
                    _say_why_not(record, "; ".join(reasons))
                    continue
                prompts = _prompts(record, args, known)
                off += _show(record, prompts, model)
        except (ValueError, StorageError) as error:
            _say_why_not(record, str(error))
            off += 1
            continue
        if args.write:
            _append(record_forecast.bounds(record, prompts.data.prompts, model), args.results)
    return off


def _say_why_not(record: Record, reason: str) -> None:
    print(f"{str(record.get('run_id'))[:8]}  {record.get('strategy')!s:26}not forecast: {reason}")


def _prompts(record: Record, args: argparse.Namespace, known: dict[Any, PromptSet]) -> PromptSet:
    """The dataset of a record, kept in `known` for those that follow. Raises ValueError if it is another one."""
    knobs = record_forecast.settings(record)
    lengths = ("OUTPUT_LEN", "OUTPUT_LEN_DISTRIBUTION", "OUTPUT_LEN_MIN", "OUTPUT_LEN_MAX")
    names = (*lengths, "BLOCK_SIZE", "MAX_MODEL_LEN")
    key = (record["dataset"]["fingerprint"], *(knobs[name] for name in names))
    if key not in known:
        url = f"{args.datasets}/{_dataset_name(record)}.parquet"
        prompts = prompt_set.load(url, args.model, knobs)
        if prompts.column.fingerprint != record["dataset"]["fingerprint"]:
            wanted = record["dataset"]["fingerprint"]
            raise ValueError(f"{url}: expected fingerprint {wanted}, found {prompts.column.fingerprint}")
        known.clear()  # one dataset at a time fits in memory
        known[key] = prompts
    files, found = record["dataset"].get("files"), len(known[key].data.file_rows)
    if files not in (None, found):  # strategies read file by file: the same rows in others are fed in another order
        raise ValueError(f"{_dataset_name(record)}: expected {files} files, found {found}; make it with DATASET_FILES")
    return known[key]


def _show(record: Record, prompts: PromptSet, model: ModelShape) -> bool:
    """Prints a record's line; True if its prediction is off."""
    predicted = record_forecast.predict(record, prompts.data)
    rate = predicted.hit_rate if predicted else None
    counted = record_forecast.counted_hit_rate(record)
    difference = rate - counted if rate is not None and counted is not None else None
    floor_s = record_forecast.floor_s(record, prompts.data.prompts, model)
    took_s = record_forecast.generation_s(record)
    share = floor_s / took_s if floor_s and took_s else None
    print(
        f"{record['run_id'][:8]}  {record['strategy']:26}{_dataset_name(record):18}"
        f"{_number(rate, 10, 4)}{_number(counted, 10, 4)}{_number(difference and difference * 100, 8, 2)}"
        f"{_number(floor_s, 10, 1)}{_number(took_s, 10, 1)}{_number(share, 14, 2)}"
    )
    return difference is not None and abs(difference) > TOLERANCE


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _append(found: Record, results: Path) -> None:
    """Appends a run's bounds, unless the same are there already."""
    values = {name: value for name, value in found.items() if name != "run_id"}
    if bounds.load(results).get(found["run_id"]) == bounds.Bounds(**values):
        return
    record_file.append_line(found, results / bounds.FILE_NAME)


def _dataset_name(record: Record) -> str:
    """Records name their dataset as its path stood in config.py; the name alone finds it elsewhere."""
    return Path(record["dataset"]["name"]).name.removesuffix(".parquet")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predicted against counted hit rates, floor against measured time.")
    parser.add_argument("--results", type=Path, default=Path(config.RESULTS_PATH), help="folder of records.jsonl")
    parser.add_argument("--datasets", default=config.DATASETS_PATH, help="folder or s3:// prefix of the datasets")
    parser.add_argument("--model", default=config.MODEL_NAME, help="hub id or folder: tokenizer and config.json")
    parser.add_argument("--write", action="store_true", help="append to bounds.jsonl beside the records")
    return parser.parse_args()


if __name__ == "__main__":
    stdout.exit_after(main)
