"""Forecasts against a real engine: one small KV cache, several ways of feeding it. All settings: forecast-check.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.data.prompts import Shape
from harness.prediction.forecast_check import CROWDED, TOLERANCE, Setting, check, difference, start

MANY_PREFIXES = Shape(96, 24, 48, 32)
LONG_ANSWERS = Shape(40, 8, 48, 16)


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Iterator[Any]:
    llm = start(CROWDED, model_folder)
    yield llm
    llm.llm_engine.engine_core.shutdown(timeout=10)


@pytest.mark.parametrize(
    "setting",
    [
        Setting(CROWDED, MANY_PREFIXES, 4, "naive-batch", 1),
        Setting(CROWDED, MANY_PREFIXES, 4, "continuous-batch-sorted", 2),
        Setting(CROWDED, MANY_PREFIXES, 4, "prefix-bucketing", 2),
        Setting(CROWDED, MANY_PREFIXES, 4, "ray-data", 2),
        Setting(CROWDED, LONG_ANSWERS, 40, "continuous-batch", 1),
        Setting(CROWDED, LONG_ANSWERS, 40, "prefix-bucketing", 1),
    ],
    ids=lambda setting: f"{setting.strategy} on {setting.engines}, {setting.output_len} tokens out",
)
def test_hit_rate_is_within_two_points_of_the_engines_counters(
    engine: Any, setting: Setting, model_folder: Path, tmp_path: Path
) -> None:
    record = check(engine, setting, model_folder, tmp_path)
    predicted, counted = record["predicted"], record["counted"]
    assert predicted["queries"] == counted["queries"]
    assert 0.05 < counted["hit_rate"] < 0.95  # a rate that could be missed
    assert abs(difference(record)) <= TOLERANCE
    if setting.shape is LONG_ANSWERS:
        # When requests arrive moves a preemption or two, no more.
        assert predicted["preemptions"] >= 3
        assert abs(predicted["preemptions"] - counted["preemptions"]) <= 5
