"""A row's record: one JSON line, appended to `results/serving.jsonl`; percentiles beside the counts that they rest on.

Format history (`schema` in every record):
    1  first format

Keys. Unknown is null. `_s` is seconds, `_bytes` bytes. The requests behind a row are in `serving/<row_id>.parquet`.
    schema, row_id, scorecard_id, started_at, command (repeats the row), server_command, label
    status            "ok" (measured; the requests in it may have failed) | "failed" (not measured), error says why
    configuration     "baseline" or "control=value"; settings: what the server's engine said it runs with
    rate              offered_rps, arrivals, burstiness, seed, seconds; repeat_of: the row that this one repeats
    traffic           source, version, fingerprint, requests by family
    targets, violations (what of this row is beyond them; empty: it holds)
    cache_state       "cold" | "warm" | "unknown" at the first request, proved by counters
    counts            offered = completed + failed + cancelled + refused; accepted (within the targets), attempts
    causes            failures by cause; details: one example of each
    window_s          last scheduled arrival; wall_s: last end of a request; row_s: all of it, resets aside
    latency           ttft_s, itl_s, tpot_s, e2e_s, sent_* (from sending): p50 to p99, mean, count
    families          the same by family; by_prompt_length: median TTFT of shortest and longest prompts
    client            lateness_s (spread), unsent, held (the client kept the offered rate)
    server            differences of its counters and histograms, high-water marks of its gauges and of the GPU
    before, after     gauges around the row; after.settled_s: seconds until the server was empty
    series            the gauges once a second
    warmup            requests, seconds, rate_rps, causes (failed and refused ones; rows before 2026-11-30 lack it)
    diagnosis         cause, evidence, change
    config, hardware, versions, commit   as in the runs' records (records.py)
"""

import math
import shlex
import uuid
from datetime import UTC, datetime
from typing import Any

import config
import psutil
from harness import machine, overrides, records
from harness.serving.configurations import Configuration
from harness.serving.outcome import RESULTS
from harness.serving.watch import visible_devices

SCHEMA = 1
SCRIPT = "benchmarking/vllm/serving-scorecard.py"

Record = dict[str, Any]

MEASURED = (
    *("cache_state", "counts", "causes", "details", "window_s", "wall_s", "output_tokens", "wasted_tokens", "latency"),
    *("families", "by_prompt_length", "client", "server", "after", "before", "series", "row_s", "violations"),
)
OPTIONAL = (*MEASURED, "error", "diagnosis", "rate", "repeat_of", "traffic", "settings", "server_command", "warmup")
ALWAYS = (
    *("schema", "row_id", "scorecard_id", "label", "status", "configuration", "started_at", "command", "targets"),
    *("config", "hardware", "versions", "commit"),
)

KINDS: dict[type, tuple[str, ...]] = {
    str: ("row_id", "scorecard_id", "status", "configuration", "started_at", "repeat_of"),
    dict: (
        *("config", "hardware", "versions", "targets", "rate", "traffic", "settings", "warmup", "diagnosis"),
        *("counts", "causes", "details", "latency", "families", "client", "server", "before", "after"),
    ),
    list: ("violations", "series"),
    float: ("window_s", "wall_s", "output_tokens", "row_s"),
}


def new(configuration: Configuration, scorecard_id: str, rate_rps: float | None, targets: Record) -> Record:
    """A row that has not been measured: every key present, what is not known yet null."""
    return {
        "schema": SCHEMA,
        "row_id": uuid.uuid4().hex,
        "scorecard_id": scorecard_id,
        "label": config.RUN_LABEL,
        "status": "failed",
        "configuration": configuration.name,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(configuration.name, rate_rps),
        "targets": targets,
        **dict.fromkeys(OPTIONAL),
        "config": {name: records.portable(value) for name, value in overrides.knob_values(config).items()},
        "hardware": hardware(),
        "versions": machine.versions(),
        "commit": config.COMMIT or machine.commit(),
    }


