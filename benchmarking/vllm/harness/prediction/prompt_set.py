"""A dataset made ready for forecasts: read, tokenised, its blocks numbered, its texts sorted."""

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import overrides
from harness.prediction import block_ids, prompt_column, tokenizing
from harness.prediction.compiled import Int32s
from harness.prediction.feeding import Dataset
from harness.prediction.prompt_column import PromptColumn
from harness.prediction.text_order import TextOrder
from harness.prediction.tokenizing import Tokens
from harness.target_length import longest_output, target_length

CACHE = overrides.SUITE_DIR.parents[1] / ".local" / "tokens"


class PromptSet(NamedTuple):
    column: PromptColumn
    tokens: Tokens
    data: Dataset
    too_long: int  # rows left out because runs refuse them: with the longest output they exceed MAX_MODEL_LEN
    read_s: float
    tokenize_s: float  # near 0 when the tokens were kept from an earlier time
    plan_s: float  # sorting the texts and numbering the blocks
    front_end_s_a_token: float  # tokenising one prompt after the other on one core, as LLM.generate does


def load(
    url: str | Path,
    model: str,
    knobs: Mapping[str, Any],
    prompt_column_name: str = "prompt",
    id_column_name: str | None = "id",
    cache: Path | None = CACHE,
) -> PromptSet:
    """Uses BLOCK_SIZE, MAX_MODEL_LEN and the knobs of the output length.

    Raises ValueError or StorageError where nothing can be forecast, with the reason.
    """
    marks = [time.perf_counter()]
    column = prompt_column.read(url, prompt_column_name, id_column_name)
    marks.append(time.perf_counter())
    tokenizer = tokenizing.load_tokenizer(model)
    tokens = tokenizing.tokenize(column.texts, column.content_key, tokenizer, cache)
    marks.append(time.perf_counter())
    outputs = _outputs(tokens, knobs)
    fits = np.diff(tokens.starts) + longest_output(knobs) <= knobs["MAX_MODEL_LEN"]
    texts = column.texts
    if not fits.all():
        texts, tokens, outputs = texts.filter(fits), tokenizing.select(tokens, fits), outputs[fits]
    prompts = block_ids.number_blocks(tokens.ids, tokens.starts, outputs, knobs["BLOCK_SIZE"])
    file_of_row = np.repeat(np.arange(len(column.file_rows)), column.file_rows)[fits]
    data = Dataset(prompts, TextOrder(texts), np.bincount(file_of_row, minlength=1).tolist())
    marks.append(time.perf_counter())
    read_s, tokenize_s, plan_s = np.diff(marks).tolist()
    one_by_one_s = tokenizing.seconds_a_token(texts, tokenizer)
    return PromptSet(column, tokens, data, int((~fits).sum()), read_s, tokenize_s, plan_s, one_by_one_s)


def _outputs(tokens: Tokens, knobs: Mapping[str, Any]) -> Int32s:
    """Tokens that each prompt generates."""
    if knobs["OUTPUT_LEN_DISTRIBUTION"] == "fixed":
        return np.full(len(tokens.starts) - 1, knobs["OUTPUT_LEN"], np.int32)
    rows = itertools.pairwise(tokens.starts.tolist())
    return np.array([target_length(tokens.ids[begin:end], knobs) for begin, end in rows], np.int32)
