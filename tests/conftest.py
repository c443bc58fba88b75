"""Fixtures that several tests share."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from script_runs import PROMPT_LEN, ROWS

# No test may wait for a hub, join a Ray that runs here, or depend on a user's overrides.
os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_ADDRESS": "local"}
for name in [name for name in os.environ if name.startswith("BENCH_")]:
    del os.environ[name]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from harness.data import local_model

    return local_model.make(tmp_path_factory.mktemp("model") / "tiny-qwen3")


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="session")
def half_hit(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """ROWS prompts of PROMPT_LEN tokens, each twice under different ids; ids and order are shuffled.

    Beside them lies a column that no strategy is to read: its dates are beyond what Python can hold. Nor is any to take
    the folder's name for a column."""
    draw = random.Random(7)
    words = sorted(word for word in tokenizer.get_vocab() if word.startswith("Ġ") and word[1:].isalpha())
    prompts = ["".join(f" {word[1:]}" for word in draw.sample(words, PROMPT_LEN)) for _ in range(ROWS // 2)]
    assert {len(tokenizer.encode(prompt)) for prompt in prompts} == {PROMPT_LEN}
    rows = list(zip(draw.sample(range(10_000), ROWS), prompts * 2, strict=True))
    draw.shuffle(rows)
    path = tmp_path_factory.mktemp("half-hit") / "prompt=none" / "half_hit.parquet"
    path.parent.mkdir()
    dates = pa.array([2**40] * ROWS, pa.timestamp("s"))
    pq.write_table(pa.table({"id": [row[0] for row in rows], "prompt": [row[1] for row in rows], "at": dates}), path)
    return path


@pytest.fixture
def s3_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real S3-speaking server on loopback with an empty bucket `data`; the suite is configured to use it."""
    import boto3
    import config
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    credentials = {"AWS_ACCESS_KEY_ID": "AKIATESTKEYID", "AWS_SECRET_ACCESS_KEY": "test-secret-access-key"}
    for name, value in {**credentials, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(config, "S3_ENDPOINT_URL", f"http://{host}:{port}")
    boto3.client("s3", endpoint_url=config.S3_ENDPOINT_URL, region_name="us-east-1").create_bucket(Bucket="data")
    yield config.S3_ENDPOINT_URL
    server.stop()
