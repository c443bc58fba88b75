"""Prompts with shared prefixes, of exactly the length that was asked for.

Each token is a space and a lowercase word that the tokenizer knows as one token. Tokenizers split text at such spaces
before they merge characters, so a text of n of these words encodes to n tokens, whichever words meet. Random token ids,
decoded and encoded again, do not keep their length: the published sampler repairs that by trial, prefix and suffix
apart, and still misses some.

Random numbers are the raw bit stream of PCG64, which numpy keeps the same across versions; its Generator methods are
not promised to be. So one seed gives the same prompts on every machine.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema([("id", pa.int64()), ("prompt", pa.string()), ("prompt_len", pa.int32()), ("prefix_id", pa.int32())])
# Tokens at the start of every prefix and suffix that must differ from all others: one KV block, so that no two prompts
# share more of the cache than their prefix.
DISTINCT_LEN = 16

Tokens = np.ndarray[Any, np.dtype[np.uint16]]


@dataclass(frozen=True)
class Shape:
    """What to generate: `rows` prompts of `prefix_len` + `suffix_len` tokens over `prefixes` shared prefixes.

    Without prefixes (0) `prefix_len` must be 0. Group sizes differ by at most one. Raises ValueError if impossible.
    """

    rows: int
    prefixes: int
    prefix_len: int
    suffix_len: int
    seed: int = 42

    def __post_init__(self) -> None:
        if self.rows < max(1, self.prefixes) or self.prefixes < 0:
            raise ValueError(f"{self.rows} rows over {self.prefixes} prefixes: expected at least one row a prefix")
        if (self.prefixes == 0) != (self.prefix_len == 0) or self.suffix_len < 1:
            raise ValueError(f"{self}: expected a suffix, and a prefix length exactly where there are prefixes")

    @property
    def prompt_len(self) -> int:
        return self.prefix_len + self.suffix_len


def words(tokenizer: Any) -> pa.Array:
    """Texts " word" that `tokenizer` encodes to one token each, also in a row; lowest token ids first.

    Their number is a power of two, at most 65,536, so that 16 random bits pick one of them evenly.
    """
    spaced = re.compile("[Ġ▁][a-z]+")  # how byte-level and SentencePiece vocabularies write a leading space
    tokens = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items() if spaced.fullmatch(token))
    known = [(token_id, " " + token[1:]) for token_id, token in tokens]
    if not _encodes_in_a_row(tokenizer, _power_of_two(known)):
        alone = _encode(tokenizer, [text for _, text in known])
        known = [(token_id, text) for (token_id, text), ids in zip(known, alone, strict=True) if ids == [token_id]]
        known = known if _encodes_in_a_row(tokenizer, _power_of_two(known)) else []
    if not known:
        raise ValueError(
            f"tokenizer {tokenizer.name_or_path!r}: expected tokens of a space and a lowercase word that stay one "
            f"token each within a text, found none. Use the sampler 'published'."
        )
    return pa.array([text for _, text in _power_of_two(known)])


def sample(shape: Shape, words: pa.Array, parts: int) -> Iterator[pa.RecordBatch]:
    """Yields `parts` batches of SCHEMA, of equal size but for one row; ids count the rows in order of arrival.

    Rows of different prefixes arrive in random order. The prompts do not depend on `parts`.
    """
    bits = np.random.PCG64(np.random.SeedSequence([shape.seed, shape.prefixes]))
    seen: set[bytes] = set()
    prefixes = _distinct(_draw(bits, len(words), (shape.prefixes, shape.prefix_len)), seen)
    prefix_texts = _join(words, prefixes)
    arrival = np.argsort(bits.random_raw(shape.rows), kind="stable")
    for ids in np.array_split(np.arange(shape.rows), parts):
        suffixes = _join(words, _distinct(_draw(bits, len(words), (len(ids), shape.suffix_len)), seen))
        groups = pa.array(arrival[ids] % shape.prefixes, pa.int32()) if shape.prefixes else None
        texts = pc.binary_join_element_wise(prefix_texts.take(groups), suffixes, "") if groups is not None else suffixes
        yield batch_of(ids, texts, np.full(len(ids), shape.prompt_len), groups)


def encoded_lengths(tokenizer: Any, texts: list[str]) -> list[int]:
    """Tokens of each text, special tokens not counted."""
    # A thousand at a time: while it works, the tokenizer keeps about 100 bytes a token.
    starts = range(0, len(texts), 1000)
    return [len(ids) for start in starts for ids in _encode(tokenizer, texts[start : start + 1000])]


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    encoded: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    return encoded


def _encodes_in_a_row(tokenizer: Any, known: list[tuple[int, str]]) -> bool:
    return _encode(tokenizer, ["".join(text for _, text in known)]) == [[token_id for token_id, _ in known]]


def _power_of_two(known: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return known[: 2 ** min(16, len(known).bit_length() - 1)] if known else []


def _draw(bits: np.random.PCG64, below: int, size: tuple[int, int]) -> Tokens:
    """Whole numbers in [0, below), a power of two, four from each raw 64 bits; a row starts with fresh bits."""
    rows, length = size
    quads = -(-length // 4)
    lanes = bits.random_raw(rows * quads).astype("<u8").view("<u2")
    return (lanes & np.uint16(below - 1)).reshape(rows, quads * 4)[:, :length]


def _distinct(tokens: Tokens, seen: set[bytes]) -> Tokens:
    """`tokens`, rows by length, after checking that no row starts as another one or one in `seen`, which grows."""
    expected = len(seen) + len(tokens)
    seen.update(row.tobytes() for row in tokens[:, :DISTINCT_LEN])
    if len(seen) != expected:
        raise ValueError(
            f"{expected - len(seen)} of {expected} prefixes and suffixes start with the same {DISTINCT_LEN} tokens as "
            f"another: expected none. Ask for fewer rows, longer texts or another seed."
        )
    return tokens


def _join(words: pa.Array, tokens: Tokens) -> pa.Array:
    rows, length = tokens.shape
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * np.int32(length))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, words.take(pa.array(tokens.ravel()))), "")


def batch_of(ids: Any, texts: pa.Array, lengths: Any, groups: pa.Array | None) -> pa.RecordBatch:
    """One batch of SCHEMA; without groups, `prefix_id` is null."""
    prefix_ids = pa.nulls(len(ids), pa.int32()) if groups is None else groups
    return pa.record_batch([pa.array(ids), texts, pa.array(lengths, pa.int32()), prefix_ids], schema=SCHEMA)
