"""Fits the simulation to the records, and predicts each record from all others.

    BENCH_RESULTS_PATH=results python benchmarking/vllm/calibrate-simulation.py
    BENCH_RESULTS_PATH=results python benchmarking/vllm/calibrate-simulation.py --write
    python benchmarking/vllm/calibrate-simulation.py --datasets s3://bucket/sets --model ~/models/qwen3-8b --write

Needs neither a GPU nor the datasets: what engines react to of them lies beside the committed records. With --datasets,
what is missing is made from the dataset. --write keeps the fit in `calibration.json`, from where simulate.py takes it.

Prints for each record the measured seconds, those of the fit on all records ("fitted"), and those of a fit on all
others ("predicted"). Records that are newer than the kept fit stay out of both; the kept fit predicts them, below. Runs
with a logits processor (varying output lengths) are predicted, but in no fit. Exits 1 if the predicted steady time of
another run is off by more than 15 %.
"""

import argparse
import json
import sys
from pathlib import Path

import config
from harness import overrides, stdout
from harness.data.storage import StorageError
from harness.prediction import record_forecast
from harness.simulation import calibration, fitting
from harness.simulation.calibration import Calibration, Run
from harness.simulation.outcome import Outcome

TOLERANCE = 0.15
HEAD = (
    f"{'run':10}{'strategy':25}{'engines':>8}{'KV tokens':>11}{'steady s':>10}{'fitted':>9}{'predicted':>11}{'off':>8}"
    f"{'tail s':>9}{'predicted':>11}{'hit rate':>10}{'predicted':>11}{'preempted':>11}{'predicted':>11}"
)


def main() -> None:
    args = _arguments()
    try:
        off = _calibrate(args)
    except (ValueError, OSError, StorageError) as error:
        overrides.refuse(error)
    sys.exit(max(off) > TOLERANCE)


def _calibrate(args: argparse.Namespace) -> list[float]:
    """Prints all that is compared; by how much each run's steady time is off."""
    found = calibration.load(args.results, args.datasets, args.model)
    # What is written anew need not be readable.
    kept = None if args.write or not (args.results / calibration.FILE_NAME).exists() else calibration.read(args.results)
    newer = [run for run in found if run.plain and kept and run.record["run_id"] not in kept.runs]
    # Those that the kept fit does not know are its test, unless they are to be part of it.
    runs = [run for run in found if run not in newer]
    if sum(run.plain for run in runs) == 1:
        raise ValueError("expected two runs or more, each to be predicted from the others, found one; record another")
    readings = {reading: calibration.calibrate(runs, args.results, reading) for reading in fitting.READINGS}
    for reading, efficiency in readings.items():
        print(f"{reading:10}", ", ".join(f"{name} {value:.4g}" for name, value in efficiency._asdict().items()))
    print(HEAD)
    off = []
    for number, run in enumerate(runs):
        others = [*runs[:number], *runs[number + 1 :]]
        fitted = calibration.predict(run, readings["attention"])
        without = calibration.calibrate(others, args.results, near=readings["attention"])
        predicted = calibration.predict(run, without)
        off += [abs(_off(run, predicted))] if run.plain else []
        print(_line(run, fitted, predicted))
    print(f"{len(off)} runs, each predicted from the others: the worst steady time is off by {max(off):.1%}")
    if kept and newer:
        off += _foretell(newer, kept)
    if args.write:
        text = json.dumps(calibration.as_json(runs, readings), indent=1)
        (args.results / calibration.FILE_NAME).write_text(text + "\n")
    return off


def _foretell(newer: list[Run], kept: Calibration) -> list[float]:
    """The kept fit on runs that were made after it: the strictest test that there is."""
    off = []
    for run in newer:
        foretold = calibration.predict(run, kept.readings["attention"])
        off.append(abs(_off(run, foretold)))
        print(_line(run, foretold, foretold))
    print(f"{len(off)} runs newer than the kept fit, foretold by it: the worst steady time is off by {max(off):.1%}")
    return off


def _off(run: Run, predicted: Outcome) -> float:
    return predicted.phases_s["steady"] / float(run.record["phases_s"]["steady"]) - 1


def _line(run: Run, fitted: Outcome, predicted: Outcome) -> str:
    record, phases = run.record, run.record["phases_s"]
    blocks = record["engines"][0]["settings"]["num_gpu_blocks"] - 1
    return (
        f"{record['run_id'][:8]}  {record['strategy']:25}{len(record['engines']):>8}"
        f"{blocks * run.dataset.prompts.block_size:>11,}{phases['steady']:>10.1f}{fitted.phases_s['steady']:>9.1f}"
        f"{predicted.phases_s['steady']:>11.1f}{_off(run, predicted):>8.1%}"
        f"{phases['tail']:>9.1f}{predicted.phases_s['tail']:>11.1f}"
        f"{record_forecast.counted_hit_rate(record):>10.4f}{predicted.hit_rate:>11.4f}"
        f"{record['counters']['preemptions']:>11}{predicted.preemptions:>11}{'' if run.plain else '  not in the fit'}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fits the simulation to records and predicts each from the others.")
    parser.add_argument("--results", type=Path, default=Path(config.RESULTS_PATH), help="folder of records.jsonl")
    parser.add_argument("--datasets", help="folder or s3:// prefix of datasets whose structure is not kept yet")
    parser.add_argument("--model", help="folder or hub id of their tokenizer")
    parser.add_argument("--write", action="store_true", help="keep the fit in calibration.json")
    return parser.parse_args()


if __name__ == "__main__":
    stdout.exit_after(main)
