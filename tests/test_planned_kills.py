"""Nothing is lost and nothing doubled, whatever is killed and whenever: the real driver and real Ray on simulated
engines (the model alone is missing; test_planned_engine.py has it).

Kills' moments come from a seed, which is in the test's name: the same number tries the same moments again.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.planning.admission import START_LAG
from harness.planning.engine_actor import REPORT_S
from simulated_engine import wait_for

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).parent
ROWS, GROUPS, OUTPUT_LEN, IN_FLIGHT, STEP_S = 1800, 60, 12, 32, 0.02


@dataclass
class Bench:
    """A Ray cluster and a dataset that all tests here share, and a folder of each test's own."""

    environment: dict[str, str]
    folder: Path
    prompts: dict[int, str]

    def start(self, **settings: Any) -> "subprocess.Popen[str]":
        self.folder.mkdir(exist_ok=True)
        more = {"BENCH_OUTPUT_PATH": str(self.folder / "answers"), "SIMULATED_FOLDER": str(self.folder)}
        environment = {**self.environment, **more, **{name: str(value) for name, value in settings.items()}}
        command = [sys.executable, str(TESTS / "planned_run.py"), str(self.folder / "result.parquet")]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def run(self, **settings: Any) -> None:
        with self.start(**settings) as process:
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]

    def engines(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.engine")]

    def given(self) -> Counter[str]:
        """How often each row was given to an engine, by its key."""
        return Counter(name for path in self.folder.glob("*.requests") for name in path.read_text().split())

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return told

    def assert_all_answered(self, tokenizer: Any, but: frozenset[int] = frozenset()) -> None:
        table = pq.read_table(self.folder / "result.parquet")
        assert sorted(table["id"].to_pylist()) == sorted(set(self.prompts) - but)
        for row, output, tokens in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
            assert output == tokenizer.decode([tokenizer.encode(self.prompts[row])[-1]] * OUTPUT_LEN)
            assert tokens == OUTPUT_LEN


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A cluster of these tests' own; kills of drivers leave it running."""
    # Drivers here join it by its address alone, without the token of whoever started it.
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "RAY_AUTH_MODE": "disabled"}
    code = (
        "import ray, sys; context = ray.init(address='local', num_cpus=8, include_dashboard=False);"
        "print(context.address_info['gcs_address'], flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait(30)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> dict[int, str]:
    draw = random.Random(5)
    words = sorted(word[1:] for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha())
    stems = [" ".join(draw.sample(words, 40)) for _ in range(GROUPS)]
    texts = [f" {stems[i % GROUPS]} {' '.join(draw.sample(words, 9))}" for i in range(ROWS)]
    return dict(zip(draw.sample(range(10_000), ROWS), texts, strict=True))


@pytest.fixture
def bench(tmp_path: Path, prompts: dict[int, str], ray_address: str, model_folder: Path) -> Bench:
    dataset = tmp_path / "dataset.parquet"
    pq.write_table(pa.table({"id": list(prompts), "prompt": list(prompts.values())}), dataset)
    settings = {
        "MODEL_NAME": model_folder,
        "INPUT_PATH": dataset,
        "OUTPUT_LEN": OUTPUT_LEN,
        "CONCURRENCY": 2,
        "PLANNED_MAX_IN_FLIGHT": IN_FLIGHT,
        "PLANNED_PART_S": 0.1,
        # Several windows, so that kills also fall between them.
        "PLANNED_WINDOW_TOKENS": 30_000,
    }
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'benchmarking' / 'vllm'}",
        "RAY_ADDRESS": ray_address,
        "BENCH_PROFILE": "local-cpu",
        "SIMULATED_STEP_S": str(STEP_S),
        **{f"BENCH_{name}": str(value) for name, value in settings.items()},
    }
    return Bench(environment, tmp_path / "run", prompts)


def test_without_trouble_every_row_is_given_to_one_engine_once(bench: Bench, tokenizer: Any) -> None:
    bench.run()
    bench.assert_all_answered(tokenizer)
    assert set(bench.given().values()) == {1}
    told = bench.told()
    assert told.pop("max_rss_bytes") > 0
    assert told == {"lost_engines": [], "redone_rows": 0, "continued_rows": 0, "given_up": {}}
    assert not list((bench.folder / "answers").glob("unfinished-*"))


def test_planning_and_the_engines_start_do_not_wait_for_each_other(bench: Bench, tokenizer: Any) -> None:
    bench.run(SIMULATED_OVERLAP=1)
    bench.assert_all_answered(tokenizer)
    assert (bench.folder / "planned").exists()


