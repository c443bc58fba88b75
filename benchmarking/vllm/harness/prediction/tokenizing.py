"""Token ids of a dataset, on all cores, kept on disk for the next time.

vLLM encodes a text prompt with special tokens, as here. The `tokenizers` library runs a batch on all cores. Only one
chunk's ids are Python objects at a time, so memory does not grow with the dataset.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from harness.prediction.compiled import Int32s, Int64s
from harness.prediction.progress_bar import ProgressBar
from tokenizers import Tokenizer

CHUNK = 1024  # prompts a batch


class Tokens(NamedTuple):
    ids: Int32s  # of all prompts, end to end
    starts: Int64s  # [rows + 1]


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a local folder or of a model on the hub.

    Raises ValueError for a folder without `tokenizer.json`, and where there is one that cannot be loaded.
    """
    folder = Path(model)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        raise ValueError(f"{folder}: expected tokenizer.json, found {sorted(file.name for file in folder.iterdir())}")
    try:
        tokenizer = (
            Tokenizer.from_file(str(folder / "tokenizer.json")) if folder.is_dir() else Tokenizer.from_pretrained(model)
        )
    except Exception as error:  # noqa: BLE001  (the library raises nothing more special)
        raise ValueError(f"{model}: expected a tokenizer, found {error}; give a hub id or a model's folder") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenize(texts: pa.Array, content_key: str, tokenizer: Tokenizer, cache: Path | None) -> Tokens:
    """Token ids of all texts, from `cache` if they are there. `content_key` identifies the texts and their order."""
    key = hashlib.blake2b(f"{content_key} {tokenizer.to_str()}".encode(), digest_size=16).hexdigest()
    if cache is None:
        chunks = list(_encode(texts, tokenizer))
        return _tokens(np.concatenate([ids for ids, _ in chunks] or [np.empty(0, np.int32)]), [n for _, n in chunks])
    ids_file, lengths_file = cache / f"{key}.int32", cache / f"{key}.lengths.npy"
    lengths = _kept_lengths(ids_file, lengths_file)
    if lengths is None:
        try:
            _write(texts, tokenizer, ids_file, lengths_file)
        except OSError as error:  # they only save time
            print(f"tokens are not kept, so the next time takes as long: {error}", file=sys.stderr)
            return tokenize(texts, content_key, tokenizer, None)
        lengths = np.load(lengths_file)
    ids = np.memmap(ids_file, np.int32, mode="r") if lengths.sum() else np.empty(0, np.int32)
    return _tokens(ids, [lengths])


def select(tokens: Tokens, rows: "np.ndarray[Any, np.dtype[np.bool_]]") -> Tokens:
    """The rows where `rows` is true."""
    lengths = np.diff(tokens.starts)
    return _tokens(tokens.ids[np.repeat(rows, lengths)], [lengths[rows]])


def seconds_a_token(texts: pa.Array, tokenizer: Tokenizer) -> float:
    """What one core needs for prompts one at a time, from the first few; 0 without prompts."""
    sample = texts.slice(0, 32).to_pylist()
    for text in sample[:4]:
        tokenizer.encode(text)
    started = time.perf_counter()
    tokens = sum(len(tokenizer.encode(text).ids) for text in sample)
    return (time.perf_counter() - started) / tokens if tokens else 0.0


def _kept_lengths(ids_file: Path, lengths_file: Path) -> Int64s | None:
    """Tokens of each text, or None where nothing is kept, or not all of it: a disk that was full, a copy cut short."""
    try:
        lengths: Int64s = np.load(lengths_file)
        whole = ids_file.stat().st_size == lengths.sum() * np.dtype(np.int32).itemsize
    except (OSError, ValueError, EOFError):
        return None
    return lengths if whole else None


def _write(texts: pa.Array, tokenizer: Tokenizer, ids_file: Path, lengths_file: Path) -> None:
    """The lengths are written last: they say that the ids are whole."""
    ids_file.parent.mkdir(parents=True, exist_ok=True)
    lengths = []
    with ids_file.open("wb") as file:
        for ids, chunk_lengths in _encode(texts, tokenizer):
            ids.tofile(file)
            lengths.append(chunk_lengths)
    part = lengths_file.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, np.concatenate(lengths or [np.empty(0, np.int64)]))
    part.replace(lengths_file)


def _encode(texts: pa.Array, tokenizer: Tokenizer) -> Any:
    """Yields ids and lengths of one chunk after the other."""
    with ProgressBar("tokenising", len(texts)) as progress:
        for start in range(0, len(texts), CHUNK):
            chunk = texts.slice(start, CHUNK).to_pylist()
            encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(chunk)]
            yield (
                np.concatenate([np.asarray(ids, np.int32) for ids in encoded]),
                np.array([len(ids) for ids in encoded]),
            )
            progress.advance(len(chunk))


def _tokens(ids: Int32s, lengths: list[Int64s]) -> Tokens:
    return Tokens(ids, np.concatenate([[0], *map(np.asarray, lengths)]).cumsum().astype(np.int64))
