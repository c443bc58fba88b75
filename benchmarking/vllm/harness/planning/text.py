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

HALF_CHARACTER = "\ufffd"


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
    """One text for each row of `tokens`, which lie end to end: the continuation of a prompt, as vLLM's detokeniser
    makes it token by token. A text's own first space is kept, and the bytes of a half character at its end are not."""
    anchor, anchored = _anchor()
    outputs = [[*anchor, *ids.tolist()] for ids in np.split(tokens, np.cumsum(lengths)[:-1])] if len(lengths) else []
    backend = getattr(tokenizer(), "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        texts = tokenizer().batch_decode(outputs, skip_special_tokens=True)
    else:
        texts = backend.decode_batch(outputs, skip_special_tokens=True)
    return pa.array([text.removeprefix(anchored).rstrip(HALF_CHARACTER) for text in texts], pa.string())


@cache
def _anchor() -> tuple[list[int], str]:
    """Tokens put before every output, and their text: some tokenizers drop the space that a first token begins with."""
    ids: list[int] = tokenizer().encode("a", add_special_tokens=False)
    return ids, str(tokenizer().decode(ids))
