"""Charts with a line or a point for each strategy: hit rate over time, and where strategies cross over.

A chart whose records lack the data says so in its place.
"""

from dataclasses import dataclass
from pathlib import Path

from harness import palette, series, svg
from harness.charts import WIDTH, median_run
from harness.sections import Section


def hit_rate(section: Section, results_path: Path) -> str:
    """One line a strategy: the median run's hit rate, window by window."""
    title = "Prefix-cache hit rate over time: share of looked-up prompt tokens found, by seconds since the first sample"
    strategies = list(dict.fromkeys(run["strategy"] for run in section.kept))
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
    title = "Speed-up over naive-batch (steady generation) by working set of shared prefixes ÷ KV cache of one engine"
    if not crossings:
        return svg.note(
            title, "No record has its working set in bounds.jsonl together with a speed-up over naive-batch."
        )
    x_end = svg.axis_end(max(c.pressure for c in crossings))
    y_end = svg.axis_end(max(c.high or c.speedup for c in crossings))
    plot = svg.Plot(50, 10, WIDTH - 70, 260, x_end, y_end)
    shapes = [*svg.x_axis(plot), *svg.y_axis(plot)]
    shapes.append(svg.line(plot.left, plot.y(1), plot.right, plot.y(1), width=1.5, dash="3 3"))
    for crossing in crossings:
        shapes += _crossing(plot, crossing)
    legend, height = _strategy_legend(plot.bottom + 40, list(dict.fromkeys(c.strategy for c in crossings)), [])
    return svg.figure(title, WIDTH, height, shapes + legend)


def _strategy_legend(top: float, strategies: list[str], remarks: list[str]) -> tuple[list[str], float]:
    shapes = []
    for index, name in enumerate([*strategies, *remarks]):
        x, y = 20 + 280 * (index % 3), top + 20 * (index // 3)
        if name in strategies:
            shapes.append(svg.line(x, y, x + 36, y, palette.color(name), 2, palette.dash(name)))
            shapes.append(svg.circle(x + 18, y, palette.color(name)))
        shapes.append(svg.text(x + 44, y + 4, name))
    return shapes, top + 20 * ((len(strategies) + len(remarks) + 2) // 3) + 4


def _crossing(plot: svg.Plot, crossing: Crossing) -> list[str]:
    x, color = plot.x(crossing.pressure), palette.color(crossing.strategy)
    whole = crossing.low is not None and crossing.high is not None
    bar = [svg.line(x, plot.y(crossing.low or 0), x, plot.y(crossing.high or 0), color, 1.5)] if whole else []
    hint = f"{crossing.strategy}: {crossing.speedup:.3f} times in {crossing.section}"
    return [*bar, svg.circle(x, plot.y(crossing.speedup), color, hollow=not whole, hint=hint)]
