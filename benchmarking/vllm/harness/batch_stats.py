"""Shows vLLM's own statistics of an `LLM` to the user of the driver."""

import logging
from typing import Any

from harness import engine_probe

HEADING = " BATCH INFERENCE STATS "


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def show(llm: Any) -> None:
    """Sends what `do_log_stats` logs since the last call, under a heading, to the driver's stderr."""
    lines: list[str] = []
    handler = _Lines(lines)
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        llm.llm_engine.do_log_stats()
    finally:
        logger.removeHandler(handler)
    engine_probe.report("\n".join([HEADING.center(42, "="), *lines, "=" * 42]))
