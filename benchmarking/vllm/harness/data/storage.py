"""Where data lies: local folders and S3, for pyarrow, Ray Data (both take a filesystem) and Daft (takes an IOConfig).

The endpoint is config.S3_ENDPOINT_URL. Credentials come from the AWS default chain of each process (AWS_ACCESS_KEY_ID
and so on, a profile, the machine's role) and are never handed around: neither a filesystem, a plan nor an error holds
one.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import config
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

# Seconds until an endpoint that cannot be connected to, or sends nothing, fails a try; so a wrong one fails in seconds.
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0
TRIES = 3
ENDPOINT_FORM = "http://host:port or https://host"


class StorageError(Exception):
    """A path that cannot be read or written; the message names path, endpoint and what to set."""


def filesystem(url: str | Path) -> tuple[pafs.FileSystem, str]:
    """The pyarrow filesystem of a local path or s3:// URL, and the path within it.

    Raises StorageError for another scheme, for an endpoint that is no URL, or when AWS has to be asked for the
    bucket's region and does not answer.
    """
    scheme, separator, rest = str(url).partition("://")
    if not separator:
        return pafs.LocalFileSystem(), str(Path(url).absolute())
    if scheme != "s3" or not rest.strip("/"):
        raise StorageError(f"{url}: expected a local path or s3://bucket/path")
    endpoint = _endpoint(url)
    retries = pafs.AwsStandardS3RetryStrategy(max_attempts=TRIES)
    store = pafs.S3FileSystem(
        endpoint_override=endpoint,
        region=_region() or _bucket_region(str(url)),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=retries,
    )
    return store, rest.rstrip("/")


def write_table(table: pa.Table, files: pafs.FileSystem, path: str) -> None:
    """Writes a Parquet file that appears whole or not at all. Raises StorageError, naming it, where it cannot be."""
    folder, _, name = path.rpartition("/")
    # A put to S3 is atomic by itself; locally a rename is.
    hidden = f"{folder}/.{name}" if isinstance(files, pafs.LocalFileSystem) else path
    try:
        # With checksums, so that damage is an error and not another answer.
        pq.write_table(table, hidden, filesystem=files, write_page_checksum=True)
        if hidden != path:
            files.move(hidden, path)
    except OSError as error:
        if hidden != path:
            Path(hidden).unlink(missing_ok=True)
        raise failure(path, error) from None


def daft_io_config() -> Any:
    """Daft's IOConfig with the same endpoint and region.

    Daft keeps its own patience with a busy store; that the dataset can be read is known before Daft starts.
    """
    from daft.io import IOConfig, S3Config

    return IOConfig(s3=S3Config(endpoint_url=_endpoint("Daft's IOConfig"), region_name=_region()))


def is_endpoint(text: str) -> bool:
    """Whether this is a URL of a server: the libraries differ in what they make of a bare host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number
        return False


def _endpoint(wanted_for: str | Path) -> str | None:
    if config.S3_ENDPOINT_URL is not None and not is_endpoint(config.S3_ENDPOINT_URL):
        raise StorageError(
            f"{wanted_for}: expected S3_ENDPOINT_URL as {ENDPOINT_FORM}, found {config.S3_ENDPOINT_URL!r}. "
            "Set S3_ENDPOINT_URL; none means AWS"
        )
    return config.S3_ENDPOINT_URL


def failure(url: str | Path, error: Exception) -> StorageError:
    """What to raise (`from None`) when reading or writing `url` fails: no credential survives in it."""
    reason = str(error)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        reason = reason.replace(os.environ.get(name) or "\0", f"<{name}>")
    if not str(url).startswith("s3://"):
        return StorageError(f"{url}: {reason}")
    endpoint = config.S3_ENDPOINT_URL or "AWS"
    return StorageError(
        f"{url} at endpoint {endpoint}: {reason}. Check that the bucket exists, set S3_ENDPOINT_URL in config.py for a "
        "store other than AWS, and AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in the environment"
    )


def _region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _bucket_region(url: str) -> str | None:
    if config.S3_ENDPOINT_URL:
        return None
    try:
        return str(pafs.resolve_s3_region(url.removeprefix("s3://").split("/")[0]))
    except OSError as error:
        raise failure(url, error) from None
