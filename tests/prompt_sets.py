"""Small datasets for the replay, as token ids or as texts."""

import random

import numpy as np
import pyarrow as pa
from harness.prediction.block_ids import number_blocks
from harness.prediction.engine_state import Feed, Prompts
from harness.prediction.feeding import Dataset
from harness.prediction.text_order import TextOrder

KNOBS = {
    "CONCURRENCY": 2,
    "OUTPUT_LEN": 4,
    "OUTPUT_LEN_DISTRIBUTION": "fixed",
    "MAX_NUM_SEQS": 64,
    "PLANNED_MAX_IN_FLIGHT": 512,
    "NAIVE_PARTITIONS": 3,
    "NAIVE_BATCH_SIZE": 16,
    "CONTINUOUS_PARTITIONS": 1,
    "CONTINUOUS_BATCH_SIZE": 16,
    "RAY_BLOCKS": 5,
    "RAY_BATCH_SIZE": 4,
    "RAY_MAX_CONCURRENT_BATCHES": 2,
    "ROUTER_MAX_BUFFER_SIZE": 50,
    "ROUTER_MIN_BUCKET_SIZE": 4,
    "ROUTER_PREFIX_MATCH_THRESHOLD": 0.33,
    "ROUTER_LOAD_BALANCE_THRESHOLD": 16,
}


def numbered(token_ids: list[list[int]], outputs: int | list[int] = 4, block_size: int = 16) -> Prompts:
    starts = np.cumsum([0, *map(len, token_ids)])
    flat = np.array([token for ids in token_ids for token in ids], np.int32)
    each = np.array(outputs if isinstance(outputs, list) else [outputs] * len(token_ids), np.int32)
    return number_blocks(flat, starts, each, block_size)


def batches(*sizes: int) -> Feed:
    """Static batches of these sizes, one after the other."""
    count = np.array([len(sizes)], np.int64)
    return Feed(np.arange(sum(sizes), dtype=np.int32), np.cumsum(sizes).astype(np.int64), count, 1, 1)


def dataset(rows: int = 120, groups: int = 8, seed: int = 0, outputs: int = 4, block_size: int = 16) -> Dataset:
    """Texts of one letter a token, of 40 shared and 8 to 40 own letters."""
    rng = random.Random(seed)
    prefixes = ["".join(rng.choices("abcdefgh", k=40)) for _ in range(groups)]
    texts = [rng.choice(prefixes) + "".join(rng.choices("abcdefgh", k=rng.randint(8, 40))) for _ in range(rows)]
    prompts = numbered([list(map(ord, text)) for text in texts], outputs, block_size)
    return Dataset(prompts, TextOrder(pa.array(texts)), [rows])
