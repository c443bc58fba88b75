"""What a dataset has to gain from sorting, bucketing or routing, before a GPU is rented.

    python benchmarking/vllm/advise.py my.parquet --column prompt --model Qwen/Qwen3-8B --gpu H200 --engines 8
    python benchmarking/vllm/advise.py my.parquet --json > advice.json
    python benchmarking/vllm/advise.py s3://bucket/prompts --column text --no-id --plot hit-rates.svg

Runs on a laptop, without vLLM, Ray, Daft or a GPU: numpy, numba, pyarrow and tokenizers are enough. Hit rates come from
an exact replay of vLLM's scheduler and block cache. Times are the least that the GPU's rates allow; real ones are
longer, by much the same factor in all strategies. Engine limits, KV_CACHE_MEMORY_BYTES among them, and the strategies'
settings are those of config.py.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import config
from harness import arguments, overrides, stdout
from harness.data.storage import StorageError
from harness.prediction import (
    advice,
    advice_text,
    forecast_chart,
    gpus,
    model_shape,
    prefix_tree,
    prompt_set,
    roofline,
    sparse,
    study,
)
from harness.prediction.prefix_tree import Profile
from harness.prediction.prompt_set import PromptSet
from harness.preflight import bounds


def main() -> None:
    args = _arguments()
    try:
        report = advise(args)
    except (ValueError, OSError, StorageError) as error:
        overrides.refuse(error)
    except MemoryError as error:
        overrides.refuse(sparse.shortage(error))
    print(json.dumps(report, indent=2) if args.json else "\n".join(report["text"]))


def advise(args: argparse.Namespace) -> dict[str, Any]:
    """All figures, and under `text` the lines for people; writes the plot if one is asked for."""
    knobs = _knobs(args)
    model, gpu = model_shape.read(args.model), gpus.find(args.gpu)
    prompts = prompt_set.load(args.data, args.model, knobs, args.column, args.id_column, prompt_set.CACHE)
    profile = prefix_tree.profile(prompts.data)
    lines = list(advice_text.data_lines(args.data, prompts, profile, model))
    report = {"dataset": _dataset(args.data, prompts, profile)}
    if not profile.rows:
        return report | {"text": [*lines, "Nothing to forecast: no prompt is left."]}
    kv_tokens = args.kv_tokens or roofline.configured_kv_tokens(model, gpu, knobs)
    done = study.run(prompts, knobs, model, gpu, kv_tokens)
    gpu_count = args.engines * max(config.GPUS_PER_ENGINE, 1)
    possible = profile.possible_hit_rate
    found = advice.advise(done.results, possible, profile.rows, gpu_count, args.start_s, prompts.plan_s, knobs)
    lines += [
        advice_text.machine_line(gpu, args.engines, gpu_count, kv_tokens, profile),
        *advice_text.start_lines(kv_tokens, knobs),
        "",
        *advice_text.table_lines(done.results, possible, done.floor.wall_s),
        "",
        *advice_text.advice_lines(found, args.price, args.start_s),
        *advice_text.change_lines(done.changes, found.best.forecast.strategy),
    ]
    if args.plot:
        _write(args.plot, forecast_chart.draw(done.curves, kv_tokens, profile.working_set_tokens, possible))
    return report | {"gpu": gpu._asdict(), "engines": args.engines, **_figures(done, found), "text": lines}


def _knobs(args: argparse.Namespace) -> dict[str, Any]:
    knobs = overrides.knob_values(config) | {"CONCURRENCY": args.engines}
    if args.output_len is not None:
        knobs["OUTPUT_LEN"] = args.output_len
    bounds.require(knobs)
    if args.output_len is not None and knobs["OUTPUT_LEN_DISTRIBUTION"] != "fixed":
        raise ValueError(
            f"--output-len {args.output_len}: expected none, since OUTPUT_LEN_DISTRIBUTION "
            f"{knobs['OUTPUT_LEN_DISTRIBUTION']!r} draws a length for each prompt between OUTPUT_LEN_MIN and "
            "OUTPUT_LEN_MAX. Set those, or the distribution to fixed"
        )
    return knobs


def _write(plot: Path, svg: str) -> None:
    try:
        plot.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--plot: expected a file that can be written, found {error}; give another") from error


def _dataset(source: str, prompts: PromptSet, profile: Profile) -> dict[str, Any]:
    counted = {
        name: getattr(prompts.column, name)
        for name in ("null_prompts", "blank_prompts", "null_ids", "repeated_ids", "empty_files", "files")
    }
    return {
        "source": source,
        "fingerprint": prompts.column.fingerprint,
        **counted,
        "too_long": prompts.too_long,
        **profile._asdict(),
        "possible_hit_rate": profile.possible_hit_rate,
        "seconds": {"read": prompts.read_s, "tokenize": prompts.tokenize_s, "plan": prompts.plan_s},
    }


def _figures(done: study.Study, found: advice.Advice) -> dict[str, Any]:
    strategies = [
        {**result.forecast._asdict(), "hit_rate": result.forecast.hit_rate, **result._asdict(), "forecast": None}
        for result in done.results
    ]
    best = {**found._asdict(), "best": found.best.forecast.strategy, "speedup": found.best.speedup}
    floor = {**done.floor._asdict(), "wall_s": done.floor.wall_s}
    return {
        "kv_tokens": done.kv_tokens,
        "strategies": [{key: value for key, value in row.items() if key != "forecast"} for row in strategies],
        "curves": done.curves,
        "floor": floor,
        "advice": best,
        "changes": done.changes,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a dataset has to gain, before a GPU is rented.")
    positive = arguments.at_least(1)
    parser.add_argument("data", help="a Parquet file or a folder of them, local or s3://")
    parser.add_argument("--column", default="prompt", help="the column of prompts (default: prompt)")
    parser.add_argument("--id-column", default="id", help="the column of ids (default: id)")
    parser.add_argument("--no-id", dest="id_column", action="store_const", const=None, help="there is no such column")
    parser.add_argument("--model", default=config.MODEL_NAME, help="hub id or local folder (default: config.py's)")
    parser.add_argument("--gpu", default="H200", help=f"one of {', '.join(gpus.GPUS)} (default: H200)")
    parser.add_argument("--engines", type=positive, default=config.CONCURRENCY, help="copies of the model")
    parser.add_argument("--output-len", type=positive, help="tokens generated a prompt, the same for all (OUTPUT_LEN)")
    parser.add_argument("--kv-tokens", type=positive, help="KV cache of an engine, if vLLM's log told you")
    parser.add_argument("--price", type=arguments.not_negative, help="of one GPU for an hour, in any currency")
    parser.add_argument(
        "--start-s", type=arguments.not_negative, default=40.0, help="start of an engine (default: 40 s, H200)"
    )
    parser.add_argument("--plot", type=arguments.new_file, help="write hit rates against KV capacity to this SVG file")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    stdout.exit_after(main)
