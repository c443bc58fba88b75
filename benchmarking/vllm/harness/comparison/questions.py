"""The questions that the suite exists for, and how the records of a section answer them.

Each has two answers: steady generation (output tokens a second while all engines have work) and the whole job (the
wall time, start-up included). A strategy may win one and lose the other.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.comparison.comparability import read_back_differences
from harness.comparison.effects import Cell, Effect, TooFewTrialsError, estimate
from harness.comparison.sections import Section, arm, block, rank
from harness.schema import Record

# A steady phase that is shorter, or that made a smaller share of the output, says nothing about the rate.
MIN_STEADY_S = 1.0
MIN_STEADY_SHARE = 0.1


@dataclass(frozen=True)
class Question:
    """`weights` on log seconds: baseline 1, contender -1; the ratio is above 1 when the contender takes less time."""

    topic: str
    sides: str
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """A verdict, with the ratio (1.1: takes 1/1.1 of the time) and its interval where there are any."""

    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def pair(topic: str, baseline: str, contender: str) -> Question:
    return Question(topic, f"{baseline} → {contender}", {baseline: 1, contender: -1})


DAFT = (
    *("naive-batch", "naive-batch-sorted", "continuous-batch", "continuous-batch-sorted"),
    *("prefix-bucketing", "prefix-bucketing-sorted"),
)
# Time without either, with order, with routing, and with both: above 1, both bring more than the product of each.
INTERACTION = {
    "continuous-batch": -1,
    "continuous-batch-sorted": 1,
    "prefix-bucketing": 1,
    "prefix-bucketing-sorted": -1,
}

QUESTIONS = (
    pair("What does order do for static batches?", "naive-batch", "naive-batch-sorted"),
    pair("What does order do for continuous batching?", "continuous-batch", "continuous-batch-sorted"),
    pair("What does order do for routed batches?", "prefix-bucketing", "prefix-bucketing-sorted"),
    pair("What does routing do?", "continuous-batch", "prefix-bucketing"),
    pair("Order or routing, or both?", "continuous-batch-sorted", "prefix-bucketing"),
    pair("Order or routing, or both?", "continuous-batch-sorted", "prefix-bucketing-sorted"),
    Question("Order or routing, or both?", "product of each → both", INTERACTION),
    pair("Static or continuous batches?", "naive-batch", "continuous-batch"),
    *(pair("Daft or Ray Data?", "ray-data", strategy) for strategy in DAFT),
    *(pair("What does planning do?", strategy, "prefix-planned") for strategy in (*DAFT, "ray-data")),
)
TOPICS = (*dict.fromkeys(question.topic for question in QUESTIONS), "The others against the first")


def questions_of(section: Section) -> list[Question]:
    """Those above that the section has runs for; and its first strategy against each that is in no question with it,
    so that every strategy is judged, a user's own too."""
    names = sorted({run["strategy"] for run in section.runs}, key=rank)
    asked = [question for question in QUESTIONS if set(question.weights) <= set(names)]
    paired = [set(question.weights) for question in asked]
    return asked + [pair(TOPICS[-1], names[0], other) for other in names[1:] if {names[0], other} not in paired]


def job_s(record: Record) -> float | None:
    """Seconds of the whole job."""
    wall_s = record["wall_s"]
    return float(wall_s) if wall_s else None


def steady_s_per_token(record: Record) -> float | None:
    """Seconds an output token while all engines have work; none where that phase is unknown or too small to tell."""
    seconds = (record["phases_s"] or {}).get("steady")
    tokens = (record["phase_tokens"] or {}).get("steady")
    output = (record["tokens"] or {}).get("output")
    if not (seconds and tokens and output) or seconds < MIN_STEADY_S or tokens < MIN_STEADY_SHARE * output:
        return None
    return float(seconds / tokens)


Measure = Callable[[Record], float | None]
MEASURES: dict[str, Measure] = {"steady generation": steady_s_per_token, "whole job": job_s}


def answer(section: Section, weights: Mapping[str, float], measure: Measure, by: Callable[[Record], str]) -> Answer:
    """What a section's records say; `by` names a run's side, its strategy or (for the A/A pair) its label."""
    runs = {name: [run for run in section.kept if by(run) == name] for name in weights}
    obstacle = _missing(runs) or _unfair(runs) or _unmeasured(runs, measure)
    if obstacle:
        return Answer(obstacle)
    cells = cells_of(section, measure, by)
    try:
        effect = estimate(cells, weights)
    except TooFewTrialsError as error:
        return Answer(f"too few trials: {error}", _ratio_of_means(cells, weights))
    return Answer(_verdict(effect), effect.ratio, effect.low, effect.high)


def strategy(record: Record) -> str:
    return str(record["strategy"])


def twins(section: Section) -> tuple[str, str] | None:
    """The two labels of the strategy that was run twice, if one was."""
    labels: dict[str, list[str]] = {}
    for name in section.arms():
        run = next(run for run in section.runs if arm(run) == name)
        labels.setdefault(run["strategy"], []).append(name)
    return next(((names[0], names[1]) for names in labels.values() if len(names) > 1), None)


def cells_of(section: Section, measure: Measure, by: Callable[[Record], str]) -> list[Cell]:
    measured = [(run, measure(run)) for run in section.kept]
    return [Cell(block(run), by(run), math.log(value)) for run, value in measured if value]


def _missing(runs: Mapping[str, list[Record]]) -> str | None:
    without = [name for name, found in runs.items() if not found]
    return f"too few trials: no valid run of {', '.join(without)}" if without else None


def _unfair(runs: Mapping[str, list[Record]]) -> str | None:
    first, *others = [found[0] for found in runs.values()]
    differences = [text for other in others for text in read_back_differences(first, other)]
    return f"not comparable because {'; '.join(dict.fromkeys(differences))}" if differences else None


def _unmeasured(runs: Mapping[str, list[Record]], measure: Measure) -> str | None:
    without = [name for name, found in runs.items() if not any(measure(run) for run in found)]
    if not without:
        return None
    small = f"under {MIN_STEADY_S:g} s or {MIN_STEADY_SHARE:.0%} of the output"
    return f"no answer: the steady phase of {', '.join(without)} is unknown, or {small}"


def _verdict(effect: Effect) -> str:
    if effect.low > 1:
        return "faster"
    return "slower" if effect.high < 1 else "no clear difference"


def _ratio_of_means(cells: list[Cell], weights: Mapping[str, float]) -> float:
    """Geometric means of all runs of each side, paired or not: a first look, without an interval."""
    logs = {name: [cell.log_s for cell in cells if cell.strategy == name] for name in weights}
    return math.exp(sum(weight * sum(logs[name]) / len(logs[name]) for name, weight in weights.items()))
