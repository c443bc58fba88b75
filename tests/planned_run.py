"""A run of the planner on simulated engines, as prefix-planned.py does it on real ones; writes what came of it.

    python planned_run.py RESULT.parquet

Settings are the suite's own (BENCH_*) and the simulated engine's; RAY_ADDRESS is a running cluster.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import config
import pyarrow.parquet as pq
import ray
from harness import cluster, continuity
from harness.planning.answers import Answers
from harness.planning.fleet import Fleet
from harness.planning.reading import windows
from harness.planning.window import Window
from simulated_engine import SimulatedEngine, wait_for


def main(result: Path) -> None:
    environment = cluster._runtime_env()
    environment["env_vars"] |= {name: value for name, value in os.environ.items() if name.startswith("SIMULATED_")}
    ray.init(runtime_env=environment, log_to_driver=False)
    continuity.current.fingerprint = f"fingerprint of {config.INPUT_PATH}"
    answers = Answers()
    Fleet(SimulatedEngine).run(meeting(windows(without=answers.done)), answers)
    table = answers.table()
    pq.write_table(table, result)
    outlived = continuity.current
    told = {name: getattr(outlived, name) for name in ("lost_engines", "redone_rows", "continued_rows", "given_up")}
    told["max_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result.with_suffix(".json").write_text(json.dumps(told))
    if outlived.answers_written:
        outlived.answers_written()


def meeting(windows: Iterator[Window]) -> Iterator[Window]:
    """The windows; where the engines' start is to overlap with planning, not before an engine has begun to start."""
    if "SIMULATED_OVERLAP" not in os.environ:
        yield from windows
        return
    folder = Path(os.environ["SIMULATED_FOLDER"])
    wait_for(lambda: any(folder.glob("*.starting")))
    for window in windows:
        (folder / "planned").touch()
        yield window


if __name__ == "__main__":
    main(Path(sys.argv[1]))
