"""The report's tables about runs: the result of each strategy, what went wrong, and every run in order."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from harness.comparison.comparability import read_back_differences
from harness.comparison.questions import job_s, steady_s_per_token
from harness.comparison.sections import Section, arm
from harness.report import bounds as best
from harness.report import cost
from harness.report.bounds import NO_BOUNDS, Bounds
from harness.report.tables import UNKNOWN, Table, figure, per_cent
from harness.schema import Record


def results(section: Section, bounds: Mapping[str, Bounds], price: float | None) -> Table:
    """One row a label: medians of the valid runs under equal conditions, and what all of its runs cost."""
    unit = "GPU-s" if price is None else "US$"
    header = (
        "strategy",
        "valid runs",
        "whole job, s",
        "engine start, s",
        "steady, output tokens/s",
        "hit rate",
        "÷ possible",
        "floor ÷ generation",
        "preemptions",
        f"{unit} / 1M output tokens",
        f"{unit} / 1,000 accepted rows",
    )
    rows = [_result(name, section, bounds, price) for name in section.arms()]
    return Table(section.name, header, rows, _result_note(section, bounds)).without_empty_columns()


def failures(sections: Sequence[Section]) -> Table:
    """Every run that is not a time, with the first lines of why."""
    runs = [(section, run) for section in sections for run in section.unsuccessful]
    rows = [
        (section.name, arm(run), run["status"], run["run_id"][:8], _first_lines(run["error"])) for section, run in runs
    ]
    return Table("Runs that are no result", ("conditions", "strategy", "status", "run", "why"), rows)


def set_apart(sections: Sequence[Section]) -> Table:
    """Valid runs that are in no median: their engines ran with something else than those of the same strategy."""
    runs = [(section, *pair) for section in sections for pair in section.set_apart]
    rows = [(section.name, arm(run), run["run_id"][:8], "; ".join(why)) for section, run, why in runs]
    return Table("Runs set apart", ("conditions", "strategy", "run", "usual value / this run's"), rows)


def every_run(sections: Sequence[Section]) -> Table:
    """All runs as they were started, with comparison, trial and place in its random order."""
    header = (
        "started",
        "conditions",
        "strategy",
        "comparison, trial, place",
        "status",
        "whole job, s",
        "warnings",
        "run",
    )
    runs = sorted(((run["started_at"], section.name, run) for section in sections for run in section.runs), key=_start)
    rows = [
        (
            started[:19].replace("T", " "),
            name.split(":")[0],
            arm(run),
            _place(run),
            run["status"],
            figure(run["wall_s"]),
            "; ".join(run["warnings"] or []) or UNKNOWN,
            run["run_id"][:8],
        )
        for started, name, run in runs
    ]
    return Table("Every run, in the order in which they ran", header, rows)


def _result(name: str, section: Section, bounds: Mapping[str, Bounds], price: float | None) -> tuple[str, ...]:
    everything = [run for run in section.runs if arm(run) == name]
    runs = section.of_arm(name)
    paid = cost.of(everything)
    more = "" if paid.complete else "≥ "

    def middle(value: Callable[[Record], float | None]) -> float | None:
        known = [found for run in runs if (found := value(run)) is not None]
        return median(known) if known else None

    def with_bounds(value: Callable[[Record, Bounds], float | None]) -> float | None:
        return middle(lambda run: value(run, bounds.get(run["run_id"], NO_BOUNDS)))

    amounts = (paid.per_million_tokens(price), paid.per_thousand_rows(price))
    token_s = middle(steady_s_per_token)
    return (
        name,
        f"{len(runs)} of {len(everything)}",
        _spread(runs, job_s),
        figure(middle(lambda run: (run["phases_s"] or {}).get("engine_start"))),
        figure(1 / token_s if token_s else None, 4),
        per_cent(middle(best.hit_rate)),
        per_cent(with_bounds(best.achieved_share)),
        per_cent(with_bounds(best.floor_share)),
        figure(middle(lambda run: (run["counters"] or {}).get("preemptions"))),
        *(UNKNOWN if amount is None else more + figure(amount) for amount in amounts),
    )


def _spread(runs: Sequence[Record], value: Callable[[Record], float | None]) -> str:
    known = sorted(found for run in runs if (found := value(run)) is not None)
    if len(known) < 2:
        return figure(known[0] if known else None, 4)
    return f"{figure(median(known), 4)} ({figure(known[0], 4)} to {figure(known[-1], 4)})"


def _result_note(section: Section, bounds: Mapping[str, Bounds]) -> str:
    """Said under each table, so that a figure that is missing or partial is not taken for a result."""
    bad, apart = len(section.unsuccessful), len(section.set_apart)
    parts = [f"{bad} run(s) invalid or failed" if bad else "", f"{apart} run(s) set apart" if apart else ""]
    said = "; ".join(part for part in parts if part)
    unbounded = section.kept and not any(run["run_id"] in bounds for run in section.kept)
    notes = [
        "Medians of valid runs.",
        f"{said}: listed below." if said else "",
        f"Not all rows are comparable ({unequal})." if (unequal := _unequal(section)) else "",
        "forecast-records.py --write works out ÷ possible and, on GPUs, the floor." if unbounded else "",
    ]
    return " ".join(note for note in notes if note)


def _unequal(section: Section) -> str:
    """What engines of other strategies ran with otherwise than those of the first."""
    runs = [section.of(name)[0] for name in section.strategies()]
    return "; ".join(dict.fromkeys(text for other in runs[1:] for text in read_back_differences(runs[0], other)))


def _first_lines(error: str | None) -> str:
    return " / ".join((error or UNKNOWN).splitlines()[:3])[:300]


def _place(run: Record) -> str:
    knobs = run["config"]
    if not knobs.get("COMPARISON_ID"):
        return "run by hand"
    return f"{knobs['COMPARISON_ID']}, {knobs.get('COMPARISON_TRIAL')}, {knobs.get('COMPARISON_PLACE')}"


def _start(entry: tuple[str, str, Record]) -> str:
    return entry[0]
