"""Whether this suite measures what `vllm bench serve` measures: both offer one trace to one server, in turn.

    BENCH_PROFILE=local-cpu python benchmarking/vllm/serving-parity.py --rounds 6
    BENCH_PROFILE=local-cpu python benchmarking/vllm/serving-parity.py --stub     # a server that speaks at fixed times

Same prompts, lengths, arrival times and request fields; the prefix cache is emptied before each turn. Compared are
completed requests/s and the percentiles of TTFT, inter-token latency and end to end, from the moment of sending, as
vLLM's generator counts; on the stub, only the generators and what they count differ. Prints each ratio with its 95 %
interval, and one JSON line last, which is appended to RESULTS_PATH/serving-parity.jsonl.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import io
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import config
from harness import arguments, machine, record_file, stdout
from harness.preflight import disk
from harness.serving import configurations, prefix_cache, priority, row, server, stub, traffic, warmup, workload
from harness.serving.caller_side import Timed
from harness.serving.client import Limits
from harness.serving.server import Server
from harness.serving.targets import configured

Figures = dict[str, float]

# Sent with every request by both; vLLM's generator adds the rest of its defaults, which change no token.
BODY = {"temperature": 0, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PERCENTILES = (50.0, 95.0)
RESAMPLES = 10_000
STUB_TOKENS, STUB_GAP_S = 20, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare with vllm bench serve.")
    parser.add_argument(
        "--rounds", type=arguments.at_least(1), default=6, help="turns of each, after one of each that is left out"
    )
    parser.add_argument("--rate", type=arguments.above_zero, default=10.0, help="requests a second")
    parser.add_argument("--seconds", type=arguments.above_zero, default=10.0, help="of arrivals in a turn")
    parser.add_argument("--stub", action="store_true", help="20 tokens, 50 ms apart, from a server without a model")
    options = parser.parse_args()
    disk.require_results()
    offered, warm = workload.load()
    # vLLM's generator cannot cancel.
    timed = [(at, uncancelled(request)) for at, request in offered.at(options.rate, options.seconds)]
    if options.stub:
        timed = [(at, dataclasses.replace(request, output_len=STUB_TOKENS)) for at, request in timed]
        with stub.running(STUB_TOKENS, STUB_GAP_S) as (endpoint, _):
            turns = take_turns(Server(endpoint, configurations.MODEL), timed, options.rounds)
    else:
        turns = on_an_engine(warm, timed, options.rounds)
    asked = {"rate_rps": options.rate, "seconds": options.seconds, "requests": len(timed)}
    report(turns, {"server": "stub" if options.stub else "vllm", **asked})


def on_an_engine(warm: list[traffic.Request], timed: Timed, rounds: int) -> list[dict[str, Figures]]:
    (baseline,) = configurations.parse(configurations.BASELINE)
    log = Path(config.RESULTS_PATH) / "logs" / "serving-parity.log"
    with server.running(baseline, log, server.start_timeout_s()) as running:
        warmup.run(running, warm, baseline.at_once(), server.start_timeout_s())
        return take_turns(running, timed, rounds)


def take_turns(running: Server, timed: Timed, rounds: int) -> list[dict[str, Figures]]:
    return [turn(running, timed, number) for number in range(rounds + 1)][1:]


def turn(running: Server, timed: Timed, number: int) -> dict[str, Figures]:
    """One row of each, in alternating order."""
    found = {}
    for name in ("suite", "vllm") if number % 2 else ("vllm", "suite"):
        if prefix_cache.empty_and_prove(running) == prefix_cache.WARM:
            sys.exit("expected a prefix cache that can be emptied before each turn, found it still warm")
        found[name] = ours(running, timed) if name == "suite" else theirs(running, timed)
        print(f"turn {number}, {name}: {found[name]}", file=sys.stderr)
    return found


def ours(running: Server, timed: Timed) -> Figures:
    measured, _ = row.measure(running, timed, Limits(60, 60), configured())
    require_all("suite", measured["counts"]["completed"], timed)
    latency = measured["latency"]
    sources = {"ttft": "sent_ttft_s", "itl": "itl_s", "e2e": "sent_e2e_s"}
    return {
        "completed_rps": measured["counts"]["completed"] / measured["wall_s"],
        "itl_mean_s": latency["itl_s"]["mean"],
        **{f"{name}_p{p:g}_s": latency[key][f"p{p:g}"] for name, key in sources.items() for p in PERCENTILES},
    }


def theirs(running: Server, timed: Timed) -> Figures:
    """Through the function behind `vllm bench serve`, which takes arrival times with its requests."""
    from transformers import AutoTokenizer
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    requests = [
        SampleRequest(request.prompt, request.prompt_len or 0, request.output_len, timestamp=at)
        for at, request in timed
    ]
    url = running.endpoint.url
    # The same priority as the suite's client takes for itself.
    with contextlib.redirect_stdout(io.StringIO()), priority.raised():
        found: dict[str, Any] = asyncio.run(
            benchmark(
                task_type=TaskType.GENERATION,
                endpoint_type="openai",
                api_url=f"{url}/v1/completions",
                base_url=url,
                model_id=running.model,
                model_name=running.model,
                # Without one it leaves out TTFT and inter-token latency; the tokens are counted by the server.
                tokenizer=AutoTokenizer.from_pretrained(config.MODEL_NAME),
                input_requests=requests,
                logprobs=None,
                request_rate=float("inf"),
                burstiness=1.0,
                disable_tqdm=True,
                num_warmups=0,
                profile=False,
                selected_percentile_metrics=["ttft", "itl", "e2el"],
                selected_percentiles=list(PERCENTILES),
                ignore_eos=True,
                goodput_config_dict={},
                max_concurrency=None,
                lora_modules=None,
                extra_headers=None,
                extra_body=BODY,
                ready_check_timeout_sec=0,
                self_timed=True,
            )
        )
    require_all("vllm", found["completed"], timed)
    names = {"ttft": "ttft", "itl": "itl", "e2e": "e2el"}
    return {
        "completed_rps": found["request_throughput"],
        "itl_mean_s": found["mean_itl_ms"] / 1000,
        **{f"{name}_p{p:g}_s": found[f"p{p:g}_{key}_ms"] / 1000 for name, key in names.items() for p in PERCENTILES},
    }


def require_all(name: str, completed: int, timed: Timed) -> None:
    """Percentiles over what is left of a load say nothing of the load."""
    if completed != len(timed):
        sys.exit(f"{name}: expected {len(timed)} completed requests, found {completed}. Lower --rate, or see its log")


def report(turns: Sequence[dict[str, Figures]], conditions: dict[str, Any]) -> None:
    compared = {name: ratio([(one["suite"][name], one["vllm"][name]) for one in turns]) for name in turns[0]["suite"]}
    print(f"{conditions}, vLLM {machine.versions()['vllm']}, {len(turns)} turns each")
    print(f"{'':15} {'suite':>9} {'vllm':>9} {'ratio':>7}  95 % interval")
    for name, (suite, vllm, middle, low, high) in compared.items():
        print(f"{name:15} {suite:9.4f} {vllm:9.4f} {middle:7.3f}  {low:.3f} to {high:.3f}")
    record = {**conditions, "turns": turns, "ratios": compared, "versions": machine.versions(), "commit": commit()}
    record_file.append_line(record, Path(config.RESULTS_PATH) / "serving-parity.jsonl")
    print(json.dumps(record))


def ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float, float, float]:
    """Median of each, median of the ratios turn by turn, and the 95 % interval of that by resampling turns."""
    ratios = [suite / vllm if vllm else 1.0 for suite, vllm in pairs]
    draw = random.Random(0)
    middles = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    ends = middles[int(0.025 * RESAMPLES)], middles[int(0.975 * RESAMPLES)]
    return *(statistics.median(side) for side in zip(*pairs, strict=True)), statistics.median(ratios), *ends


def uncancelled(request: traffic.Request) -> traffic.Request:
    return dataclasses.replace(request, cancel_after=None)


def commit() -> str | None:
    return config.COMMIT or machine.commit()


if __name__ == "__main__":
    stdout.exit_after(main)
