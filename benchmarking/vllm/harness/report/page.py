"""The report: one self-contained HTML page and a Markdown summary, written from the records alone.

    page.write(record_file.load(config.RESULTS_PATH), config.RESULTS_PATH, config.GPU_PRICE_PER_HOUR)

No script, no font, no image from anywhere; the page's own policy forbids requests. The same records give the same
bytes, so a committed report changes only when its records do.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import schema
from harness.comparison import sections, verdicts
from harness.comparison.questions import job_s, steady_s_per_token
from harness.report import bounds as best
from harness.report import charts, conditions, curves, overview, summary
from harness.report.tables import Table, markdown_text
from harness.schema import Record

# Of more sets of conditions, charts and runs are folded: they would hide what comes after them.
FEW_SECTIONS = 4
TITLE = "Feeding prompts to vLLM: which way is fastest"

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 .3em; font-size: 13px; display: block; overflow-x: auto }
caption { text-align: left; font-weight: bold; padding-bottom: .3em; white-space: nowrap }
th { max-width: 9em } td:first-child { white-space: nowrap }
td + td { max-width: 14em; overflow-wrap: break-word }
th, td { text-align: left; padding: .2em .7em; border-bottom: 1px solid #ddd; vertical-align: top }
.figure { text-align: right; font-variant-numeric: tabular-nums } td.figure { white-space: nowrap; max-width: none }
.note { color: #555; font-size: 13px; margin-top: .2em }
figure { margin: 1.2em 0; break-inside: avoid } figcaption { font-weight: bold; font-size: 13px }
svg { max-width: 100%; height: auto }
@media print {
body { max-width: none; margin: 0 } table { display: table; font-size: 9px }
th, td { overflow-wrap: anywhere } h2 { break-after: avoid } }
"""
FOLDING = """summary { font-weight: bold; font-size: 13px; cursor: pointer; padding: .3em 0 }
details caption { display: none } td:first-child { white-space: normal; min-width: 13em; max-width: 30em }
@media print { details::details-content { content-visibility: visible; block-size: auto }
details table { table-layout: fixed; width: 100% } td:first-child { min-width: 0 } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Notes:
    lines: Sequence[str]


@dataclass(frozen=True)
class Chart:
    svg: str


@dataclass(frozen=True)
class Folded:
    """Much of one kind, of which the title shows until somebody asks for it; on paper all of it."""

    title: str
    blocks: "Sequence[Block]"
    is_open: bool = False


Block = Heading | Folded | Notes | Table | Chart


def write(records: Sequence[Record], results_path: Path, price: float | None) -> tuple[Path, Path]:
    """Writes report.html and report.md into the results folder and returns their paths."""
    blocks = build(records, results_path, price)
    page, text = results_path / "report.html", results_path / "report.md"
    page.write_text(as_html(blocks), encoding="utf-8")
    text.write_text(as_markdown(blocks), encoding="utf-8")
    return page, text


def build(records: Sequence[Record], results_path: Path, price: float | None) -> list[Block]:
    """The report's content in order: conditions and limitations before any result."""
    good, problems = _fit_for_use(records)
    if not good:
        return [Heading("No results yet"), Notes([f"{results_path} holds no usable record.", *problems])]
    groups = sections.group(good)
    begun = _begun(groups)
    bounds, are_few = best.load(results_path), len(begun) <= FEW_SECTIONS
    if price is None:
        problems.append("Cost is in GPU-seconds: GPU_PRICE_PER_HOUR is not set.")
    return [
        Heading("Conditions"),
        _settings(conditions.common(groups)),
        *([_settings(conditions.varying(groups))] if len(groups) > 1 else []),
        Heading("Limitations"),
        Notes(conditions.limitations(groups, [*verdicts.doubts(groups), *problems])),
        Heading("Results"),
        *_if_any(overview.overview(begun, bounds)),
        *(summary.results(section, bounds, price) for section in begun),
        *_if_any(summary.failures(groups)),
        *_if_any(summary.set_apart(groups)),
        Heading("Who wins, by how much, and how sure that is"),
        *_questions(groups),
        Heading("Charts"),
        *map(Chart, curves.crossovers(verdicts.crossings(groups, bounds))),
        *(Folded(section.name, _charts(section, results_path), are_few) for section in begun),
        Heading("Runs"),
        Folded("Every run, in the order in which they ran", [summary.every_run(groups)], are_few),
    ]


def as_html(blocks: Sequence[Block]) -> str:
    body = "\n".join(_html(block) for block in blocks)
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{TITLE}</title><style>{STYLE}{FOLDING}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><h1>{TITLE}</h1>\n{body}\n</body></html>\n'