def test_an_engine_that_does_not_start_is_replaced_once_another_has_started(bench: Bench, tokenizer: Any) -> None:
    bench.run(SIMULATED_BROKEN=1, SIMULATED_ENGINES=2)
    bench.assert_all_answered(tokenizer)
    (reason,) = bench.told()["lost_engines"]
    assert "does not start" in reason
    assert len(bench.engines()) == 2


def test_engines_none_of_which_starts_end_the_run_with_the_reason(bench: Bench) -> None:
    with bench.start(SIMULATED_BROKEN=9) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no engine started; the first to fail: " in errors
    assert "does not start" in errors


def test_a_row_that_engines_refuse_is_named_and_the_others_are_answered(bench: Bench, tokenizer: Any) -> None:
    row = next(iter(bench.prompts))
    first = tokenizer.encode(bench.prompts[row])[0]
    same = frozenset(i for i, prompt in bench.prompts.items() if tokenizer.encode(prompt)[0] == first)
    bench.run(SIMULATED_REFUSED=first)
    bench.assert_all_answered(tokenizer, but=same)
    assert set(bench.told()["given_up"]) == set(map(str, same))
    assert "does not like it" in bench.told()["given_up"][str(row)]


def test_a_row_that_kills_engines_is_named_and_the_others_are_answered(bench: Bench, tokenizer: Any) -> None:
    deadly = 20_000
    bench.prompts = {**bench.prompts, deadly: " zebra and nothing else"}
    first = tokenizer.encode(bench.prompts[deadly])[0]
    assert sum(tokenizer.encode(prompt)[0] == first for prompt in bench.prompts.values()) == 1
    dataset = Path(bench.environment["BENCH_INPUT_PATH"])
    pq.write_table(pa.table({"id": list(bench.prompts), "prompt": list(bench.prompts.values())}), dataset)
    bench.run(SIMULATED_DEADLY=first)
    bench.assert_all_answered(tokenizer, but=frozenset([deadly]))
    assert list(bench.told()["given_up"]) == [str(deadly)]
    # Apart with few others first, unless there were none.
    assert len(bench.told()["lost_engines"]) in (3, 4)


KILLS = 3


def kill_engines(bench: Bench, process: "subprocess.Popen[str]", rng: random.Random) -> int:
    """Kills as long as the run lasts, at most KILLS times, within a second of rows being given to an engine: its
    process, or only the simulated core in it. Returns how many."""
    killed: list[int] = []
    for _ in range(KILLS):
        before = sum(bench.given().values())
        wait_for(lambda before=before: sum(bench.given().values()) > before or process.poll() is not None)  # type: ignore[misc]
        time.sleep(rng.random())
        alive = [engine for engine in bench.engines() if psutil.pid_exists(engine) and engine not in killed]
        if not alive or process.poll() is not None:
            break
        killed.append(rng.choice(sorted(alive)))
        if rng.random() < 0.5:
            (bench.folder / f"{killed[-1]}.kill-core").touch()
        else:
            with suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)
    return len(killed)


@pytest.mark.parametrize("seed", range(5))
def test_engines_killed_at_random_moments_cost_no_row_and_double_none(seed: int, bench: Bench, tokenizer: Any) -> None:
    with bench.start() as process:
        killed = kill_engines(bench, process, random.Random(seed))
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]
    bench.assert_all_answered(tokenizer)
    given = bench.given()
    again = sum(given.values()) - len(given)
    # Those in flight (and two that join as others leave), and those that had ended but were not reported.
    assert again <= killed * (IN_FLIGHT + START_LAG) * (1 + REPORT_S / (OUTPUT_LEN * STEP_S))
    # The last one may have had nothing left to do.
    assert killed - 1 <= len(bench.told()["lost_engines"]) <= killed


@pytest.mark.parametrize("seed", range(3))
def test_a_driver_killed_at_random_moments_is_continued_by_the_next_run(
    seed: int, bench: Bench, tokenizer: Any
) -> None:
    rng = random.Random(seed)
    for _ in range(KILLS):
        before = sum(bench.given().values())
        with bench.start() as process:
            wait_for(lambda before=before: sum(bench.given().values()) > before)  # type: ignore[misc]
            time.sleep(rng.random())
            process.kill()
        wait_for(lambda: not any(psutil.pid_exists(engine) for engine in bench.engines()))
    started = sum(bench.given().values())
    bench.run()
    bench.assert_all_answered(tokenizer)
    # What was finished is not computed again, but for the rows in flight and those of the last moment's part.
    a_moment_s = 1.0
    lost_a_kill = 2 * IN_FLIGHT * (1 + a_moment_s / (OUTPUT_LEN * STEP_S))
    assert bench.told()["continued_rows"] >= started - KILLS * lost_a_kill
    assert sum(bench.given().values()) - ROWS <= KILLS * lost_a_kill
    assert not list((bench.folder / "answers").glob("unfinished-*"))
