"""Every strategy on a cluster of several nodes: a head and two workers, each a raylet of its own, workers without the
suite on their path, data on S3, the real engine on CPU with logical GPUs. What comes back, and what when one dies."""

import json
import queue
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import ray_nodes
from harness import record_file, schema
from ray_nodes import Nodes, wait_for

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "benchmarking" / "vllm"
STRATEGIES = sorted(path.stem for path in SUITE.glob("*.py") if "run(__file__" in path.read_text())
AS_A_JOB = "prefix-bucketing"
ROWS, OUTPUT_LEN, PROMPT_LEN = 64, 8, 40
# Long enough that a node can be killed in the middle, in batches small enough that both engines get some.
BATCHES = dict.fromkeys(("NAIVE_BATCH_SIZE", "CONTINUOUS_BATCH_SIZE", "RAY_BATCH_SIZE"), 8)
LONG = {"OUTPUT_LEN": 300, "MAX_NUM_SEQS": 4, **BATCHES, "WATCHDOG_STALL_S": 45}
# Runs the lost rows again on the engines that are left; others return too few, or none.
SEES_TO_IT = ("prefix-planned",)
TIMEOUT_S = 240
# A dead node is noticed within seconds; rows that are lost for good end the run after the stall limit.
BOUND_S = 180


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """A loopback S3 with a bucket `data`; the environment in which it is found."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"AWS_ACCESS_KEY_ID": "AKIATESTKEYID", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in access.items():
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="data")
        yield {**access, "BENCH_S3_ENDPOINT_URL": endpoint}
    server.stop()


@pytest.fixture(scope="module")
def files(store: dict[str, str]) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(endpoint_override=store["BENCH_S3_ENDPOINT_URL"], region="us-east-1")


@pytest.fixture(scope="module")
def dataset(files: pafs.S3FileSystem, tokenizer: Any) -> str:
    """ROWS prompts in four files, none like another."""
    draw = random.Random(3)
    words = sorted(word for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha())
    for part in range(4):
        ids = list(range(part * ROWS // 4, (part + 1) * ROWS // 4))
        prompts = ["".join(f" {word[1:]}" for word in draw.sample(words, PROMPT_LEN)) for _ in ids]
        pq.write_table(pa.table({"id": ids, "prompt": prompts}), f"data/set/{part}.parquet", filesystem=files)
    return "s3://data/set"


@pytest.fixture(scope="module")
def nodes(store: dict[str, str]) -> Iterator[Nodes]:
    access = {name: value for name, value in store.items() if name.startswith("AWS_")}
    with ray_nodes.cluster(workers=2, HF_HUB_OFFLINE="1", **access) as started:
        yield started


@pytest.fixture(scope="module")
def knobs(store: dict[str, str], dataset: str, model_folder: Path) -> dict[str, str]:
    """Two engines, one a node."""
    settings = {
        "PROFILE": "local-cpu",
        "MODEL_NAME": model_folder,
        "INPUT_PATH": dataset,
        "OUTPUT_PATH": "s3://data/answers",
        "OUTPUT_LEN": OUTPUT_LEN,
        "CONCURRENCY": 2,
        "GPUS_PER_ENGINE": 1,
        "LOGICAL_GPUS": True,
        "KV_CACHE_MEMORY_BYTES": 2**28,
    }
    return {**store, **{f"BENCH_{name}": str(value) for name, value in settings.items()}}


def environment(nodes: Nodes, knobs: dict[str, str], folder: Path, **more: Any) -> dict[str, str]:
    """A user's on the head node."""
    overrides = {f"BENCH_{name}": str(value) for name, value in more.items()}
    results = {"BENCH_RESULTS_PATH": str(folder)}
    return {**nodes.environ, "RAY_ADDRESS": nodes.address, **results, **knobs, **overrides}


def start(script: str, environ: dict[str, str], folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SUITE / f"{script}.py")]
    return subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_whole(record: dict[str, Any], nodes: Nodes, files: pafs.S3FileSystem) -> None:
    """Every row once, from one engine on each worker node; the answers are on S3."""
    assert (record["status"], record["error"]) == ("ok", None)
    assert schema.problems(record) == []
    assert record["rows"]["in"] == record["rows"]["out"] == ROWS
    assert record["tokens"]["output"] == ROWS * OUTPUT_LEN
    assert sorted(engine["node"] for engine in record["engines"]) == sorted(node.address for node in nodes.workers)
    assert record["hardware"]["nodes"] == 3
    answers = pq.read_table(f"data/answers/{record['run_id']}.parquet", filesystem=files)
    assert sorted(answers["id"].to_pylist()) == list(range(ROWS))


def test_more_engines_than_the_clusters_gpus_are_refused_within_30_s_with_both_numbers_and_the_setting(
    nodes: Nodes, knobs: dict[str, str], tmp_path: Path
) -> None:
    began = time.monotonic()
    with start("continuous-batch", environment(nodes, knobs, tmp_path, CONCURRENCY=3), tmp_path) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert time.monotonic() - began < 30
    assert process.returncode == 3
    assert "expected 3 GPUs in the Ray cluster (CONCURRENCY 3 x 1), found 2. Set CONCURRENCY to at most 2" in errors


