"""Rows that end in another order than they began: each answer stays with its own prompt and its own length.

One strategy for each way in which finished rows come back: Daft's provider, Ray Data, the planned fleet.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from harness.target_length import target_length
from script_runs import ROWS, run_script

pytestmark = pytest.mark.cluster

LENGTHS = {"OUTPUT_LEN_DISTRIBUTION": "uniform", "OUTPUT_LEN_MIN": 1, "OUTPUT_LEN_MAX": 24}


@pytest.fixture(scope="module")
def expected(half_hit: Path, tokenizer: Any) -> dict[int, str]:
    """The answer to each id where an engine repeats its prompt's last token (echo.py) until its length is reached."""
    asked = pq.read_table(half_hit)
    answers = {}
    for row, prompt in zip(asked["id"].to_pylist(), asked["prompt"].to_pylist(), strict=True):
        tokens = tokenizer.encode(prompt)
        answers[row] = tokenizer.decode([tokens[-1]] * target_length(tokens, LENGTHS))
    return answers


@pytest.mark.parametrize("strategy", ["continuous-batch", "ray-data", "prefix-planned"])
def test_answers_that_come_back_out_of_order_stay_with_their_prompts(
    strategy: str, tmp_path: Path, half_hit: Path, model_folder: Path, expected: dict[int, str]
) -> None:
    code, record, errors = run_script(
        strategy,
        tmp_path,
        MODEL_NAME=model_folder,
        INPUT_PATH=half_hit,
        OUTPUT_PATH=tmp_path / "answers",
        LOGITS_PROCESSORS="echo:Echo",
        **LENGTHS,
    )
    assert (code, record["error"]) == (0, None), errors[-3000:]
    assert record["rows"]["in"] == record["rows"]["out"] == ROWS
    answers = pq.read_table(tmp_path / "answers" / f"{record['run_id']}.parquet")
    assert dict(zip(answers["id"].to_pylist(), answers["output"].to_pylist(), strict=True)) == expected