def command(configuration: str, rate_rps: float | None) -> str:
    """What a user types, in the repository's root, to measure the row again."""
    repeat = records._command(overrides.SUITE_DIR / "serving-scorecard.py")
    options = ["--configurations", configuration, "--seconds-per-rate", f"{config.SERVING_SECONDS_PER_RATE:g}"]
    options += [] if rate_rps is None else ["--rates", f"{rate_rps:g}", "--no-repeat"]
    options += ["--trace", str(records.portable(config.SERVING_TRACE))] if config.SERVING_TRACE else []
    return f"{repeat} {shlex.join(options)}"


def server_command(arguments: list[str]) -> str:
    """The server's command without this machine's folders."""
    return shlex.join(["python", *(str(records.portable(argument)) for argument in arguments[1:])])


def hardware() -> Record:
    return {
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "cpu": machine._cpu_name(),
        "gpus": _gpus(machine.gpu_names()),
    }


def _gpus(names: list[str]) -> list[str]:
    """Those that the server takes; a device that is named by its UUID is taken for one like the first."""
    devices = visible_devices(len(names)) if names else []
    return [names[int(device)] if device.isdigit() and int(device) < len(names) else names[0] for device in devices]


def problems(record: Record) -> list[str]:
    """Everything that is wrong with a record; empty for a good one."""
    known = {*ALWAYS, *OPTIONAL}
    found = [f"unknown key {key!r}" for key in record if key not in known]
    found += [f"key {key!r} is missing" for key in known if key not in record]
    if found:
        return found
    found += [f"{key} is null" for key in ALWAYS if record[key] is None and key not in ("label", "commit")]
    found += [f"{path}: not a finite number" for path in _not_finite(record, "")]
    if record["status"] not in ("ok", "failed"):
        found.append(f"status {record['status']!r}: expected 'ok' or 'failed'")
    if record["status"] == "failed" and not record["error"]:
        found.append("status 'failed' without an error")
    found += [f"{key}: expected {kind.__name__}, found {record[key]!r:.80}" for key, kind in _other_types(record)]
    return found or (_of_a_measured_row(record) if record["status"] == "ok" else [])


def _other_types(record: Record) -> list[tuple[str, type]]:
    """Parts that the page computes with and that are something else; null is looked at by itself."""
    return [
        (key, kind)
        for kind, keys in KINDS.items()
        for key in keys
        if record[key] is not None
        and not (isinstance(record[key], kind) or (kind is float and type(record[key]) is int))
    ]


def _of_a_measured_row(record: Record) -> list[str]:
    may_be_null = ("by_prompt_length",)
    found = [f"status 'ok' without {key}" for key in MEASURED if record[key] is None and key not in may_be_null]
    if found:
        return found
    try:
        return _contradictions(record)
    except (KeyError, TypeError, AttributeError) as error:
        return [f"a part of it is missing or of another type ({type(error).__name__}: {error})"]


def _contradictions(record: Record) -> list[str]:
    found, counts = [], record["counts"]
    if not record["rate"]["offered_rps"] > 0:
        found.append(f"rate.offered_rps: expected a number above 0, found {record['rate']['offered_rps']!r}")
    spreads = ("ttft_s", "itl_s", "e2e_s")
    found += [f"latency.{key} without p95" for key in spreads if "p95" not in record["latency"][key]]
    found += [] if "preemptions" in record["server"] else ["server without preemptions"]
    found += [
        f"violations: expected text, found {text!r:.80}" for text in record["violations"] if type(text) is not str
    ]
    if type(gpus := record["config"].get("GPUS_PER_ENGINE")) is not int:
        found.append(f"config.GPUS_PER_ENGINE: expected a count, found {gpus!r:.80}")
    if counts["offered"] != sum(counts[name] for name in RESULTS):
        found.append(f"counts: {counts} do not add up to what was offered")
    if sum(record["causes"].values()) != counts["failed"]:
        found.append(f"causes {record['causes']} do not add up to {counts['failed']} failed")
    if counts["accepted"] > counts["completed"]:
        found.append("more requests accepted than completed")
    if record["latency"]["ttft_s"]["count"] != counts["completed"]:
        found.append("TTFT is not that of the completed requests alone")
    return found


def _not_finite(value: Any, path: str) -> list[str]:
    if isinstance(value, float):
        return [] if math.isfinite(value) else [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in _not_finite(item, f"{path}.{key}".lstrip("."))]
