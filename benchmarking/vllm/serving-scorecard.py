"""Live traffic on a vLLM server: which configuration meets the targets at the lowest cost per accepted response.

    python benchmarking/vllm/serving-scorecard.py                               # servers of its own, config.py's knobs
    python benchmarking/vllm/serving-scorecard.py --configurations baseline,max_num_seqs=64 --rates 4 8 16
    python benchmarking/vllm/serving-scorecard.py --url http://localhost:8000   # a server that runs already
    python benchmarking/vllm/serving-scorecard.py --report [FOLDER …]           # the page again, from records alone
    python benchmarking/vllm/serving-scorecard.py --check                       # every record against the format

Each configuration's server is started, warmed up and stopped; rates are found by themselves unless given. A row is
recorded as soon as it is measured. Exit code 0: measured; 1: something failed that load does not explain (at
a configuration's lowest rate: anything), or a configuration has no row; 3: refused before any server started.
"""

import argparse
import json
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import config
from harness import record_file, remote_records, stdout
from harness.data import storage
from harness.preflight import disk, installation, load_format
from harness.preflight.problem import Problem
from harness.serving import configurations, page, row_file, row_record, scorecard, sections, summary, targets, workload
from harness.serving.configurations import ConfigurationError
from harness.serving.scorecard import Plan
from harness.serving.trace import TraceError

