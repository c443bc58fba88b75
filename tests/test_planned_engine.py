"""prefix-planned on real engines: prefixes computed once, no preemption in a small KV cache, kills survived."""

import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.comparison import comparability
from harness.planning.admission import START_LAG
from harness.prediction import forecast, prefix_tree, prompt_set, record_forecast
from harness.prediction.feeding import Dataset
from script_runs import run_script, start_script, wait_until_generating

GROUPS, EACH, PREFIX, OWN, OUTPUT_LEN = 24, 6, 80, 33, 40
ROWS = GROUPS * EACH
# Of the local model 512 bytes a token; 70 requests would fill this many blocks, were they never to grow.
KV_BLOCKS = 257
BLOCK_BYTES = 16 * 512
Run = tuple[dict[str, Any], Dataset]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """Prompts of shared prefixes in random order: 5 whole blocks are shared, and no more."""
    draw = random.Random(11)
    words = sorted(word[1:] for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha())
    stems = [" ".join(draw.sample(words, PREFIX)) for _ in range(GROUPS)]
    prompts = [f" {stem} {' '.join(draw.sample(words, OWN))}" for stem in stems for _ in range(EACH)]
    draw.shuffle(prompts)
    path = tmp_path_factory.mktemp("grouped") / "grouped.parquet"
    pq.write_table(pa.table({"id": range(ROWS), "prompt": prompts}), path)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, grouped: Path, model_folder: Path) -> Run:
    """A run with a KV cache too small for what the engine may run: its record, and its prompts for the forecast."""
    code, record, errors = run_script(
        "prefix-planned",
        tmp_path_factory.mktemp("small"),
        MODEL_NAME=model_folder,
        INPUT_PATH=grouped,
        OUTPUT_LEN=OUTPUT_LEN,
        MAX_MODEL_LEN=512,
        KV_CACHE_MEMORY_BYTES=KV_BLOCKS * BLOCK_BYTES,
    )
    assert code == 0, errors[-3000:]
    assert record["engines"][0]["settings"]["num_gpu_blocks"] == KV_BLOCKS
    loaded = prompt_set.load(grouped, str(model_folder), record_forecast.settings(record), cache=None)
    return record, loaded.data


def test_each_prefixs_blocks_are_computed_once_by_the_engines_counters(small: Run) -> None:
    record, data = small
    hits = record["counters"]["prefix_cache_hits"]
    assert hits == prefix_tree.possible_hits(data.prompts) == (ROWS - GROUPS) * PREFIX


def test_nothing_is_preempted_where_others_are(small: Run) -> None:
    record, data = small
    assert record["counters"]["preemptions"] == 0
    knobs, limits = record_forecast.settings(record), record_forecast.limits(record)
    for strategy in ("continuous-batch", "continuous-batch-sorted", "ray-data"):
        assert forecast.forecast(strategy, data, knobs, limits).preemptions > 0


def test_the_small_cache_is_full_of_requests(small: Run) -> None:
    """A request holds 3 blocks of its own, 0 to 3 of its output, and shares 5 with 5 others at best."""
    record, _ = small
    assert record["engines"][0]["max_running"] > 0.8 * KV_BLOCKS / (3 + 3 + 1)


def test_the_forecast_is_what_the_counters_count(small: Run) -> None:
    record, data = small
    predicted = record_forecast.predict(record, data)
    assert predicted is not None
    found = {name: record["counters"][f"prefix_cache_{name}"] for name in ("queries", "hits")}
    assert {"queries": predicted.queries, "hits": predicted.hits} == found
    assert predicted.preemptions == 0


def test_the_engine_is_told_nothing_that_the_others_are_not(small: Run) -> None:
    record, _ = small
    assert record["rows"]["continued"] == record["rows"]["redone"] == 0
    assert comparability.disturbances(record) == []


@pytest.mark.cluster
def test_a_killed_run_is_continued_and_survives_its_engines_death_with_every_row_once(
    tmp_path: Path, grouped: Path, model_folder: Path
) -> None:
    """On a real engine: first the driver is killed, then the core process of the run that continues it."""
    knobs = {
        "MODEL_NAME": model_folder,
        "INPUT_PATH": grouped,
        "OUTPUT_PATH": tmp_path / "answers",
        "OUTPUT_LEN": 300,
        "PLANNED_MAX_IN_FLIGHT": 16,
        "PLANNED_PART_S": 0.2,
    }
    with start_script("prefix-planned", tmp_path, **knobs) as process:
        family = wait_until_generating(process)
        wait_for_parts(tmp_path / "answers")
        engine = [child for child in family if child.name().startswith("VLLM")]
        process.kill()
    # Ray's own agents take their time.
    assert psutil.wait_procs(engine, timeout=60)[1] == []
    kept = sum(len(pq.read_table(part)) for part in (tmp_path / "answers").glob("unfinished-*/*.parquet"))
    with start_script("prefix-planned", tmp_path, **knobs) as process:
        family = wait_until_generating(process)
        next(child for child in family if child.name().startswith("VLLM")).send_signal(signal.SIGKILL)
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]
    record = json.loads(output.strip().splitlines()[-1])
    assert (record["status"], record["rows"]["out"], record["rows"]["doubled"]) == ("ok", ROWS, 0)
    assert record["rows"]["continued"] == kept > 0
    assert 0 < record["rows"]["redone"] <= 16 + START_LAG
    assert len(comparability.disturbances(record)) == 2
    answers = pq.read_table(tmp_path / "answers" / f"{record['run_id']}.parquet")
    assert sorted(answers["id"].to_pylist()) == list(range(ROWS))
    assert psutil.wait_procs(family, timeout=20)[1] == []


def wait_for_parts(folder: Path) -> None:
    command = f"until ls {folder}/unfinished-*/*.parquet > /dev/null 2>&1; do sleep 0.2; done"
    subprocess.run(command, shell=True, check=True, timeout=120)
