"""Prompts to token ids and outputs to text, a batch at a time in Ray tasks, so that neither holds up an engine.

Ids are those that vLLM's own tokenising would give the engines of the other strategies; the text is what its
detokeniser would have made of the outputs (both with special tokens in the prompt, none in the text).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import config
import numpy as np
import pyarrow as pa
from harness.planning.window import Int32s, Int64s
from harness.preflight import prompt_length


@cache
def tokenizer() -> Any:
    """Once a process: loading takes longer than a batch."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(config.MODEL_NAME)


def encode(prompts: Sequence[str]) -> tuple[Int32s, Int64s]:
    """Token ids of all prompts, end to end, and the number of each one's."""
    encoded = prompt_length.encode(tokenizer(), prompts)
    lengths = np.array([len(ids) for ids in encoded], np.int64)
    return np.concatenate([np.asarray(ids, np.int32) for ids in encoded]), lengths


def decode(tokens: Int32s, lengths: Int64s) -> pa.Array:
    """One text for each row of `tokens`, which lie end to end."""
    outputs = [ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])] if len(lengths) else []
    backend = getattr(tokenizer(), "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        return pa.array(tokenizer().batch_decode(outputs, skip_special_tokens=True), pa.string())
    return pa.array(backend.decode_batch(outputs, skip_special_tokens=True), pa.string())
