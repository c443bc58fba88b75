"""Runs strategies side by side and says who wins, by how much, and how sure that is.

    python benchmarking/vllm/compare.py                              # all strategies, INPUT_PATH, 3 trials
    python benchmarking/vllm/compare.py --strategies naive-batch ray-data --datasets a.parquet b.parquet --trials 5
    python benchmarking/vllm/compare.py --report                     # the report again, from the records alone
    python benchmarking/vllm/compare.py --check                      # every record against the format

Each trial is a block of fresh processes in random order; one strategy runs twice in it (A/A), which shows the noise.
The same command continues an interrupted comparison and repeats nothing finished, as long as the data is the same; more
--trials add to it, --new starts another. Exit code 0: all runs are valid; 1: one is not; 3: refused, or runs were
refused and are left to do.
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

import config
from harness import overrides, record_file, records, remote_records, schema, stdout
from harness.comparison import effects, launcher, replacement, trials
from harness.comparison.progress import Progress
from harness.comparison.refusals import Refusals
from harness.comparison.trials import Trial
from harness.preflight import PreflightError, disk
from harness.report import page

RESULTS = Path(config.RESULTS_PATH)
SUITE = Path(__file__).resolve().parent


def main() -> int:
    if remote_records.is_remote(config.RESULTS_PATH):
        print(
            f"expected a local RESULTS_PATH, found {config.RESULTS_PATH}: fetch those records first with "
            f"python -m harness.remote_records {config.RESULTS_PATH}",
            file=sys.stderr,
        )
        return overrides.REFUSED
    options = _options()
    try:
        if options.check:
            return check()
        if options.report:
            return report()
        return compare(options)
    except (PreflightError, record_file.ResultsError, TimeoutError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return overrides.REFUSED
    except record_file.RecordError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"refused: {error}. Mend it; the same command does what is left", file=sys.stderr)
        return overrides.REFUSED
    except KeyboardInterrupt:
        print("\ninterrupted; the same command continues with the run that was cut short", file=sys.stderr)
        return 130


def compare(options: argparse.Namespace) -> int:
    """Runs what is left of the comparison and reports; non-zero when one of its runs did not end in a valid result."""
    if unwritable := list(disk.results()):
        raise PreflightError(unwritable)
    with launcher.exclusive(RESULTS, config.TRIAL_TIMEOUT_S) as lock:
        record_file.set_aside_half_line(RESULTS)
        planned, todo = plan(options)
        runs = launcher.Launcher(RESULTS, lock, config.TRIAL_TIMEOUT_S, _interrupts())
        refused = _run(todo, runs, Progress(planned, todo))
    if refused == len(planned):
        return _left_to_do(refused, planned)
    report(planned[0].comparison)
    if refused:
        return _left_to_do(refused, planned)
    known = record_file.load(RESULTS)
    return int(not all(trials.find(trial, known, only_ok=True) for trial in planned))


def _run(todo: list[Trial], runs: launcher.Launcher, progress: Progress) -> int:
    """Runs one trial after another; returns how many were refused, or not tried because an equal one was."""
    refusals, refused = Refusals(), 0
    for trial in todo:
        if refusals.rules_out(trial):
            progress.skip()
            refused += 1
            continue
        progress.begin(trial)
        record = runs.run(trial, _script(trial.strategy), progress.tick)
        progress.end(record)
        refusals.note(trial, record)
        refused += record["status"] == "refused"
    return refused


def _left_to_do(refused: int, planned: list[Trial]) -> int:
    print(
        f"refused: {refused} of {len(planned)} runs are left to do, for what is said above. Mend it; the same command "
        "then does them",
        file=sys.stderr,
    )
    return overrides.REFUSED


def plan(options: argparse.Namespace) -> tuple[list[Trial], list[Trial]]:
    """All runs of the newest comparison that asks the same, or of a new one; and those that are left to do."""
    labels = trials.arms(options.strategies, None if options.twin == "none" else options.twin)
    datasets = [_dataset(path) for path in options.datasets]
    subject = trials.digest(labels, datasets, overrides.knob_values(config))
    known = record_file.load(RESULTS)
    earlier = [] if options.new else trials.names(known, subject)
    name = earlier[0] if earlier else trials.new_name(subject)
    planned = trials.plan(name, labels, datasets, options.trials)
    answered = trials.answered(planned, known, options.retry_failed)
    if replaced := list(replacement.problems(datasets, list(answered.values()))):
        raise PreflightError(replaced)
    todo = [trial for trial in planned if trial not in answered]
    hint = "" if todo else "; --new runs it again, more --trials add to it"
    print(f"comparison {name}: {len(todo)} of {len(planned)} runs are left{hint}", file=sys.stderr)
    _say_if_too_few(options.trials, labels)
    return planned, todo


def _say_if_too_few(given: int, labels: dict[str, str]) -> None:
    """Before hours are spent on runs that cannot tell who wins."""
    strategies = len(set(labels.values()))
    if strategies > 1 and given < (needed := effects.trials_needed(len(labels), strategies)):
        print(f"--trials {given} gives times but cannot say who wins: that takes --trials {needed}", file=sys.stderr)


def report(comparison: str | None = None) -> int:
    """Writes the report and prints its tables, those of one comparison or all; the last line is the page's path."""
    known = _records()
    try:
        html, _ = page.write(known, RESULTS, config.GPU_PRICE_PER_HOUR)
    except OSError as error:
        raise record_file.ResultsError(str(disk.unwritable_folder(RESULTS, error))) from None
    print(page.as_text(known, RESULTS, config.GPU_PRICE_PER_HOUR, comparison))
    print(f"\nreport: {html}")
    return 0