REFUSED = 3
# Drawn before the row begins, and kept with every token's time until it ends.
MOST_REQUESTS = 1_000_000
RESULTS = Path(config.RESULTS_PATH)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if remote_records.is_remote(config.RESULTS_PATH) and not options.report:
            raise ConfigurationError(f"expected a local RESULTS_PATH, found {config.RESULTS_PATH}. Set it to a folder")
        if options.check:
            return check()
        if options.report is not None:
            return report([Path(folder) for folder in options.report] or [RESULTS])
        return measure(options)
    except record_file.RecordError as error:
        print(error, file=sys.stderr)
        return 1
    # A ResultsError is a ValueError too.
    except (ConfigurationError, TraceError, ValueError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"failed: {error}; rows that were measured before are recorded, --report shows them", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; rows that were measured are recorded, --report shows them", file=sys.stderr)
        return 130


def measure(options: argparse.Namespace) -> int:
    plan = _plan(options)
    print(f"at most {scorecard.seconds_at_most(plan)} s, and the servers' starts", file=sys.stderr)
    found = scorecard.run(plan)
    html = page.write(row_file.load(RESULTS), RESULTS, config.GPU_PRICE_PER_HOUR)
    show([row for row in found if row["scorecard_id"] == plan.scorecard_id])
    print(f"page: {html}", file=sys.stderr)
    return 0 if scorecard.is_clean(found, plan.configurations) else 1


def report(folders: list[Path]) -> int:
    """The page from the rows of all folders, written into the first; the newest conditions' tables on stdout."""
    # Each row once, also where a folder is named twice, or holds copies of another's rows.
    rows = list({row["row_id"]: row for folder in folders for row in _fit_for_use(_load(folder))}.values())
    try:
        html = page.write(rows, folders[0], config.GPU_PRICE_PER_HOUR)
    except OSError as error:
        raise record_file.ResultsError(str(disk.unwritable_folder(folders[0], error))) from None
    print(f"page: {html}", file=sys.stderr)
    show(rows)
    return 0


def check() -> int:
    """Applies the format to every record; prints what is wrong, non-zero if anything is."""
    rows = _load(RESULTS)
    found = [f"row {row.get('row_id')}: {text}" for row in rows for text in page.problems(row)]
    repeated = record_file.repeated(str(row["row_id"]) for row in rows if "row_id" in row)
    found += [f"row {row_id}: {count} lines have this row_id, expected one" for row_id, count in repeated]
    print("\n".join([*found, f"{len(rows)} rows, {len(found)} problems"]))
    return int(bool(found))


def show(rows: list[row_record.Record]) -> None:
    price = config.GPU_PRICE_PER_HOUR
    for section in sections.group(rows)[-1:]:
        tables = (
            summary.scorecard(section, price),
            summary.sides(section),
            summary.causes(section),
            summary.decision_list(section, price),
            summary.failures(section),
        )
        print("\n\n".join(table.text() for table in tables if table.rows))
        print(json.dumps(summary.as_json(section, price), allow_nan=False))


def _load(folder: Path) -> list[row_record.Record]:
    """Raises ResultsError for a folder without rows: its name may be mistyped."""
    rows = row_file.load(folder)
    change = "Name a folder with rows (RESULTS_PATH, or after --report), or measure some without options first"
    record_file.required(rows, folder / row_file.FILE_NAME, change)
    return rows


def _fit_for_use(rows: list[row_record.Record]) -> list[row_record.Record]:
    """Rows that fit the format; one that does not is left out and named, not guessed at."""
    found = [(row, page.problems(row)) for row in rows]
    for row, wrong in found:
        if wrong:
            print(f"left out: row {row.get('row_id')} ({wrong[0]}); see --check", file=sys.stderr)
    return [row for row, wrong in found if not wrong]


def _plan(options: argparse.Namespace) -> Plan:
    named = configurations.parse(options.configurations)
    if options.url and [one.name for one in named] != [configurations.BASELINE]:
        raise ConfigurationError(f"--url with configurations {options.configurations!r}: expected baseline alone")
    if wrong := [*disk.results(), *(() if options.url else _of_servers())]:
        raise ConfigurationError("; ".join(map(str, wrong)))
    if options.seconds_per_rate is not None:
        config.SERVING_SECONDS_PER_RATE = options.seconds_per_rate
    if options.trace is not None:
        config.SERVING_TRACE = str(Path(options.trace).resolve())
    if (most := max(options.rates or [0]) * config.SERVING_SECONDS_PER_RATE) > MOST_REQUESTS:
        raise ConfigurationError(
            f"expected at most {MOST_REQUESTS:,} requests at a rate, found {most:,.0f}. Lower --rates"
        )
    row_file.load(RESULTS)  # broken lines are known before anything is measured, not after
    offered, warm = workload.load(weights=options.url is None)
    return Plan(
        configurations=named,
        workload=offered,
        warmup=warm,
        targets=targets.configured(),
        scorecard_id=uuid.uuid4().hex[:12],
        results_path=RESULTS,
        rates_rps=options.rates,
        url=options.url,
        repeat=not options.no_repeat,
    )


def _of_servers() -> Iterator[Problem]:
    """What keeps every server of ours from starting."""
    yield from installation.off_their_pins(installation.SERVER_PACKAGES)
    yield from load_format.problems()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--configurations", metavar="LIST", help="default: SERVING_CONFIGURATIONS; with --url: baseline"
    )
    parser.add_argument("--rates", type=_positive, nargs="+", metavar="PER_S", help="these rates; default: found")
    parser.add_argument("--seconds-per-rate", type=_positive, metavar="S", help="default: SERVING_SECONDS_PER_RATE")
    parser.add_argument("--trace", metavar="FILE", help="default: SERVING_TRACE")
    parser.add_argument("--url", help="a server that runs already; it is neither started nor stopped")
    parser.add_argument("--no-repeat", action="store_true", help="do not measure the best rate once more")
    parser.add_argument("--report", nargs="*", metavar="FOLDER", help="write the page from records, run nothing")
    parser.add_argument("--check", action="store_true", help="check every record, run nothing")
    options = parser.parse_args()
    if options.url is not None and not storage.is_endpoint(options.url):
        parser.error(f"--url {options.url!r}: expected {storage.ENDPOINT_FORM}")
    if "" in (options.configurations, options.trace):
        parser.error("--configurations, --trace: expected a list and a file, found an empty text")
    options.configurations = options.configurations or (
        configurations.BASELINE if options.url else config.SERVING_CONFIGURATIONS
    )
    return options


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


if __name__ == "__main__":
    stdout.exit_after(main)
