"""S3, against a real S3-speaking server: our own path, Daft's and Ray Data's, and what happens when it is not there."""

import pickle
import socket
import time
from typing import Any

import config
import daft
import pytest
import ray
from harness import dataset, generator, storage
from harness.prompts import Shape
from harness.storage import StorageError

SHAPE = Shape(rows=50, prefixes=3, prefix_len=16, suffix_len=16)
URL = "s3://data/sets/50_0-5_3.parquet"
SECRETS = ("AKIATESTKEYID", "test-secret-access-key")


@pytest.mark.usefixtures("s3_endpoint")
def test_a_dataset_written_to_s3_is_read_whole_by_pyarrow_daft_and_ray_data(tokenizer: Any) -> None:
    # Made twice, since replacing objects is where folder markers could come from.
    generator.make(Shape(50, 3, 16, 16, seed=7), tokenizer, "s3://data/sets")
    manifest = generator.make(SHAPE, tokenizer, "s3://data/sets")
    batches = dataset.read_batches(URL, ["id", "prompt"])
    rows = sorted((row["id"], row["prompt"]) for batch in batches for row in batch.to_pylist())
    assert dataset.read_manifest(URL) == manifest
    assert dataset.fingerprint(dataset.read_batches(URL, ["id", "prompt"])) == manifest["fingerprint"]

    through_daft = daft.read_parquet(URL, io_config=storage.daft_io_config()).to_pydict()
    assert sorted(zip(through_daft["id"], through_daft["prompt"], strict=True)) == rows

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        filesystem, path = storage.filesystem(URL)
        through_ray = ray.data.read_parquet(path, filesystem=filesystem).take_all()
    finally:
        ray.shutdown()
    assert sorted((row["id"], row["prompt"]) for row in through_ray) == rows


@pytest.mark.usefixtures("s3_endpoint")
def test_credentials_are_not_in_what_is_handed_to_the_engines() -> None:
    handed_out = (storage.filesystem(URL)[0], storage.daft_io_config())
    texts = [*map(repr, handed_out), *(pickle.dumps(value).decode("latin-1") for value in handed_out)]
    assert not [secret for secret in SECRETS for text in texts if secret in text]


def test_requests_are_signed_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ...


@pytest.mark.usefixtures("s3_endpoint")
def test_a_missing_bucket_is_named_with_the_endpoint(tokenizer: Any) -> None:
    for action in (lambda: generator.make(SHAPE, tokenizer, "s3://absent/sets"), lambda: read("s3://absent/sets")):
        with pytest.raises(StorageError) as caught:
            action()
        assert {"s3://absent/sets", str(config.S3_ENDPOINT_URL), "bucket"} <= words_in(caught)


def read(url: str) -> list[Any]:
    return list(dataset.read_batches(url, ["id"]))
