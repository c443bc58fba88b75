"""Fixtures that several tests share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
