"""What each strategy would do on many engines, in simulated time: no GPU, no vLLM, no Ray.

    BENCH_RESULTS_PATH=results python benchmarking/vllm/simulate.py --gpu H200 --engines 8
    BENCH_RESULTS_PATH=results python benchmarking/vllm/simulate.py --gpu L4 --engines 128 --engines-a-node 8 --write

Datasets as generate_data.ipynb makes them: --rows prompts of 256 shared and 256 own tokens, over each of --prefixes
(0: nothing shared). Knobs from config.py; values that are not simulated are refused. The engines' speed comes from
`calibration.json` beside the records (calibrate-simulation.py); a card without records has a slow and a fast end.
--limits unset takes vLLM's own defaults, as the published scripts do. --write appends a line for each simulated job to
`simulations.jsonl`.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import config
from harness import arguments, overrides, record_file, stdout
from harness.prediction import advice_text, forecast, gpus, roofline, sparse
from harness.prediction.engine_state import Limits, require_countable
from harness.prediction.feeding import Dataset
from harness.prediction.gpus import Gpu
from harness.prediction.progress_bar import ProgressBar
from harness.preflight import bounds
from harness.simulation import calibration, cards, default_limits, job, structure
from harness.simulation.calibration import Calibration
from harness.simulation.cards import Card
from harness.simulation.fleet import Fleet, spread_starts
from harness.simulation.outcome import Outcome
from harness.target_length import described, longest_output

BASELINE = "naive-batch"
PARTS = ("engine_start", "first_wait", "prefill", "decode", "starved", "tail", "collect")
HEAD = (
    f"{'strategy':25}{'job s':>8}{'gen. s':>8}{'tokens/s':>10}{'hit rate':>10}{'running':>9}{'idle':>6}"
    + "".join(f"{part:>14}" for part in PARTS)
    + f"{'speed-up':>10}"
)
FAST_END = "   fast end: job s, speed-up"


def main() -> None:
    args = _arguments()
    try:
        _simulate(args)
    except (ValueError, OSError) as error:
        overrides.refuse(error)
    except MemoryError as error:
        overrides.refuse(sparse.shortage(error))


def _simulate(args: argparse.Namespace) -> None:
    knobs = overrides.knob_values(config) | {"CONCURRENCY": args.engines}
    bounds.require(knobs)
    structure.require_simulated(knobs)
    a_row = structure.PREFIX_TOKENS + structure.SUFFIX_TOKENS + longest_output(knobs)
    require_countable(args.rows * -(-a_row // knobs["BLOCK_SIZE"]), knobs["BLOCK_SIZE"])
    known = calibration.read(args.results)
    gpu = gpus.find(args.gpu)
    kv_blocks = roofline.configured_kv_tokens(known.model, gpu, knobs) // knobs["BLOCK_SIZE"]
    limits = forecast.limits(knobs, kv_blocks)
    ways = cards.cards(gpu, known.gpu, known.model, known.readings)
    print(
        f"{args.engines} {gpu.name}, {args.engines_a_node} a node, {kv_blocks * knobs['BLOCK_SIZE']:,} tokens of KV "
        f"cache each; {args.rows:,} prompts; output tokens {described(knobs)}; limits {args.limits}; simulated"
    )
    print(*advice_text.start_lines(kv_blocks * knobs["BLOCK_SIZE"], knobs), sep="\n", end="")
    for prefixes in args.prefixes:
        print(f"\n{prefixes or 'no'} prefixes\n{HEAD}{FAST_END if len(ways) > 1 else ''}")
        outputs = structure.output_lengths(args.rows, knobs)
        dataset = structure.published(args.rows, prefixes, outputs, knobs["BLOCK_SIZE"], knobs["DATASET_FILES"])
        job.require_fit(dataset, limits)
        results: dict[Card, list[tuple[Outcome, float]]] = {way: [] for way in ways}
        with ProgressBar("simulating", len(ways) * len(args.strategies)) as progress:
            for way in ways:
                for found in _jobs(args, dataset, gpu, limits, way, known, knobs):
                    results[way].append(found)
                    progress.advance(1)
        if args.write:
            _write(args, prefixes, described(knobs), results)
        _show(results)


def _jobs(
    args: argparse.Namespace, dataset: Dataset, gpu: Gpu, limits: Limits, way: Card, known: Calibration, knobs: Any
) -> Iterator[tuple[Outcome, float]]:
    """Each strategy's outcome, and how long its simulation took."""
    ready = spread_starts(args.engines, known.start.start_s - known.start.spread_s, known.start.spread_s)
    front_end_s = known.readings[way.reading].front_end_s_a_token
    for strategy in args.strategies:
        limited = default_limits.unset(limits, strategy, gpu) if args.limits == "unset" else limits
        began = time.perf_counter()
        submit_s = 1 / args.submit_rows_per_s if args.submit_rows_per_s else 0.0
        fleet = Fleet(ready, args.engines_a_node, limited, way.time, front_end_s, submit_s)
        yield job.simulate(strategy, dataset, knobs, fleet), time.perf_counter() - began


