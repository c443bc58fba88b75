"""vLLM's own sampler of prompts with shared prefixes, to make published datasets again.

It drops the remainder where rows do not divide by prefixes, and joins prefix and suffix after repairing the length of
each apart, so that some prompts miss their length.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from harness.data import prompts
from harness.data.prompts import Shape


def sample(shape: Shape, tokenizer: Any, parts: int) -> Iterator[pa.RecordBatch]:
    """Yields `parts` batches of prompts.SCHEMA: the prompts of PrefixRepetitionRandomDataset in its order.

    `prompt_len` is what the text really encodes to.
    """
    from vllm.benchmarks.datasets import PrefixRepetitionRandomDataset

    # Unshuffled, the sampler's rows come prefix by prefix, which is the only trace of their prefix. Its own shuffle is
    # then repeated: it is the first use of `random` after the constructor seeded it.
    source = PrefixRepetitionRandomDataset(random_seed=shape.seed, disable_shuffle=True)
    groups = max(1, shape.prefixes)
    requests = source.sample(
        tokenizer, shape.rows, prefix_len=shape.prefix_len, suffix_len=shape.suffix_len, num_prefixes=groups
    )
    rows = [(request.prompt, i // (shape.rows // groups)) for i, request in enumerate(requests)]
    random.shuffle(rows)
    for ids in np.array_split(np.arange(len(rows)), parts):
        texts = [rows[i][0] for i in ids]
        prefix_ids = pa.array([rows[i][1] for i in ids], pa.int32()) if shape.prefixes else None
        yield prompts.batch_of(ids, pa.array(texts), np.array(prompts.encoded_lengths(tokenizer, texts)), prefix_ids)
