"""Charts with a row for each strategy: every run as a dot, and where the seconds of a run went.

A chart whose records lack the data says so in its place.
"""

from collections.abc import Callable, Mapping
from statistics import median
from string import ascii_uppercase

from harness.comparison.sections import Section, arm
from harness.report import palette, svg
from harness.report.tables import figure
from harness.schema import Record

WIDTH = 860.0
LABELS = 190.0
RIGHT = 170.0
ROW = 26.0
VISIBLE_S = 0.01


def dots(section: Section, title: str, measure: Callable[[Record], float | None]) -> str:
    """One row a label, one dot a run, a bar at the median; labels with runs that failed say so."""
    labels = section.arms()
    values = {name: [(run, measure(run)) for run in section.of_arm(name)] for name in labels}
    known = [value for runs in values.values() for _, value in runs if value is not None]
    if not known and not section.unsuccessful:
        return svg.note(title, "No record of these conditions holds this figure.")
    plot = _rows(labels, max(known, default=1.0))
    shapes = svg.x_axis(plot)
    for row, name in enumerate(labels):
        shapes += _dot_row(plot, row, name, values[name], section)
    return svg.figure(title, WIDTH, plot.bottom + 26, shapes)


def waterfall(section: Section) -> str:
    """Stacked bars: the parts of each label's median run, in the order in which they happen."""
    title = "Where the seconds of the median run went, s (engines start, then work; mean over the engines)"
    runs = {name: median_run(section.of_arm(name)) for name in section.arms()}
    split = {name: parts_of(run) for name, run in runs.items() if run and parts_of(run)}
    if not split:
        return svg.note(title, "No record of these conditions holds the parts of its wall time.")
    visible = {part for seconds in split.values() for part in seconds}
    parts = [part for part in _every_part([run for run in runs.values() if run]) if part in visible]
    plot = _rows(list(runs), max(sum(seconds.values()) for seconds in split.values()))
    shapes = svg.x_axis(plot)
    for row, name in enumerate(runs):
        shapes += [_row_label(plot, row, name), *_stack(plot, row, split.get(name, {}), parts)]
        shapes += [] if name in split else [_aside(plot, row, "no parts recorded" if runs[name] else "no valid run")]
    legend, height = _part_legend(plot.bottom + 34, parts)
    return svg.figure(title, WIDTH, height, shapes + legend)


def median_run(runs: list[Record]) -> Record | None:
    """The run in the middle by wall time (of an even number, the faster one): its parts add up, medians would not."""
    ordered = sorted((run for run in runs if run["wall_s"]), key=lambda run: run["wall_s"])
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def parts_of(run: Record) -> dict[str, float]:
    """The waterfall's parts, or the phases where a record has no finer ones; without the unknown and the invisible."""
    parts = _recorded_parts(run)
    return {name: seconds for name, seconds in parts.items() if seconds is not None and seconds > VISIBLE_S}


def _every_part(runs: list[Record]) -> list[str]:
    """Names of all parts, in the order in which records hold them: that of time."""
    return list(dict.fromkeys(part for run in runs for part in _recorded_parts(run)))


def _recorded_parts(run: Record) -> dict[str, float | None]:
    return run["waterfall_s"] or run["phases_s"] or {}


def _rows(labels: list[str], largest: float) -> svg.Plot:
    return svg.Plot(LABELS, 8, WIDTH - LABELS - RIGHT, ROW * len(labels), svg.axis_end(largest))


def _row_label(plot: svg.Plot, row: int, name: str) -> str:
    return svg.text(plot.left - 10, plot.top + ROW * (row + 0.5) + 4, name, anchor="end")


def _aside(plot: svg.Plot, row: int, text: str) -> str:
    return svg.text(plot.left + 8, plot.top + ROW * (row + 0.5) + 4, text, color="#8b0000", bold=True)


def _dot_row(
    plot: svg.Plot, row: int, name: str, runs: list[tuple[Record, float | None]], section: Section
) -> list[str]:
    y = plot.top + ROW * (row + 0.5)
    known = [(run, value) for run, value in runs if value is not None]
    bad = [run for run in section.unsuccessful if arm(run) == name]
    shapes = [_row_label(plot, row, name)]
    for run, value in known:
        hollow = run["strategy"] != name
        shapes.append(
            svg.circle(plot.x(value), y, palette.color(run["strategy"]), hollow, f"{value:.4g}, {run['run_id']}")
        )
    if known:
        middle = median([value for _, value in known])
        shapes.append(svg.line(plot.x(middle), y - 10, plot.x(middle), y + 10, width=2.5))
        shapes.append(svg.text(plot.right + 10, y + 4, f"{figure(middle)}{_failures(bad, known)}"))
    else:
        counts = [f"{len(found)} {status}" for status in ("invalid", "failed") if (found := _with(bad, status))]
        shapes.append(_aside(plot, row, ", ".join(counts) or "not recorded"))
    return shapes


def _failures(bad: list[Record], known: list[tuple[Record, float]]) -> str:
    return f" ({len(bad)} of {len(bad) + len(known)} not valid)" if bad else ""


def _with(runs: list[Record], status: str) -> list[Record]:
    return [run for run in runs if run["status"] == status]


def _stack(plot: svg.Plot, row: int, seconds: Mapping[str, float], parts: list[str]) -> list[str]:
    shapes = []
    at = 0.0
    y = plot.top + ROW * row + 3
    for index, part in enumerate(parts):
        if part in seconds:
            x, width = plot.x(at), plot.x(at + seconds[part]) - plot.x(at)
            fill = palette.part_color(index, len(parts))
            shapes.append(svg.rectangle(x, y, width, ROW - 6, fill, f"{part}: {seconds[part]:.4g} s"))
            if width > 12:
                shapes.append(svg.text(x + width / 2, y + 14, _key(index), "middle", palette.on(fill)))
            at += seconds[part]
    return [*shapes, svg.text(plot.x(at) + 8, y + 14, f"{figure(at)} s")] if seconds else shapes


def _key(index: int) -> str:
    return ascii_uppercase[index % len(ascii_uppercase)]


def _part_legend(top: float, parts: list[str]) -> tuple[list[str], float]:
    shapes = []
    for index, part in enumerate(parts):
        x, y = 20 + 210 * (index % 4), top + 22 * (index // 4)
        fill = palette.part_color(index, len(parts))
        shapes += [svg.rectangle(x, y, 18, 16, fill), svg.text(x + 9, y + 12, _key(index), "middle", palette.on(fill))]
        shapes.append(svg.text(x + 24, y + 12, part))
    return shapes, top + 22 * ((len(parts) + 3) // 4) + 4
