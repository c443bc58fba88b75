"""Keeps the noise of the libraries out of what the user sees; config.py calls it, before any of them is imported."""

import io
import logging
import os
import sys
from collections.abc import Mapping

# For the driver and every worker: no phoning home, no log lines or progress bars between ours.
EVERYWHERE: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "DAFT_ANALYTICS_ENABLED": "0",
    "DAFT_PROGRESS_BAR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "true",
}
# The driver only imports vLLM; in workers its log stays on, in files, for engine_metrics.read_start_log.
DRIVER_ONLY: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "ERROR"}
WORKERS_ONLY: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "INFO"}


def silence_libraries() -> None:
    """Sets what is not set yet: a user who asks for a library's log gets it."""
    for name, value in {**EVERYWHERE, **DRIVER_ONLY}.items():
        os.environ.setdefault(name, value)


def escape_the_unprintable() -> None:
    """A character that the terminal's encoding lacks is shown as its code; it must not end a script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def silence_ray_loggers() -> None:
    """After ray.init. Ray Data's processor calls it again, which resets levels, but not the handlers' filters."""
    for name in ("ray", "ray.data"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(lambda entry: entry.levelno >= logging.ERROR)