def _show(results: dict[Card, list[tuple[Outcome, float]]]) -> None:
    """A line a strategy for the first of the cards, and what the other says."""
    slow, *fast = [{outcome.strategy: outcome for outcome, _ in outcomes} for outcomes in results.values()]
    for strategy, outcome in slow.items():
        # Where an engine gets nothing to do, there is no time in which all work.
        rate = f"{outcome.steady_tokens_per_s:,.0f}" if outcome.steady_tokens_per_s else "-"
        print(
            f"{strategy:25}{outcome.job_s:>8.0f}{outcome.generating_s:>8.0f}{rate:>10}"
            f"{outcome.hit_rate:>10.3f}{outcome.mean_running:>9.1f}{outcome.idle_engines:>6}"
            + "".join(f"{outcome.waterfall_s[part]:>14.1f}" for part in PARTS)
            + f"{_speed_up(slow, strategy):>10}"
            + "".join(f"{other[strategy].job_s:>11.0f}{_speed_up(other, strategy):>10}" for other in fast)
        )


def _speed_up(outcomes: dict[str, Outcome], strategy: str) -> str:
    """Of the whole job, over static batches in arrival order."""
    return f"{outcomes[BASELINE].job_s / outcomes[strategy].job_s:.2f}" if BASELINE in outcomes else "-"


def _write(
    args: argparse.Namespace, prefixes: int, output_tokens: str, results: dict[Card, list[tuple[Outcome, float]]]
) -> None:
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    asked = ("gpu", "engines", "engines_a_node", "rows", "submit_rows_per_s")
    setting = {name: getattr(args, name) for name in asked}
    for way, outcomes in results.items():
        for outcome, took_s in outcomes:
            line = {
                "schema": 1,
                **setting,
                "prefixes": prefixes,
                "output_tokens": output_tokens,
                "limits": args.limits,
                "card": way.end,
                "reading": way.reading,
                **outcome._asdict(),
                "took_s": took_s,
                "peak_memory_bytes": peak_bytes,
            }
            record_file.append_line(line, args.results / "simulations.jsonl")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Strategies on many engines, in simulated time.")
    positive = arguments.at_least(1)
    parser.add_argument("--gpu", default="L4", help=f"one of {sorted(gpus.GPUS)}")
    parser.add_argument("--engines", type=positive, default=config.CONCURRENCY)
    parser.add_argument("--engines-a-node", type=positive, default=8)
    parser.add_argument("--rows", type=positive, default=config.DATASET_ROWS)
    parser.add_argument("--prefixes", type=arguments.at_least(0), nargs="+", default=[8, 64, 512, 4096, 0])
    parser.add_argument(
        "--strategies", nargs="+", choices=job.STRATEGIES, default=list(job.STRATEGIES), help="others than all"
    )
    parser.add_argument("--limits", choices=("pinned", "unset"), default="pinned")
    parser.add_argument(
        "--submit-rows-per-s",
        type=arguments.not_negative,
        help="rows that Daft's provider hands over (orchestration-speed.py); any number",
    )
    parser.add_argument("--results", type=Path, default=Path(config.RESULTS_PATH), help="folder of calibration.json")
    parser.add_argument("--write", action="store_true", help="append to simulations.jsonl there")
    return parser.parse_args()


if __name__ == "__main__":
    stdout.exit_after(main)
