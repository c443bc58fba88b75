"""Where data lies: local folders and S3, for pyarrow, Ray Data (both take a filesystem) and Daft (takes an IOConfig).

The endpoint is config.S3_ENDPOINT_URL. Credentials come from the AWS default chain of each process (AWS_ACCESS_KEY_ID
and so on, a profile, the machine's role) and are never handed around: neither a filesystem, a plan nor an error holds
one.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

import config

# Seconds until an endpoint that does not answer counts as unreachable, and until one request does.
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 30.0
TRIES = 3


class StorageError(Exception):
    """A path that cannot be read or written; the message names path, endpoint and what to set."""


def filesystem(url: str | Path) -> tuple[pafs.FileSystem, str]:
    """The pyarrow filesystem of a local path or s3:// URL, and the path within it. Nothing is contacted yet.

    Raises StorageError for another scheme.
    """
    scheme, separator, rest = str(url).partition("://")
    if not separator:
        return pafs.LocalFileSystem(), str(Path(url).absolute())
    if scheme != "s3":
        raise StorageError(f"{url}: expected a local path or s3://bucket/path")
    retries = pafs.AwsStandardS3RetryStrategy(max_attempts=TRIES)
    limits = {"connect_timeout": CONNECT_TIMEOUT_S, "request_timeout": REQUEST_TIMEOUT_S}
    return pafs.S3FileSystem(
        endpoint_override=config.S3_ENDPOINT_URL, region=_region(), retry_strategy=retries, **limits
    ), rest.rstrip("/")


def daft_io_config() -> Any:
    """Daft's IOConfig with the same endpoint, region and limits."""
    from daft.io import IOConfig, S3Config

    return IOConfig(
        s3=S3Config(
            endpoint_url=config.S3_ENDPOINT_URL,
            region_name=_region(),
            num_tries=TRIES,
            connect_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
            read_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
        )
    )


def failure(url: str | Path, error: OSError) -> StorageError:
    """What to raise (`from None`) when reading or writing `url` fails: no credential survives in it."""
    reason = str(error)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        reason = reason.replace(os.environ.get(name) or "\0", f"<{name}>")
    if not str(url).startswith("s3://"):
        return StorageError(f"{url}: {reason}")
    endpoint = config.S3_ENDPOINT_URL or "AWS"
    return StorageError(
        f"{url} at endpoint {endpoint}: {reason}. Check that the bucket exists, set S3_ENDPOINT_URL in config.py for a "
        f"store other than AWS, and AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in the environment."
    )


def _region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
