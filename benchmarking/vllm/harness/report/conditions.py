"""What stands above the results: the conditions they hold under, and what limits them."""

from collections.abc import Sequence

from harness.comparison.comparability import (
    FILES_BEFORE,
    MEASURED_TOLERANCE,
    asked,
    concerns,
    conditions,
    dataset_name,
    described,
    read_back,
    unknowns,
)
from harness.comparison.sections import Section
from harness.report.tables import UNKNOWN, Table
from harness.schema import Record


def common(sections: Sequence[Section]) -> Table:
    """What all sections share, as far as they know it."""
    rows = [(name, _text(name, found[0])) for name, found in _values(sections).items() if len(found) == 1]
    return Table("The same for all results", ("setting", "value"), rows)


def varying(sections: Sequence[Section]) -> Table:
    """What tells the sections apart: one column a section; results are never averaged across columns.

    A setting that a record's suite did not have yet had no influence there: a dash.
    """
    facts = [_facts(section) for section in sections]
    names = [name for name, found in _values(sections).items() if len(found) > 1]
    rows = [(name, *(_text(name, each.get(name)) for each in facts)) for name in names]
    letters = [section.name.partition(":")[0] for section in sections]
    return Table("What differs between the results", ("setting", *letters), rows)


def limitations(sections: Sequence[Section], problems: Sequence[str]) -> list[str]:
    """What a reader must know before quoting a figure; each line appears only where it applies."""
    runs = [run for section in sections for run in section.runs]
    return [text for text in (*_of_the_runs(runs), *_of_the_method(sections), *problems) if text]


def _of_the_runs(runs: Sequence[Record]) -> list[str]:
    knobs = [run["config"] for run in runs]
    machines = [run["hardware"] for run in runs if run["hardware"]]
    without_gpu = sum(not machine.get("gpus") for machine in machines)
    commits = sorted({str(run["commit"])[:12] for run in runs if run["commit"]})
    changed = any("+changes" in str(run["commit"]) for run in runs)
    warned = sum(bool(run["warnings"]) for run in runs)
    return [
        "Some weights are random (LOAD_FORMAT dummy): same arithmetic, meaningless text."
        if any(knob.get("LOAD_FORMAT") == "dummy" for knob in knobs)
        else "",
        f"{without_gpu} of {len(runs)} runs had no GPU: they show how strategies feed an engine, not what a GPU gains."
        if without_gpu
        else "",
        "Output lengths are fixed somewhere: no request ends early there, which hides what continuous batching is for."
        if any(knob.get("OUTPUT_LEN_DISTRIBUTION", "fixed") == "fixed" for knob in knobs)
        else "",
        f"The suite's code changed between runs (commits {', '.join(commits)})." if len(commits) > 1 else "",
        "Some runs were made with uncommitted changes to the suite." if changed else "",
        f"{warned} of {len(runs)} runs carry warnings from their counters; they stand in the list of every run."
        if warned
        else "",
    ]


def _of_the_method(sections: Sequence[Section]) -> list[str]:
    unknown = sorted({name for section in sections for run in section.kept for name in unknowns(run)})
    bad, apart = (
        sum(map(len, found)) for found in zip(*((s.unsuccessful, s.set_apart) for s in sections), strict=True)
    )
    return [
        "Intervals are 95 %: of twenty of them, one misses by chance. They assume that strategies scatter alike, in "
        "per cent, and they hold for these machines and data only.",
        f"Sizes that a machine measures for itself, such as the number of KV blocks, count as equal within "
        f"{MEASURED_TOLERANCE:.0%}.",
        f"Not read back from all engines: {', '.join(unknown)}." if unknown else "",
        f"{bad} run(s) did not end in a valid result; they are listed, and paid for in the cost." if bad else "",
        f"{apart} valid run(s) are set apart: they ran with something else than the others of their strategy."
        if apart
        else "",
    ]


def _facts(section: Section) -> dict[str, object]:
    """Asked for, and what the engines said (where all strategies of the section agree)."""
    first = section.first
    said = [read_back(run) for run in section.kept]
    agreed = {
        f"engine: {name}": value
        for name, value in (said[0] if said else {}).items()
        if all(_equal(s, name, value) for s in said)
    }
    own = {
        name: value
        for run in section.kept
        for name, value in conditions(run["config"]).items()
        if concerns(name, run["strategy"])
    }
    rows, dataset = (first["rows"] or {}).get("in"), first["dataset"]
    files = (dataset.get("files") or FILES_BEFORE) if dataset else None
    return {"dataset": dataset_name(first), "rows": rows, "files": files, **asked(first), **own, **agreed}


def _equal(facts: dict[str, object], name: str, value: object) -> bool:
    return facts.get(name) == value


def _values(sections: Sequence[Section]) -> dict[str, list[object]]:
    """Setting → its different values. A knob that a section does not know had no influence there; what is not known of
    its machine is a value of its own."""
    facts = [_facts(section) for section in sections]
    of_machines = {name for section in sections for name in section.first["hardware"] or {}}
    values: dict[str, list[object]] = {}
    for name in dict.fromkeys(name for each in facts for name in each):
        found = [each.get(name) for each in facts if name in each or name in of_machines]
        values[name] = [value for i, value in enumerate(found) if value not in found[:i]]
    return values


def _text(name: str, value: object) -> str:
    return UNKNOWN if value is None else described(name, value)
