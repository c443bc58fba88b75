"""A user's own trace: JSON Lines or Parquet with arrival time, prompt, output length and, if known, family.

Columns: `arrival_s` (seconds, any zero), `prompt` (text), `output_len` (tokens), `family` (text, optional),
`cancel_after` (tokens after which the caller went away, optional).
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import config
from harness.preflight import prompt_length
from harness.serving import traffic
from harness.serving.traffic import Request

NEEDED = ("arrival_s", "prompt", "output_len")
SHOWN = 3


class TraceError(ValueError):
    """A trace cannot be used; the message names file, rows and what was expected."""


def load(path: str | Path, tokenizer: Any = None) -> list[Request]:
    """All requests in order of arrival. Raises TraceError naming the first bad rows; none is skipped.

    With a tokenizer those count as bad too that are longer than MAX_MODEL_LEN, which a server refuses.
    """
    rows = _rows(Path(path))
    wrong = [f"row {number}: {problem}" for number, row in enumerate(rows) if (problem := _problem(row))]
    if not wrong and tokenizer is not None:
        wrong = list(_too_long(rows, tokenizer))
    if wrong or not rows:
        raise TraceError(
            f"{path}: expected rows with {', '.join(NEEDED)}; found {len(wrong)} of {len(rows)} that do not fit "
            f"({'; '.join(wrong[:SHOWN])}). Correct or remove them: a trace is used whole or not at all."
        )
    requests = [
        Request(
            family=str(row.get("family") or "trace"),
            prompt=row["prompt"],
            output_len=row["output_len"],
            cancel_after=row.get("cancel_after"),
            arrival_s=float(row["arrival_s"]),
        )
        for row in rows
    ]
    return sorted(requests, key=lambda request: request.arrival_s or 0.0)


def fingerprint(requests: Sequence[Request]) -> str:
    """Tells a trace from another one that took its place."""
    return traffic.fingerprint([(request.arrival_s or 0.0, request) for request in requests])[:8]


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise TraceError(f"{path}: expected a trace (.jsonl or .parquet), found {found}")
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        table: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return table
    return [
        _row(path, number, line)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines())
        if line.strip()
    ]


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{path}, line {number + 1}: expected a JSON object, found {line[:60]!r} ({error})") from None
    if not isinstance(row, dict):
        raise TraceError(f"{path}, line {number + 1}: expected a JSON object, found {line[:60]!r}")
    return row


def _too_long(rows: list[dict[str, Any]], tokenizer: Any) -> Iterator[str]:
    """Encodes only the prompts whose bytes do not show that they are short enough."""
    beyond = prompt_length.tokens_beyond_bytes(tokenizer)
    sizes = ((number, len(row["prompt"].encode()) + beyond + row["output_len"]) for number, row in enumerate(rows))
    numbers = [number for number, most in sizes if most > config.MAX_MODEL_LEN]
    prompts = prompt_length.encode(tokenizer, [rows[number]["prompt"] for number in numbers])
    for number, prompt in zip(numbers, prompts, strict=True):
        output_len = rows[number]["output_len"]
        if len(prompt) + output_len > config.MAX_MODEL_LEN:
            found = f"row {number}: {len(prompt):,} prompt and {output_len:,} output tokens"
            yield f"{found}, expected at most MAX_MODEL_LEN ({config.MAX_MODEL_LEN:,}) together"


def _problem(row: dict[str, Any]) -> str | None:
    at, prompt, output_len, cancel = (row.get(name) for name in (*NEEDED, "cancel_after"))
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        return f"arrival_s {at!r}, expected seconds"
    if not isinstance(prompt, str) or not prompt.strip():
        return f"prompt {prompt!r:.40}, expected text"
    if type(output_len) is not int or output_len < 1:
        return f"output_len {output_len!r}, expected tokens, 1 or more"
    if cancel is not None and (type(cancel) is not int or not 1 <= cancel <= output_len):
        return f"cancel_after {cancel!r}, expected tokens from 1 to output_len, or nothing"
    return None
