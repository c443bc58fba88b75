"""Run records: one JSON line a run, appended to `results/records.jsonl`, raw figures only.

Format history (`schema` in every record):
    1  first format

Keys. Unknown is null, never 0, -1 or NaN. `_s` is seconds, `_bytes` bytes.
    schema        int
    run_id        hex text, unique; also names the run's time series, `timeseries/<run_id>.parquet`
    strategy      name of the strategy's script without .py
    label         text of config.RUN_LABEL or null
    started_at    UTC, ISO 8601
    command       how to repeat the run: script and overrides
    status        "ok" | "invalid" (ran to the end, but a check failed) | "failed" (did not run to the end)
    error         why it is not ok, or null
    wall_s        from the strategy's call to its return
    phases_s      read_and_plan, engine_start, steady, tail, collect; they add up to wall_s (see phases.py)
    phase_tokens  output tokens generated in engine_start, steady, tail
    waterfall_s   finer parts that add up to wall_s (see waterfall.py)
    rows          in, out, missing, doubled, unknown, null, short
    tokens        prompt, output: counted by the engines
    cache_state   "cold" | "warm" | "primed": what the engines' counters prove before the first request
    warnings      list of text: what the counters say about the run (an engine never filled, an engine idle, ...)
    counters      sums over the engines: prefix_cache_queries, prefix_cache_hits (tokens), preemptions,
                  prompt_tokens, generation_tokens, requests by finish reason
    engines       one object an engine: node, pid, gpus, settings (read back), start (timeline), counters before and
                  after, histograms, high-water marks
    config        every knob in force (harness.overrides.knob_values) and `sampling_params`
    dataset       name, rows, fingerprint (of ids and prompts), prompt_bytes
    hardware      nodes, cpus, memory_bytes, gpus (list of names), gpu_memory_bytes
    versions      python, vllm, ray, daft, torch, ...
    commit        git commit of the suite, with "+changes" where the work tree differs, or null
"""

import json
from pathlib import Path
from typing import Any

SCHEMA = 1

Record = dict[str, Any]


def append(record: Record, results_path: str | Path) -> Path:
    """Appends one record as one line; returns the file. The line is written in one call, so a kill leaves no half."""
    path = Path(results_path) / "records.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
    return path
