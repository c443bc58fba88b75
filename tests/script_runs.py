"""Starts strategies' scripts as a user does, over `half_hit` (conftest.py), a dataset whose hit rate is known.

Half of its prompts are answered from the prefix cache: every prompt occurs twice and is one token longer than a whole
number of blocks, so the first of a pair hits nothing and the second all its blocks, whichever comes first.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

SUITE = Path(__file__).resolve().parents[1] / "benchmarking" / "vllm"
ROWS, BLOCK, BLOCKS, OUTPUT_LEN = 96, 16, 4, 8
PROMPT_LEN = BLOCKS * BLOCK + 1


def environment(folder: Path, **knobs: Any) -> dict[str, str]:
    """A user's environment with the local profile, and `knobs` on top; not that of the make that runs these tests."""
    return {
        **{name: value for name, value in os.environ.items() if "MAKE" not in name},
        "PYTHONPATH": str(Path(__file__).parent),
        "BENCH_PROFILE": "local-cpu",
        "BENCH_RESULTS_PATH": str(folder / "results"),
        "BENCH_PROGRESS_INTERVAL_S": "0.5",  # these runs generate for seconds, and tests wait for what they say
        **{f"BENCH_{name}": str(value) for name, value in knobs.items()},
    }


def start_script(script: str, folder: Path, **knobs: Any) -> "subprocess.Popen[str]":
    """Starts a strategy's script as a user does."""
    command = [sys.executable, str(SUITE / f"{script}.py")]
    return subprocess.Popen(
        command, env=environment(folder, **knobs), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_script(script: str, folder: Path, **knobs: Any) -> tuple[int, dict[str, Any], str]:
    """Runs a strategy's script to its end; (exit code, record on stdout's last line, stderr)."""
    with start_script(script, folder, **knobs) as process:
        output, errors = process.communicate(timeout=300)
    lines = output.strip().splitlines()
    assert lines, f"{script} printed nothing; its stderr ends in:\n{errors[-3000:]}"
    return process.returncode, json.loads(lines[-1]), errors


def wait_until_generating(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Follows the run's progress lines until requests are running; returns every process of the run."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "running" in line and "running 0" not in line:
            return psutil.Process(process.pid).children(recursive=True)
    raise AssertionError(f"the run ended before it was seen generating; it said:\n{''.join(said)[-3000:]}")
