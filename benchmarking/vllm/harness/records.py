"""Run records: one JSON line a run, appended to `results/records.jsonl`, raw figures only.

Format history (`schema` in every record); versions and validator are in schema.py, the file in record_file.py:
    1  first format

Keys. Unknown is null, never 0, -1 or NaN. `_s` is seconds, `_bytes` bytes.
    schema        int
    run_id        hex text, unique; also names the run's time series, `timeseries/<run_id>.parquet`
    strategy      name of the strategy's script without .py
    label         text of config.RUN_LABEL or null
    started_at    UTC, ISO 8601
    command       how to repeat the run: script and overrides
    status        "ok" | "invalid" (ran to the end, but a check failed) | "failed" (did not run to the end) |
                  "refused" (by preflight, before any engine started)
    error         why it is not ok, or null
    wall_s        from the strategy's call until its rows are back, and written where OUTPUT_PATH asks for it
    phases_s      read_and_plan, engine_start, steady, tail, collect; they add up to wall_s (see phases.py)
    phase_tokens  output tokens generated in engine_start, steady, tail
    waterfall_s   finer parts that add up to wall_s (see waterfall.py)
    idle_engine_s engine-seconds with nothing to run, over all engines (see waterfall.py)
    imbalance     busiest engine's generated tokens over the mean; 1 is even
    rows          in, out, missing, doubled, unknown, null, short, long; continued (answered by an earlier run that was
                  killed), redone (begun by an engine that died, as far as is known, and run again)
    tokens        prompt, output: counted by the engines
    cache_state   "cold" | "warm" | "primed": what the engines' counters prove before the first request
    warnings      list of text: what the counters say about the run (an engine never filled, an engine idle, ...)
    counters      sums over the engines: prefix_cache_queries, prefix_cache_hits (tokens), preemptions,
                  prompt_tokens, generation_tokens, requests by finish reason
    engines       one object an engine: node, pid, gpus, settings (read back), start (timeline), counters before and
                  after, histograms, high-water marks
    config        every knob in force (harness.overrides.knob_values) and `sampling_params`
    dataset       name, rows, files (since 2026-11-29), fingerprint (of ids and prompts), prompt_bytes
    hardware      nodes, ray_cpus, ray_gpus, driver_cpus, usable_cpus (of them, not pinned away), driver_memory_bytes,
                  cpu, gpus (list of names), gpu_ids (UUIDs of those that the driver may use)
    versions      python, vllm, ray, daft, torch, ...
    commit        git commit of the suite, with "+changes" where the work tree differs, or null
"""

import os
import shlex
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import config
import pyarrow as pa
import pyarrow.parquet as pq
from harness import machine, overrides, record_file, remote_records
from harness.schema import SCHEMA, Record


def new(script: Path) -> Record:
    """A record of a run of `script` that has not begun: every key present, what is not known yet null."""
    unknown = ("status", "error", "wall_s", "phases_s", "phase_tokens", "waterfall_s", "idle_engine_s", "imbalance")
    measured = ("rows", "tokens", "cache_state", "warnings", "counters", "engines", "dataset", "hardware")
    return {
        "schema": SCHEMA,
        "run_id": uuid.uuid4().hex,
        "strategy": script.stem,
        "label": config.RUN_LABEL,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(script),
        **dict.fromkeys((*unknown, *measured)),
        "config": {name: portable(value) for name, value in overrides.knob_values(config).items()},
        "versions": machine.versions(),
        "commit": config.COMMIT or machine.commit(),
    }


def append(record: Record, series: list[dict[str, Any]], results_path: str | Path) -> Path | str:
    """Appends one record as one line, and its engines' samples as a Parquet file beside; returns the records' file.

    On S3 (`s3://bucket/folder`) each is an object of its own. Raises OSError, or StorageError for S3.
    """
    if remote_records.is_remote(results_path):
        return remote_records.put(record, series, str(results_path))
    if series:
        write_series(series, Path(results_path) / "timeseries" / f"{record['run_id']}.parquet")
    return record_file.append(record, results_path)


def write_series(series: list[dict[str, Any]], path: Path) -> None:
    """Writes the engines' samples, one row each (EngineLog.rows)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(series), path, compression="zstd")


def portable(value: Any) -> Any:
    """A knob's value without this machine's folders: in the repository as config.py takes it, else its last name."""
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    repository = overrides.SUITE_DIR.parents[1]
    path = Path(value)
    return os.path.relpath(path, overrides.SUITE_DIR) if path.is_relative_to(repository) else path.name


def _command(script: Path) -> str:
    """What a user types to run this again, in the repository's root."""
    variables = {name: str(portable(value)) for name, value in sorted(os.environ.items()) if name.startswith("BENCH_")}
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*assignments, "python", f"benchmarking/vllm/{script.name}"])
