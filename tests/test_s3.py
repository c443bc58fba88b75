"""S3, against a real S3-speaking server: our own path, Daft's and Ray Data's, and what happens when it is not there."""

import pickle
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import config
import daft
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
import ray
from harness.data import dataset, generator, storage
from harness.data.prompts import Shape
from harness.data.storage import StorageError

SHAPE = Shape(rows=50, prefixes=3, prefix_len=16, suffix_len=16)
URL = "s3://data/sets/50_0-5_3.parquet"
SECRETS = ("AKIATESTKEYID", "test-secret-access-key")


@pytest.mark.usefixtures("s3_endpoint")
def test_a_dataset_written_to_s3_is_read_whole_by_pyarrow_daft_and_ray_data(tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "prompt=v2"
    for number, notes in enumerate((["x", "y"], [1, 2])):  # a column of other types in other files
        folder.mkdir(exist_ok=True)
        rows_of_file = {"id": [2 * number, 2 * number + 1], "prompt": ["a b"] * 2, "note": notes}
        pq.write_table(pa.table(rows_of_file), folder / f"{number}.parquet")
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
        through_ray = ray.data.read_parquet(path, filesystem=filesystem, schema=dataset.schema(URL)).take_all()
        beside = ray.data.read_parquet(str(folder), schema=dataset.schema(folder), partitioning=None).take_all()
    finally:
        ray.shutdown()
    assert sorted((row["id"], row["prompt"]) for row in through_ray) == rows
    # As Daft and prefix-planned do, it minds no column that no strategy uses.
    assert daft.read_parquet(str(folder)).select("id", "prompt").count_rows() == 4
    assert sorted(beside, key=lambda row: row["id"]) == [{"id": number, "prompt": "a b"} for number in range(4)]


@pytest.mark.usefixtures("s3_endpoint")
def test_credentials_are_not_in_what_is_handed_to_the_engines() -> None:
    handed_out = (storage.filesystem(URL)[0], storage.daft_io_config())
    texts = [*map(repr, handed_out), *(pickle.dumps(value).decode("latin-1") for value in handed_out)]
    assert not [secret for secret in SECRETS for text in texts if secret in text]


@pytest.mark.usefixtures("s3_endpoint")
def test_requests_are_signed_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            signatures.append(self.headers["Authorization"])
            self.send_error(403)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Keeps the test's output clean."""

    signatures: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(config, "S3_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(StorageError, match="ACCESS_DENIED"):
            read(URL)
        seen_from_pyarrow = len(signatures)
        with pytest.raises(daft.exceptions.DaftCoreException):
            daft.read_parquet(URL, io_config=storage.daft_io_config()).count_rows()
        server.shutdown()
    assert 0 < seen_from_pyarrow < len(signatures)
    assert all("Credential=AKIATESTKEYID/" in signature for signature in signatures)


@pytest.mark.usefixtures("s3_endpoint")
@pytest.mark.parametrize("action", ["read", "make"])
def test_a_missing_bucket_is_named_with_the_endpoint_and_what_to_set(tokenizer: Any, action: str) -> None:
    with pytest.raises(StorageError) as caught:
        read("s3://absent/sets") if action == "read" else generator.make(SHAPE, tokenizer, "s3://absent/sets")
    assert_names_what_to_do(str(caught.value), "s3://absent/sets")


@pytest.mark.usefixtures("s3_endpoint")
def test_an_unreachable_endpoint_fails_within_seconds(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        monkeypatch.setattr(config, "S3_ENDPOINT_URL", f"http://127.0.0.1:{closed_soon.getsockname()[1]}")
    start = time.monotonic()
    with pytest.raises(StorageError) as caught:
        read(URL)
    with pytest.raises(StorageError):
        generator.make(SHAPE, tokenizer, "s3://data/sets")
    assert time.monotonic() - start < 10
    assert_names_what_to_do(str(caught.value), URL)


@pytest.mark.usefixtures("s3_endpoint")
def test_an_endpoint_that_never_answers_fails_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(storage, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(config, "S3_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StorageError) as caught:
            read(URL)
    assert_names_what_to_do(str(caught.value), URL)


@pytest.mark.usefixtures("s3_endpoint")
def test_a_credential_in_an_error_of_the_store_is_blanked() -> None:
    error = storage.failure(URL, OSError(f"no such key {SECRETS[0]}, signed with {SECRETS[1]}"))
    assert "no such key <AWS_ACCESS_KEY_ID>, signed with <AWS_SECRET_ACCESS_KEY>" in str(error)


@pytest.mark.parametrize("endpoint", ["minio:9000", "127.0.0.1", "", "ftp://minio", "http://", "http://minio:port"])
def test_an_endpoint_that_is_no_url_is_refused_with_what_it_should_be(
    monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setattr(config, "S3_ENDPOINT_URL", endpoint)
    for use in (lambda: storage.filesystem("s3://data/x"), storage.daft_io_config):
        with pytest.raises(StorageError) as caught:
            use()
        assert f"expected S3_ENDPOINT_URL as http://host:port or https://host, found {endpoint!r}" in str(caught.value)
    assert storage.filesystem("local")[1].endswith("/local")


def test_another_scheme_is_refused() -> None:
    with pytest.raises(StorageError, match="gs://bucket/set: expected a local path or s3://"):
        read("gs://bucket/set")


def test_on_aws_the_region_is_that_of_the_bucket_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "S3_ENDPOINT_URL", None)
    monkeypatch.setattr(pyarrow.fs, "resolve_s3_region", {"data": "eu-north-1"}.__getitem__)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    assert storage.filesystem(URL)[0].region == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "ap-east-1")
    assert storage.filesystem(URL)[0].region == "ap-east-1"


def read(url: str) -> list[Any]:
    return list(dataset.read_batches(url, ["id"]))


def assert_names_what_to_do(message: str, url: str) -> None:
    for part in (url, f"at endpoint {config.S3_ENDPOINT_URL}", "S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "bucket"):
        assert part in message
    assert not [secret for secret in SECRETS if secret in message]