def as_markdown(blocks: Sequence[Block]) -> str:
    """Everything but the charts, which are in the page."""
    parts = [f"# {TITLE}", *(_markdown(block) for block in blocks if not isinstance(block, Chart))]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_text(records: Sequence[Record], results_path: Path, price: float | None, comparison: str | None = None) -> str:
    """The page's tables for a terminal; of the conditions that a comparison has runs under, or of all."""
    good, _ = _fit_for_use(records)
    bounds = best.load(results_path)
    groups = [section for section in sections.group(good) if not comparison or _takes_part(section, comparison)]
    # One trial answers no question: its verdicts would all be "too few trials".
    tables = [
        table
        for section in _begun(groups)
        for table in (summary.results(section, bounds, price), verdicts.of(section))
        if table is not None and (table.rows and not _unanswered(table))
    ]
    extra = [*_if_any(summary.failures(groups)), *_if_any(summary.set_apart(groups))]
    # Last, where a terminal ends.
    short = [overview.overview(groups, bounds)] if len(groups) > 1 else []
    return "\n\n".join(table.text() for table in (*tables, *extra, *short) if isinstance(table, Table) and table.rows)


def _begun(groups: Sequence[sections.Section]) -> list[sections.Section]:
    """Without sections whose every run was refused: those are listed, but have nothing to show or draw."""
    return [section for section in groups if any(run["status"] != "refused" for run in section.runs)]


def _unanswered(table: Table) -> bool:
    return all(any("too few trials" in str(cell) for cell in row) for row in table.rows)


def _takes_part(section: sections.Section, comparison: str) -> bool:
    return any(run["config"].get("COMPARISON_ID") == comparison for run in section.runs)


def _fit_for_use(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Records that pass the validator, and a line for each that does not, or that is there again: it is left out, not
    guessed at, nor counted twice."""
    found: list[tuple[Record, list[str]]] = []
    seen: set[str] = set()
    for record in records:
        name = str(record.get("run_id"))
        found.append((record, [*schema.problems(record), *(["the run is there before"] if name in seen else [])]))
        seen.add(name)
    left_out = [
        f"Left out: record {str(record.get('run_id'))[:8]} does not fit the format ({problems[0]}); "
        "see `python benchmarking/vllm/compare.py --check`."
        for record, problems in found
        if problems
    ]
    return [record for record, problems in found if not problems], left_out


def _questions(groups: Sequence[sections.Section]) -> list[Block]:
    explained = (
        "Ratio: how many times the seconds of the left strategy are those of the right one; above 1 the right one is "
        "faster. Too few trials: so many more of the same strategies, by compare.py --trials, give a verdict. Steady "
        "generation is the time an output token takes while all engines have work; the whole job is the "
        "wall time, start-up included."
    )
    unasked = verdicts.without_runs(groups)
    rest = [f"No runs for: {'; '.join(unasked)}."] if unasked else []
    return [
        Notes([explained]),
        *_if_any(verdicts.noise(groups)),
        *verdicts.asked(groups),
        *([Notes(rest)] if rest else []),
    ]


def _settings(table: Table) -> Folded:
    return Folded(f"{table.title} ({len(table.rows)} settings)", [table])


def _charts(section: sections.Section, results_path: Path) -> list[Chart]:
    rate: Callable[[Record], float | None] = lambda run: 1 / s if (s := steady_s_per_token(run)) else None  # noqa: E731
    dots = charts.dots(section, "Whole job, s (a dot a run, a bar at the median; hollow: the A/A twin)", job_s)
    steady = charts.dots(section, "Steady generation, output tokens/s (more is better)", rate)
    return [Chart(svg) for svg in (dots, steady, charts.waterfall(section), curves.hit_rate(section, results_path))]


def _if_any(table: Table) -> list[Block]:
    return [table] if table.rows else []


def _html(block: Block) -> str:
    if isinstance(block, Table):
        return block.html()
    if isinstance(block, Chart):
        return block.svg
    if isinstance(block, Folded):
        inside = "\n".join(_html(each) for each in block.blocks)
        opened = " open" if block.is_open else ""
        return f"<details{opened}><summary>{html.escape(block.title)}</summary>{inside}</details>"
    if isinstance(block, Heading):
        return f"<h2>{html.escape(block.text)}</h2>"
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in block.lines)}</ul>"


def _markdown(block: Block) -> str:
    if isinstance(block, Folded):
        return "\n\n".join(text for each in block.blocks if (text := _markdown(each)))
    if isinstance(block, Table):
        return block.markdown()
    if isinstance(block, Heading):
        return f"## {block.text}" + ("\n\nThe charts are in report.html." if block.text == "Charts" else "")
    return "\n".join(f"- {markdown_text(line)}" for line in block.lines) if isinstance(block, Notes) else ""
