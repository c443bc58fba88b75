"""Predicted against counted hit rates, on real vLLM engines with the small local model on CPU.

    python benchmarking/vllm/forecast-check.py            # all settings, about two minutes on two cores
    python benchmarking/vllm/forecast-check.py tight      # those of one engine build

Each setting (engine build, dataset, strategy, number of engines: see harness/forecast_check.py) adds a line to
`results/forecast-check.jsonl`. Exits 1 if a prediction is off by more than two percentage points.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import config
from harness import overrides, record_file, stdout
from harness.data import local_model
from harness.overrides import SUITE_DIR
from harness.prediction.forecast_check import BUILDS, SETTINGS, TOLERANCE, Build, check, difference, start
from harness.preflight import disk

LOCAL = SUITE_DIR.parents[1] / ".local"


def main() -> None:
    builds = {build.name: build for build in BUILDS}
    unknown = set(sys.argv[1:]) - set(builds)
    if unknown:
        overrides.refuse(ValueError(f"expected some of {list(builds)}, found {sorted(unknown)}"))
    disk.require_results()
    model = local_model.make(LOCAL / "model")
    wanted = sys.argv[1:] or list(builds)
    records = [record for name in wanted for record in _run(builds[name], model)]
    off = [record for record in records if abs(difference(record)) > TOLERANCE]
    print(f"{len(records) - len(off)} of {len(records)} settings within {TOLERANCE:.0%} points")
    sys.exit(1 if off else 0)


def _run(build: Build, model: Path) -> list[dict[str, Any]]:
    llm = start(build, model)
    records = [check(llm, setting, model, LOCAL / "forecast-check") for setting in SETTINGS if setting.build is build]
    llm.llm_engine.engine_core.shutdown(timeout=10)
    for record in records:
        record_file.append_line(record, Path(config.RESULTS_PATH) / "forecast-check.jsonl")
        print(_line(record))
    return records


def _line(record: dict[str, Any]) -> str:
    predicted, counted = record["predicted"], record["counted"]
    setting = f"{record['build']['name']:8}{record['shape']['prefixes']:>4} prefixes  {record['strategy']:24}"
    rates = f"predicted {predicted['hit_rate']:.4f}  counted {counted['hit_rate']:.4f}"
    preemptions = f"preemptions {predicted['preemptions']} / {counted['preemptions']}"
    return f"{setting}{record['engines']} engines  {rates}  {difference(record) * 100:+.2f} points  {preemptions}"


if __name__ == "__main__":
    stdout.exit_after(main)
