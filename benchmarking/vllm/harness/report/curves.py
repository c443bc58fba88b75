"""Charts with a line or a point for each strategy: hit rate over time, and where strategies cross over.

A chart whose records lack the data says so in its place.
"""

from dataclasses import dataclass
from pathlib import Path

from harness.comparison.sections import Section, rank
from harness.report import palette, series, svg
from harness.report.charts import WIDTH, median_run


def hit_rate(section: Section, results_path: Path) -> str:
    """One line a strategy: the median run's hit rate, window by window."""
    title = "Prefix-cache hit rate over time: share of looked-up prompt tokens found, by seconds since the first sample"
    strategies = section.strategies()
    runs = {name: median_run(section.of(name)) for name in strategies}
    curves = {name: series.hit_rates(run, results_path) for name, run in runs.items() if run}
    drawn = {name: curve for name, curve in curves.items() if curve}
    if not drawn:
        return svg.note(title, "No run of these conditions has a time series (PROBE_INTERVAL_S was 0, or it was lost).")
    end = svg.axis_end(max(t for curve in drawn.values() for t, _ in curve))
    plot = svg.Plot(50, 10, WIDTH - 70, 220, end)
    shapes = [*svg.x_axis(plot), *svg.y_axis(plot)]
    for name, curve in drawn.items():
        points = [(plot.x(t), plot.y(rate)) for t, rate in curve]
        shapes.append(svg.polyline(points, palette.color(name), palette.dash(name)))
    without = [f"{name} (no time series)" for name in strategies if name not in drawn]
    legend, height = _strategy_legend(plot.bottom + 40, [*drawn], without)
    return svg.figure(title, WIDTH, height, shapes + legend)


@dataclass(frozen=True)
class Crossing:
    """A strategy's speed-up in one section, with its interval if there is one, at that section's pressure on the KV."""

    strategy: str
    section: str
    pressure: float
    speedup: float
    low: float | None
    high: float | None


def crossover(crossings: list[Crossing]) -> str:
    """The map that decides: speed-up against how many times the shared prefixes fill the KV cache."""
    title = (
        "Speed-up over naive-batch (steady generation, times) by working set of shared prefixes ÷ KV cache of one "
        "engine (dotted lines: the conditions by letter)"
    )
    if not crossings:
        return svg.note(
            title, "No record has its working set in bounds.jsonl together with a speed-up over naive-batch."
        )
    # Room for the dots beside the last pressure.
    x_end = svg.axis_end(1.1 * max(c.pressure for c in crossings))
    y_end = svg.axis_end(max(c.high or c.speedup for c in crossings))
    plot = svg.Plot(50, 10, WIDTH - 150, 260, x_end, y_end)
    shapes = [*svg.x_axis(plot), *svg.y_axis(plot)]
    shapes.append(svg.line(plot.left, plot.y(1), plot.right, plot.y(1), width=1.5, dash="3 3"))
    names = sorted({crossing.strategy for crossing in crossings}, key=rank)
    for crossing in crossings:
        shapes += _crossing(plot, crossing, names)
    legend, height = _strategy_legend(plot.bottom + 40, names, [])
    return svg.figure(title, WIDTH, height, shapes + legend)


def _strategy_legend(top: float, strategies: list[str], remarks: list[str]) -> tuple[list[str], float]:
    shapes = []
    for index, name in enumerate([*strategies, *remarks]):
        x, y = 20 + 280 * (index % 3), top + 24 * (index // 3)
        if name in strategies:
            shapes.append(svg.line(x, y, x + 40, y, palette.color(name), 2, palette.dash(name)))
            shapes += _numbered(x + 20, y, name)
        shapes.append(svg.text(x + 48, y + 4, name))
    return shapes, top + 24 * ((len(strategies) + len(remarks) + 2) // 3) + 4


def _crossing(plot: svg.Plot, crossing: Crossing, names: list[str]) -> list[str]:
    # Strategies of one section share their pressure: a line marks it, and they stand side by side to its right.
    mark = plot.x(crossing.pressure)
    x = mark + 14 + 17 * names.index(crossing.strategy)
    shapes = [
        svg.line(mark, plot.top, mark, plot.bottom, dash="1 3"),
        svg.text(mark + 4, plot.top + 12, crossing.section.split(":")[0]),
    ]
    if crossing.low is not None and crossing.high is not None:
        ends = plot.y(crossing.low), plot.y(crossing.high)
        shapes.append(svg.line(x, ends[0], x, ends[1], palette.color(crossing.strategy), 2.5))
    hint = f"{crossing.strategy}: {crossing.speedup:.3f} times in {crossing.section}"
    return [*shapes, *_numbered(x, plot.y(crossing.speedup), crossing.strategy, hint)]


def _numbered(x: float, y: float, strategy: str, hint: str = "") -> list[str]:
    """A dot in the strategy's colour with its number, which a print in grey keeps."""
    color = palette.color(strategy)
    dot = svg.circle(x, y, color, hint=hint, radius=7.5)
    return [dot, svg.text(x, y + 4, palette.number(strategy), "middle", palette.on(color))]
