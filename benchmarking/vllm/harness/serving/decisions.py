"""What the rows decide: the questions of a service's owner, answered for each configuration; and the winner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.tables import figure
from harness.serving import cost
from harness.serving.sections import Section, began_cold

Row = dict[str, Any]

# A p95 TTFT this many times that of the best row is a cliff.
CLIFF = 5.0
# Two rows at one rate agree within this share, in completed requests/s and in p95 TTFT.
REPEATS_WITHIN = 0.1
# Costs that differ by less are level, or by less than a repeated row differed from its first.
LEVEL_WITHIN = 0.01

Offer = tuple[str, float, Row]


@dataclass(frozen=True)
class Decision:
    configuration: str
    question: str
    answer: str


def of(section: Section, price: float | None) -> list[Decision]:
    """Five answers for each configuration that was measured."""
    found = []
    for name in section.configurations:
        if rows := section.measured(name):
            answers = (
                ("Do the targets hold at the highest traffic?", _holds(section, name, rows)),
                ("What happens above it?", _above(section.best(name), rows)),
                ("Are preemptions stable?", _preemptions(rows)),
                ("Is the result repeatable?", _repeats(section, name)),
                ("Is the cost better than the alternative?", _cost(section, name, price)),
            )
            found += [Decision(name, question, answer) for question, answer in answers]
    return found


def cheapest(section: Section, name: str, price: float | None) -> tuple[float, Row] | None:
    """Cost and row of the cheapest accepted response among rows up to the best, at which the targets held."""
    best = section.best(name)
    if best is None:
        return None
    holding = [row for row in section.measured(name) if row["rate"]["offered_rps"] <= best["rate"]["offered_rps"]]
    costs = [(paid, row) for row in holding if (paid := cost.per_accepted(row, price)) is not None]
    return min(costs, key=lambda pair: pair[0], default=None)


def level(section: Section, price: float | None) -> list[Offer]:
    """The configurations that meet the targets at the lowest cost, with cost and row, cheapest first.

    More than one where their costs differ by no more than repeats do: such a difference is not shown to be real.
    """
    found = [(name, *pair) for name in section.configurations if (pair := cheapest(section, name, price))]
    found.sort(key=lambda one: one[1])
    within = 1 + max([LEVEL_WITHIN, *_repeated_costs(section, price)])
    return [one for one in found if one[1] <= within * found[0][1]]


def winner(section: Section, price: float | None) -> Offer | None:
    """Of the configurations at the lowest cost the one that stands most traffic beyond it; None where none is."""
    found = level(section, price)
    beyond = accepted_beyond(section, [name for name, _, _ in found])
    # Of equals the first, which is the cheapest.
    return max(found, key=lambda one: beyond[1].get(one[0], 0.0) if beyond else 0.0, default=None)


def accepted_beyond(section: Section, names: Sequence[str]) -> tuple[float, dict[str, float]] | None:
    """The lowest rate at which none of them meets the targets any more, and what each still accepts there, a second.

    None unless all of them were offered that rate.
    """
    rows = {name: {row["rate"]["offered_rps"]: row for row in section.measured(name)} for name in names}
    limits = [best["rate"]["offered_rps"] for name in names if (best := section.best(name))]
    shared = set.intersection(*(set(rates) for rates in rows.values())) if rows else set()
    above = min((rate for rate in shared if rate > max(limits, default=0.0)), default=None)
    if above is None:
        return None
    return above, {name: goodput_rps(rates[above]) for name, rates in rows.items()}


def _repeated_costs(section: Section, price: float | None) -> list[float]:
    """By how much the cost of each repeated row differs from its first, as a share."""
    pairs = [pair for name in section.configurations for pair in section.repeats(name) if all(map(began_cold, pair))]
    costs = [(cost.per_accepted(first, price), cost.per_accepted(again, price)) for first, again in pairs]
    return [abs(again / first - 1) for first, again in costs if first and again]


def _holds(section: Section, name: str, rows: Sequence[Row]) -> str:
    best, top = section.best(name), rows[-1]
    if best is None:
        return f"no, at no rate: {'; '.join(rows[0]['violations'])} at {_rate(rows[0])}"
    if best is top:
        return f"yes, at {_rate(top)}, the highest that was offered; its limit was not reached"
    return f"no: up to {_rate(best)} of {_rate(top)}"


def _above(best: Row | None, rows: Sequence[Row]) -> str:
    limit = best["rate"]["offered_rps"] if best else 0.0
    above = [row for row in rows if row["rate"]["offered_rps"] > limit and row["violations"]]
    if not above:
        return "not seen: every rate held"
    top = above[-1]
    refused, failed = top["counts"]["refused"], top["counts"]["failed"]
    now, before = top["latency"]["ttft_s"]["p95"], best["latency"]["ttft_s"]["p95"] if best else None
    waits = f"p95 TTFT {figure(before)} → {figure(now)} s at {_rate(top)}"
    if refused:
        return f"refusal: {refused} of {top['counts']['offered']} refused, {waits}"
    if failed:
        return f"failures: {failed} of {top['counts']['offered']} ({_causes(top)}), {waits}"
    if now and before and now > CLIFF * before:
        return f"a latency cliff: {waits}"
    return f"a slope: {waits}"


def _preemptions(rows: Sequence[Row]) -> str:
    counts = [row["server"]["preemptions"] for row in rows]
    if None in counts:
        return "unknown: the server does not tell"
    if not any(counts):
        return "yes: none at any rate"
    told = ", ".join(f"{count} at {_rate(row)}" for count, row in zip(counts, rows, strict=True) if count)
    return f"no, they begin under load: {told}"


def _repeats(section: Section, name: str) -> str:
    pairs = section.repeats(name)
    if not pairs:
        return "unknown: no row was repeated"
    first, again = pairs[-1]
    if not (began_cold(first) and began_cold(again)):
        return f"unknown: the cache was {first['cache_state']}, then {again['cache_state']}"
    completed = _ratio(completed_rps(again), completed_rps(first))
    ttft = _ratio(again["latency"]["ttft_s"]["p95"], first["latency"]["ttft_s"]["p95"])
    agree = all(ratio is not None and abs(ratio - 1) <= REPEATS_WITHIN for ratio in (completed, ttft))
    told = f"at {_rate(first)} again: {figure(completed)} times the completed/s, {figure(ttft)} times the p95 TTFT"
    return f"{'yes' if agree else 'no'}: {told}"


def _cost(section: Section, name: str, price: float | None) -> str:
    mine = cheapest(section, name, price)
    others = [
        (pair[0], other)
        for other in section.configurations
        if other != name and (pair := cheapest(section, other, price))
    ]
    if mine is None:
        return "no: it meets the targets at no rate"
    told = f"{figure(mine[0])} {unit(mine[1], price)} an accepted response at {_rate(mine[1])}"
    if not others:
        return f"yes: {told}; no other configuration meets the targets"
    least, other = min(others)
    best = level(section, price)
    better = "no clear difference" if len(best) > 1 else "yes"
    return f"{better if name in [one[0] for one in best] else 'no'}: {told}, {figure(least)} with {other}"


def completed_rps(row: Row) -> float:
    """Completed requests over the time from the first scheduled arrival to the last end, as `vllm bench serve` does."""
    return row["counts"]["completed"] / float(row["wall_s"]) if row["wall_s"] else 0.0


def goodput_rps(row: Row) -> float:
    """Accepted responses over the same time."""
    return row["counts"]["accepted"] / float(row["wall_s"]) if row["wall_s"] else 0.0


def unit(row: Row, price: float | None) -> str:
    if price is not None:
        return "US$"
    return "GPU-s" if row["config"]["GPUS_PER_ENGINE"] else "machine-s"


def _rate(row: Row) -> str:
    return f"{row['rate']['offered_rps']:g}/s"


def _causes(row: Row) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in row["causes"].items())


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