@pytest.mark.parametrize("script", [name for name in STRATEGIES if name != AS_A_JOB])
def test_a_strategy_started_on_the_head_node_answers_every_row_on_workers_without_the_suite(
    script: str, nodes: Nodes, knobs: dict[str, str], files: pafs.S3FileSystem, tmp_path: Path
) -> None:
    with start(script, environment(nodes, knobs, tmp_path), tmp_path) as process:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output[-2000:] + errors[-3000:]
    record = json.loads(output.splitlines()[-1])
    assert record_file.load(tmp_path) == [record]
    assert_whole(record, nodes, files)
    wait_for(lambda: not engines_left(nodes), "the engines to end with their run")


def engines_left(nodes: Nodes) -> list[psutil.Process]:
    family = [process for node in nodes.workers for process in node.family()]
    return [process for process in family if process.name().startswith("VLLM")]


def test_a_job_submitted_to_the_cluster_answers_every_row_and_its_record_comes_back(
    nodes: Nodes, knobs: dict[str, str], files: pafs.S3FileSystem, tmp_path: Path
) -> None:
    """The README's own commands, with this cluster's addresses and settings in place of the reader's."""
    submit, fetch = readme_commands("ray job submit", "python -m harness.remote_records")
    submit = submit.replace("http://HEAD:8265", nodes.dashboard).replace('{"env_vars": {', job_variables(knobs))
    done, fetched = (
        subprocess.run(
            command.replace("s3://my-bucket/results", "s3://data/results"),
            shell=True,
            env=environment(nodes, knobs, tmp_path),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        for command in (submit, fetch)
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert fetched.returncode == 0, fetched.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"schema"')]
    assert record_file.load(tmp_path) == [json.loads(line)]
    assert re.fullmatch("[0-9a-f]{40}", json.loads(line)["commit"])
    assert_whole(json.loads(line), nodes, files)


def readme_commands(*starts: str) -> list[str]:
    """The README's lines of code that run these."""
    lines = (SUITE / "README.md").read_text().splitlines()
    return [next(line for line in lines if re.match(rf"(cd \S+ && )?{start} ", line)) for start in starts]


def job_variables(knobs: dict[str, str]) -> str:
    variables = {name: value for name, value in knobs.items() if name.startswith("BENCH_")}
    return '{"env_vars": ' + json.dumps(variables)[:-1] + ", "


@pytest.mark.parametrize("script", STRATEGIES)
def test_a_node_killed_in_mid_run_is_named_with_its_rows_and_the_run_ends_in_bounded_time(
    script: str, nodes: Nodes, knobs: dict[str, str], tmp_path: Path
) -> None:
    with start(script, environment(nodes, knobs, tmp_path, **LONG), tmp_path) as process:
        lines = follow(process)
        victim = nodes.take(first_to_generate(lines))
        victim.kill()
        killed = time.monotonic()
        try:
            output, _ = process.communicate(timeout=BOUND_S)
        finally:
            process.kill()
            nodes.add_worker()
    record = json.loads(output.splitlines()[-1])
    print(f"{script}: {time.monotonic() - killed:.0f} s after the kill {record['status']}: {record['error']}")
    if script in SEES_TO_IT:
        assert (record["status"], record["error"], record["rows"]["out"]) == ("ok", None, ROWS)
        assert record["rows"]["redone"] > 0
        assert any(victim.address in warning for warning in record["warnings"])
        return
    assert record["status"] in ("invalid", "failed")
    assert process.returncode == {"invalid": 1, "failed": 2}[record["status"]]
    lost = rf"node {victim.address} \(id \w+\) is gone .* and with it engine {victim.address}:\d+: when last heard, "
    rows = rf"\d+ requests in flight and \d+ answered there; \d+ of {ROWS} rows answered elsewhere"
    assert re.search(lost + rows, record["error"])
    assert any(victim.address in warning for warning in record["warnings"])
    if record["status"] == "invalid":  # the strategy returned: every row is back, or counted as missing
        counts = record["rows"]
        assert counts["out"] + counts["missing"] == ROWS
        assert bool(counts["missing"]) == (f"{counts['missing']} of {ROWS} rows missing" in record["error"])


def follow(process: "subprocess.Popen[str]") -> "queue.Queue[str | None]":
    """The process's stderr, line by line, read to its end in a thread of its own."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line)
            print(line, end="")
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def first_to_generate(lines: "queue.Queue[str | None]") -> str:
    """The address of the first node whose engine has generated tokens."""
    while (line := lines.get(timeout=TIMEOUT_S)) is not None:
        if found := re.search(r"engine ([\d.]+):\d+ generates", line):
            return found[1]
    raise AssertionError("the run ended before an engine generated")
