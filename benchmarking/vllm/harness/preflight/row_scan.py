"""What one pass over a dataset's rows gathers: faults with the first rows that have them, ids, bytes, lengths."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from harness.data import dataset
from harness.preflight import prompt_length
from harness.preflight.problem import FIRST, Problem
from harness.target_length import target_length

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Limit(NamedTuple):
    """Most tokens that a prompt may have, why, and the settings that move it."""

    tokens: int
    reason: str
    change: str


@dataclass
class Fault:
    """How many rows have it, and the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, start: int, ids: Any, rows: Ints, tokens: Ints | None = None) -> None:
        """`rows` of a batch that begins at the dataset's row `start`; `tokens` where the fault is a prompt's length."""
        self.count += len(rows)
        for i, row in enumerate(rows[: FIRST - len(self.first)].tolist()):
            length = "" if tokens is None else f", {tokens[i]:,} tokens"
            self.first.append(f"row {start + row} (id {ids[row]!s:.80}{length})")

    def add_unreadable(self, start: int, rows: Ints) -> None:
        """Rows whose id may not be text either."""
        self.count += len(rows)
        self.first += [f"row {start + row}" for row in rows[: FIRST - len(self.first)].tolist()]


@dataclass
class RowScan:
    """Feed it every batch of `id` and `prompt`, then ask for its problems. Without a tokenizer no length is known."""

    tokenizer: Any
    limit: Limit
    varying: bool  # output lengths vary by prompt, so every prompt is encoded
    rows: int = 0
    prompt_bytes: int = 0
    prompt_tokens: int = 0  # of those that were encoded
    first_prompts: list[str] = field(default_factory=list)
    digest: int = 0
    ids: list[Any] = field(default_factory=list)
    output_lengths: list[int] = field(default_factory=list)
    garbled: Fault = field(default_factory=Fault)
    null: Fault = field(default_factory=Fault)
    blank: Fault = field(default_factory=Fault)
    long: Fault = field(default_factory=Fault)

    def add(self, batch: pa.RecordBatch) -> None:
        ids: Any = batch["id"]
        prompts: Any = batch["prompt"]
        if len(garbled := np.flatnonzero(_garbled(ids) | _garbled(prompts))):
            self.garbled.add_unreadable(self.rows, garbled)
            self.rows += len(ids)
            return
        valid = _flags(ids.is_valid()) & _flags(prompts.is_valid())
        blank = _flags(pc.equal(pc.utf8_trim_whitespace(prompts), pa.scalar("", prompts.type)))
        sizes: Ints = pc.binary_length(prompts).fill_null(0).to_numpy()
        self.null.add(self.rows, ids, np.flatnonzero(~valid))
        self.blank.add(self.rows, ids, np.flatnonzero(blank))
        if self.tokenizer is not None:
            self._measure(ids, prompts, sizes, valid)
        if not self.null.count:
            self.digest += dataset.batch_digest(batch)
        if not self.rows:
            self.first_prompts = prompts.slice(0, FIRST).to_pylist()
        self.ids.append(ids)
        self.rows += len(ids)
        self.prompt_bytes += int(sizes.sum())

    def _measure(self, ids: Any, prompts: Any, sizes: Ints, valid: Flags) -> None:
        """Encodes the prompts whose bytes alone do not show that they are short enough."""
        most = sizes + prompt_length.tokens_beyond_bytes(self.tokenizer)
        rows = np.flatnonzero(valid & (self.varying | (most > self.limit.tokens)))
        encoded = prompt_length.encode(self.tokenizer, prompts.take(pa.array(rows)).to_pylist())
        tokens = np.array([len(prompt) for prompt in encoded], dtype=np.int64)
        self.prompt_tokens += int(tokens.sum())
        over = tokens > self.limit.tokens
        self.long.add(self.rows, ids, rows[over], tokens[over])
        if self.varying:
            self.output_lengths += map(target_length, encoded)

    def problems(self) -> Iterator[Problem]:
        if self.garbled.count:
            yield _bad_rows("text in UTF-8 in every id and prompt", self.garbled, "with other bytes")
        if self.null.count:
            yield _bad_rows("an id and a prompt in every row", self.null, "with a null")
        if self.blank.count:
            yield _bad_rows("text in every prompt", self.blank, "with none")
        if self.long.count:
            expected = f"prompts of at most {self.limit.tokens:,} tokens ({self.limit.reason})"
            yield _bad_rows(expected, self.long, "with a longer one", f"{self.limit.change}, or ")
        if self.ids and (repeated := self._repeated_ids()):
            first = [f"id {i}" for i in repeated]
            yield Problem("every id once", f"{len(repeated):,} ids repeated", "Give every row an id of its own", first)

    def _repeated_ids(self) -> list[Any]:
        """In order of their first row; a null is no id."""
        counts: Any = pa.chunked_array(self.ids).drop_null().value_counts()
        more_than_once = counts.field("counts").to_numpy() > 1
        repeated: list[Any] = counts.field("values").filter(pa.array(more_than_once)).to_pylist()
        return repeated


def _bad_rows(expected: str, fault: Fault, what: str, change: str = "") -> Problem:
    remedy = f"{change}remove or repair these rows"
    return Problem(expected, f"{fault.count:,} rows {what}", remedy[0].upper() + remedy[1:], fault.first)


def _garbled(column: Any) -> Flags:
    """Rows of text that is not UTF-8: writers need not look, Daft and Python do."""
    try:
        column.validate(full=True)
        return np.zeros(len(column), dtype=np.bool_)
    except pa.ArrowInvalid:
        values = column.cast(pa.large_binary()).to_pylist()
        return np.array([value is not None and not _is_utf8(value) for value in values], dtype=np.bool_)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _flags(values: Any) -> Flags:
    """A pyarrow boolean array as numpy's; null counts as false."""
    flags: Flags = values.fill_null(False).to_numpy(zero_copy_only=False)
    return flags
