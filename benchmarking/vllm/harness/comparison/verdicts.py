"""The answers as tables: one a question, a row for each set of conditions; and the A/A pair that shows the noise."""

from collections.abc import Callable, Mapping, Sequence

from harness.comparison.effects import scatter
from harness.comparison.questions import (
    MEASURES,
    QUESTIONS,
    TOPICS,
    Answer,
    answer,
    cells_of,
    questions_of,
    steady_s_per_token,
    strategy,
    twins,
)
from harness.comparison.sections import Section, arm
from harness.report import bounds as best
from harness.report.bounds import NO_BOUNDS, Bounds
from harness.report.curves import Crossing
from harness.report.tables import UNKNOWN, Table, per_cent
from harness.schema import Record

HEADER = ("conditions", "compared", *(column for name in MEASURES for column in (f"{name}: ratio (95 %)", "verdict")))
BASELINE = "naive-batch"


def noise(sections: Sequence[Section]) -> Table:
    """The same strategy under two labels: what the method calls a difference where there is none."""
    rows = []
    for section in sections:
        pair = twins(section)
        if pair:
            answers = _answers(section, {pair[0]: 1, pair[1]: -1}, arm)
            scatters = [scatter(cells_of(section, measure, strategy)) for measure in MEASURES.values()]
            rows.append(
                (
                    section.name,
                    f"{pair[0]} → {pair[1]}",
                    *_cells(answers),
                    " / ".join(per_cent(value) for value in scatters),
                )
            )
    header = (*HEADER, "scatter of one run (steady / job)")
    return Table("Noise floor: the same strategy twice (A/A)", header, rows)


def doubts(sections: Sequence[Section]) -> list[str]:
    """Where the A/A pair shows a difference: what else is called there may be no difference either."""
    return [
        f"In {row[0]} the A/A pair differs ({row[1]}): mistrust ratios of that size there."
        for row in noise(sections).rows
        if "faster" in row or "slower" in row
    ]


def asked(sections: Sequence[Section]) -> list[Table]:
    """A table for each topic that at least one section has runs for."""
    return [table for topic in TOPICS if (table := _table(topic, sections)).rows]


def of(section: Section) -> Table:
    """All answers of one section in one table, the A/A pair first."""
    pair = twins(section)
    aa = [(f"A/A: {pair[0]} → {pair[1]}", _answers(section, {pair[0]: 1, pair[1]: -1}, arm))] if pair else []
    asked_here = [(q.sides, _answers(section, q.weights, strategy)) for q in questions_of(section)]
    rows = [(text, *_cells(answers)) for text, answers in (*aa, *asked_here)]
    return Table(f"Who wins, {section.name}", HEADER[1:], rows)


def without_runs(sections: Sequence[Section]) -> list[str]:
    """The comparisons that no section has runs for."""
    asked_somewhere = [question for section in sections for question in questions_of(section)]
    return [question.sides for question in QUESTIONS if question not in asked_somewhere]


def crossings(sections: Sequence[Section], bounds: Mapping[str, Bounds]) -> list[Crossing]:
    """Points of the crossover map: speed-ups over the baseline where the pressure on the KV cache is known."""
    return [
        point for section in sections for name in _contenders(section) if (point := _crossing(section, name, bounds))
    ]


def _table(topic: str, sections: Sequence[Section]) -> Table:
    asked_here = [(q, section) for section in sections for q in questions_of(section) if q.topic == topic]
    order = {question.sides: place for place, question in enumerate(QUESTIONS)}
    asked_here.sort(key=lambda each: order.get(each[0].sides, len(order)))
    rows = [(section.name, q.sides, *_cells(_answers(section, q.weights, strategy))) for q, section in asked_here]
    return Table(topic, HEADER, rows)


def _answers(section: Section, weights: Mapping[str, float], by: Callable[[Record], str]) -> list[Answer]:
    return [answer(section, weights, measure, by) for measure in MEASURES.values()]


def _cells(answers: Sequence[Answer]) -> list[str]:
    return [cell for found in answers for cell in (ratio(found), found.verdict)]


def ratio(found: Answer) -> str:
    """The ratio and its interval, as far as they are known."""
    if found.ratio is None:
        return UNKNOWN
    interval = f" ({found.low:.3f} to {found.high:.3f})" if found.low is not None else ""
    return f"{found.ratio:.3f}{interval}"


def _contenders(section: Section) -> list[str]:
    names = section.strategies()
    return [name for name in names if name != BASELINE] if BASELINE in names else []


def _crossing(section: Section, name: str, bounds: Mapping[str, Bounds]) -> Crossing | None:
    run = section.of(name)[0]
    pressure = best.kv_pressure(run, bounds.get(run["run_id"], NO_BOUNDS))
    found = answer(section, {BASELINE: 1, name: -1}, steady_s_per_token, strategy)
    if pressure is None or found.ratio is None:
        return None
    return Crossing(section.card, name, section.name, pressure, found.ratio, found.low, found.high)
