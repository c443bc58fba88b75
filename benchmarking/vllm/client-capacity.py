"""How much live traffic the load client holds on one core, against a server without a model in its own process.

    python benchmarking/vllm/client-capacity.py --rate 500 --streams 2000

Offers requests at a fixed mean rate (Poisson) whose streams last long enough that `--streams` are open at a time, with
the client pinned to one core, and again through aiohttp's client. Prints offered and sent rate, most streams open and
lateness, and one JSON line last, which is appended to RESULTS_PATH/client-capacity.jsonl.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import config
import numpy as np
import uvloop
from harness import arguments, machine, record_file, stdout
from harness.preflight import disk
from harness.serving import client, stub
from harness.serving.connection import Endpoint
from harness.serving.outcome import COMPLETED

GAP_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the load client alone.")
    parser.add_argument("--rate", type=arguments.above_zero, default=500.0, help="requests a second")
    parser.add_argument("--streams", type=arguments.at_least(1), default=2000, help="streams open at a time")
    parser.add_argument("--seconds", type=arguments.above_zero, default=10.0)
    parser.add_argument("--client", choices=("suite", "aiohttp"), help="one of the two alone")
    options = parser.parse_args()
    disk.require_results()
    tokens = round(options.streams / options.rate / GAP_S)
    arrivals = poisson(options.rate, options.seconds)
    cores = sorted(os.sched_getaffinity(0))
    found = {}
    with stub.running(tokens, GAP_S) as (endpoint, process):
        os.sched_setaffinity(process, cores[1:] or cores)
        os.sched_setaffinity(0, cores[:1])
        if options.client != "aiohttp":
            found["suite"] = ours(endpoint, arrivals, tokens)
        if options.client != "suite":
            found["aiohttp"] = theirs(endpoint, arrivals)
    record = {**found, "tokens": tokens, "gap_s": GAP_S, "versions": machine.versions(), "commit": commit()}
    record_file.append_line(record, Path(config.RESULTS_PATH) / "client-capacity.jsonl")
    for name, row in found.items():
        print(f"{name:8}", *(f"{key} {value:,.4g}" for key, value in row.items()), sep="  ")
    print(json.dumps(record))


def commit() -> str | None:
    return config.COMMIT or machine.commit()


def poisson(rate: float, seconds: float) -> list[float]:
    """Arrival times whose mean rate is exactly `rate`."""
    gaps = np.random.Generator(np.random.PCG64(0)).exponential(size=round(rate * seconds))
    times = np.cumsum(gaps)
    return list(times / times[-1] * seconds)


def ours(endpoint: Endpoint, arrivals: Sequence[float], tokens: int) -> dict[str, float]:
    message = endpoint.request("/v1/completions", b"{}")
    used = time.process_time()
    outcomes = client.offer(endpoint, [client.Planned(at, message, "stub", tokens) for at in arrivals], client.Limits())
    used = time.process_time() - used
    good = [found for found in outcomes if found.result == COMPLETED and found.sent_s is not None]
    spans = [(found.sent_s, found.ended_s) for found in good if found.sent_s and found.ended_s]
    return summary(arrivals, [found.lateness_s for found in outcomes if found.lateness_s is not None], spans, used)


def theirs(endpoint: Endpoint, arrivals: Sequence[float]) -> dict[str, float]:
    """The same through aiohttp: a task a request, bytes as they come, nothing parsed."""
    used = time.process_time()
    lateness, spans = uvloop.run(_through_aiohttp(endpoint, arrivals))
    return summary(arrivals, lateness, spans, time.process_time() - used)


async def _through_aiohttp(endpoint: Endpoint, arrivals: Sequence[float]) -> tuple[list[float], list[Any]]:
    lateness, spans = [], []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.perf_counter() + 0.05

        async def one(at: float) -> None:
            await asyncio.sleep(start + at - time.perf_counter())
            sent = time.perf_counter() - start
            lateness.append(sent - at)
            async with session.post(endpoint.url + "/v1/completions", data=b"{}") as response:
                async for chunk in response.content.iter_any():
                    json.loads(chunk.strip().split(b"\n")[0].removeprefix(b"data: ").replace(b"[DONE]", b"0"))
            spans.append((sent, time.perf_counter() - start))

        await asyncio.gather(*(one(at) for at in arrivals))
    return lateness, spans


def summary(
    arrivals: Sequence[float], lateness: Sequence[float], spans: Sequence[tuple[float, float]], used_s: float
) -> dict[str, float]:
    """Sent rate from first to last send; `core_share`: processor time over the seconds from first send to last end."""
    sends = sorted(sent for sent, _ in spans)
    edges = sorted([(sent, 1) for sent, _ in spans] + [(end, -1) for _, end in spans])
    offered_rps = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
    sent_rps = (len(sends) - 1) / (sends[-1] - sends[0])
    return {
        "offered_rps": offered_rps,
        "sent_rps": sent_rps,
        "streams_open": float(np.max(np.cumsum([step for _, step in edges]))),
        "completed": len(spans),
        "lateness_p50_ms": 1000 * float(np.percentile(lateness, 50)),
        "lateness_p99_ms": 1000 * float(np.percentile(lateness, 99)),
        "core_share": used_s / (edges[-1][0] - edges[0][0]),
    }


if __name__ == "__main__":
    stdout.exit_after(main)