def check() -> int:
    """Applies the format to every record; prints what is wrong, non-zero if anything is."""
    known = _records()
    found = [f"run {record.get('run_id')}: {text}" for record in known for text in schema.problems(record)]
    repeated = record_file.repeated(str(record["run_id"]) for record in known if "run_id" in record)
    found += [f"run {run_id}: {count} lines have this run_id, expected one" for run_id, count in repeated]
    print("\n".join([*found, f"{len(known)} records, {len(found)} problems"]))
    return int(bool(found))


def _records() -> list[schema.Record]:
    """Raises ResultsError where there are none: a mistyped RESULTS_PATH must not read as records without a problem."""
    known = record_file.load(RESULTS)
    change = "Set RESULTS_PATH to a folder with records, or run a strategy, or compare.py without options, first"
    record_file.required(known, RESULTS / record_file.FILE_NAME, change)
    return known


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=list(trials.STRATEGIES), metavar="NAME")
    parser.add_argument(
        "--datasets", nargs="+", default=[config.INPUT_PATH], metavar="PATH", help="default: INPUT_PATH"
    )
    parser.add_argument("--trials", type=int, default=3, help="runs of each strategy on each dataset (default: 3)")
    parser.add_argument("--twin", metavar="NAME", help="strategy that runs twice (default: the first); none for no A/A")
    parser.add_argument("--new", action="store_true", help="start anew, also where an equal comparison is there")
    parser.add_argument("--retry-failed", action="store_true", help="run invalid and failed trials once more")
    parser.add_argument("--report", action="store_true", help="write and print the report, run nothing")
    parser.add_argument("--check", action="store_true", help="check every record, run nothing")
    options = parser.parse_args()
    options.twin = options.twin or options.strategies[0]
    if not (options.report or options.check):
        _refuse_bad(options, parser)
    return options


def _refuse_bad(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if config.COMPARISON_ID is not None:
        # Named as a strategy, this script would start itself, and wait for itself.
        parser.error(f"COMPARISON_ID {config.COMPARISON_ID}: expected none, which compare.py sets for what it starts")
    for name in {*options.strategies, options.twin} - {"none"}:
        if Path(name).name != name:
            parser.error(f"no strategy {name!r}: expected the name of a script beside compare.py, without .py")
        if not _script(name).exists():
            parser.error(f"no strategy {name}: expected {_script(name)}; known are {', '.join(trials.STRATEGIES)}")
    if options.twin not in ("none", *options.strategies):
        parser.error(f"--twin {options.twin}: expected one of --strategies, or none")
    if not all(path.strip() for path in options.datasets):
        parser.error("--datasets: expected a file or folder, found an empty text")
    names = [records.portable(_dataset(path)) for path in options.datasets]
    if len(set(names)) < len(names):
        parser.error(f"--datasets: expected different names, which records keep, found {', '.join(names)}")
    if options.trials < 1:
        parser.error(f"--trials {options.trials}: expected 1 or more")
    if not config.TRIAL_TIMEOUT_S > 0:
        parser.error(f"TRIAL_TIMEOUT_S {config.TRIAL_TIMEOUT_S:g}: expected seconds above 0")


def _interrupts() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set from now on. An exception could strike while a process is being started,
    and leave that one without anyone to end it."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _script(strategy: str) -> Path:
    return SUITE / f"{strategy}.py"


def _dataset(path: str) -> str:
    """The path as a run records it: a file or folder given from here in full, anything else as config.py takes it."""
    return str(Path(path).resolve()) if Path(path).exists() else str(overrides.absolute(path))


if __name__ == "__main__":
    stdout.exit_after(main)
