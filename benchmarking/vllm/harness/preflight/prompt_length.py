"""Prompts as token ids, and how many tokens they can have at most without encoding them."""

from collections.abc import Sequence
from typing import Any


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids as the engines see them, special tokens included, nothing cut off; on all cores."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        ids: list[list[int]] = tokenizer(list(texts), verbose=False)["input_ids"]
        return ids
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts))]


def tokens_beyond_bytes(tokenizer: Any) -> int:
    """How many more tokens than bytes a prompt can have: special ones, and the space that some tokenizers put first."""
    return int(tokenizer.num_special_tokens_to_add()) + 1
