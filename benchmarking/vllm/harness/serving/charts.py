"""Latency against offered rate: one line a configuration, the target drawn in."""

from collections.abc import Callable, Sequence
from typing import Any

from harness.report import palette, svg
from harness.serving import figures
from harness.serving.decisions import completed_rps, goodput_rps
from harness.serving.sections import Section

Row = dict[str, Any]

WIDTH, HEIGHT = 860.0, 240.0
# Okabe and Ito's, the most different first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
TARGET_COLOR = "#8b0000"
# A chart's top is at most this many times the target, so that rows far beyond it do not flatten the rest.
TOP_OVER_TARGET = 4.0


def all_of(section: Section) -> list[str]:
    targets = section.first["targets"]
    return [
        against_rate(section, "p95 TTFT, s, by offered requests/s", _p95("ttft_s"), targets["ttft_s"]),
        against_rate(section, "p95 inter-token latency, s, by offered requests/s", _p95("itl_s"), targets["itl_s"]),
        against_rate(section, "p95 end to end, s, by offered requests/s", _p95("e2e_s"), targets["e2e_s"]),
        against_rate(section, "Accepted requests/s (within the targets), by offered requests/s", goodput_rps, None),
        against_rate(section, "Completed requests/s, by offered requests/s", completed_rps, None),
    ]


def against_rate(section: Section, title: str, measure: Callable[[Row], float | None], target: float | None) -> str:
    """Dots at the measured rates; hollow where the sample does not certify the percentile or the client was late."""
    lines = {name: _points(section.measured(name), measure) for name in section.configurations}
    points = [point for line in lines.values() for point in line]
    if not points:
        return svg.note(title, "No row of these conditions holds this figure.")
    highest = max(value for _, value, _ in points)
    top = min(highest, TOP_OVER_TARGET * target) if target else highest
    plot = svg.Plot(60, 10, WIDTH - 80, HEIGHT, svg.axis_end(max(rate for rate, _, _ in points)), svg.axis_end(top))
    shapes = [*svg.x_axis(plot), *svg.y_axis(plot), *_target(plot, target)]
    for index, (name, line) in enumerate(lines.items()):
        shapes += _line(plot, line, COLORS[index % len(COLORS)], palette.DASHES[index % len(palette.DASHES)], name)
    legend, height = _legend(plot.bottom + 40, list(lines))
    return svg.figure(title, WIDTH, height, shapes + legend)


def _points(rows: Sequence[Row], measure: Callable[[Row], float | None]) -> list[tuple[float, float, bool]]:
    known = [(row, value) for row in rows if (value := measure(row)) is not None]
    return [(float(row["rate"]["offered_rps"]), value, _is_sure(row)) for row, value in known]


def _is_sure(row: Row) -> bool:
    return figures.is_certified(95, row["counts"]["completed"]) and bool(row["client"]["held"])


def _line(plot: svg.Plot, line: Sequence[tuple[float, float, bool]], color: str, dash: str, name: str) -> list[str]:
    """Values beyond the plot's top end at its edge, with their figure beside."""
    ends = [(plot.x(rate), plot.y(min(value, plot.y_max)), value, sure, rate) for rate, value, sure in line]
    shapes = [svg.polyline([(x, y) for x, y, *_ in ends], color, dash)] if len(ends) > 1 else []
    for x, y, value, sure, rate in ends:
        shapes.append(svg.circle(x, y, color, not sure, f"{name}: {value:.4g} at {rate:g}/s"))
        if value > plot.y_max:
            shapes.append(svg.text(x, y + 18, f"{value:.3g}", "middle", color))
    return shapes


def _target(plot: svg.Plot, target: float | None) -> list[str]:
    if target is None or target > plot.y_max:
        return []
    y = plot.y(target)
    return [
        svg.line(plot.left, y, plot.right, y, TARGET_COLOR, 1.5, "6 4"),
        svg.text(plot.left + 6, y - 5, f"target {target:g} s", color=TARGET_COLOR, bold=True),
    ]


def _legend(top: float, names: Sequence[str]) -> tuple[list[str], float]:
    shapes = []
    for index, name in enumerate(names):
        x, y = 20 + 280 * (index % 3), top + 24 * (index // 3)
        color = COLORS[index % len(COLORS)]
        shapes.append(svg.line(x, y, x + 40, y, color, 2, palette.DASHES[index % len(palette.DASHES)]))
        shapes += [svg.circle(x + 20, y, color), svg.text(x + 48, y + 4, name)]
    return shapes, top + 24 * ((len(names) + 2) // 3) + 4


def _p95(key: str) -> Callable[[Row], float | None]:
    def read(row: Row) -> float | None:
        value: float | None = row["latency"][key]["p95"]
        return value

    return read
