"""The report in a few lines: under each set of conditions the fastest strategy, and how sure it is that it helps."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from harness.comparison.questions import Answer, answer, steady_s_per_token, strategy
from harness.comparison.sections import Section
from harness.comparison.verdicts import BASELINE, ratio
from harness.report import bounds as best
from harness.report.bounds import NO_BOUNDS, Bounds
from harness.report.tables import UNKNOWN, Table, figure, per_cent

HEADER = (
    "conditions",
    "fastest",
    "output tokens/s",
    "hit rate",
    "compared with",
    "times as fast (95 %)",
    "verdict",
    "floor ÷ generation",
)
NOTE = (
    f"Steady generation; compared with {BASELINE}, or else with the next fastest. Chance flatters the fastest of "
    "several a little. Floor ÷ generation: the least seconds that the card's measured rates allow, over "
    "those that it took; 100 % would be the best possible."
)


def overview(sections: Sequence[Section], bounds: Mapping[str, Bounds]) -> Table:
    """A row for each section that has a rate."""
    return Table("In short", HEADER, [row for section in sections for row in _rows(section, bounds)], NOTE)


def _rows(section: Section, bounds: Mapping[str, Bounds]) -> list[tuple[str, ...]]:
    ordered = _by_speed(section)
    if not ordered:
        return []
    fastest, *others = ordered
    other = BASELINE if BASELINE in others else next(iter(others), UNKNOWN)
    found = _compared(section, other, fastest) if others else Answer(UNKNOWN)
    runs = section.of(fastest)
    token_s = _middle(steady_s_per_token(run) for run in runs)
    hit_rate = per_cent(_middle(best.hit_rate(run) for run in runs))
    share = per_cent(_middle(best.floor_share(run, bounds.get(run["run_id"], NO_BOUNDS)) for run in runs))
    rate = figure(1 / token_s if token_s else None, 4)
    verdict = _with_those_left_out(found.verdict, [name for name in _measured(section) if name not in ordered])
    return [(section.name, fastest, rate, hit_rate, other, ratio(found), verdict, share)]


def _measured(section: Section) -> list[str]:
    return [name for name in section.strategies() if any(map(steady_s_per_token, section.of(name)))]


def _by_speed(section: Section) -> list[str]:
    """The most strategies that can be compared with one of them, the fastest first, by the same ratios as the verdicts:
    between runs of one trial, where there are any."""
    measured = _measured(section)
    known: dict[str, float] = {}
    for reference in measured:
        ratios = {name: 1.0 if name == reference else _compared(section, reference, name).ratio for name in measured}
        comparable = {name: value for name, value in ratios.items() if value}
        known = comparable if len(comparable) > len(known) else known
        if len(known) == len(measured):
            break
    return sorted(known, key=known.__getitem__, reverse=True)


def _with_those_left_out(verdict: str, names: Sequence[str]) -> str:
    """Engines of theirs ran with something else; the tables of verdicts say with what."""
    if not names:
        return verdict
    return "; ".join([*([verdict] if verdict != UNKNOWN else []), f"not comparable: {', '.join(names)}"])


def _compared(section: Section, baseline: str, contender: str) -> Answer:
    return answer(section, {baseline: 1, contender: -1}, steady_s_per_token, strategy)


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
