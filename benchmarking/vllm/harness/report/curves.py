"""Charts with a line or a point for each strategy: hit rate over time, and where strategies cross over.

A chart whose records lack the data says so in its place.
"""

import math
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

    card: str
    strategy: str
    section: str
    pressure: float
    speedup: float
    low: float | None
    high: float | None


# How many times the shared prefixes fill the KV cache: a place on the map for each power of 4, since on an axis most
# conditions would lie on top of each other at its beginning.
BANDS = {0.5: "under 1/2", 2.0: "1/2 to 2", 8.0: "2 to 8", 32.0: "8 to 32", math.inf: "32 and more"}
SPEEDUPS = "Speed-up over naive-batch (steady generation, times)"
PRESSURE = "working set of shared prefixes ÷ KV cache of one engine"
# Pixels between the numbered dots of a band, at most.
MOST_APART = 24.0


def crossovers(crossings: list[Crossing]) -> list[str]:
    """The maps that decide, one a card: speed-up against how many times the shared prefixes fill the KV cache."""
    if not crossings:
        without = "No record has its working set in bounds.jsonl together with a speed-up over naive-batch."
        return [svg.note(f"{SPEEDUPS} by {PRESSURE}", without)]
    cards = dict.fromkeys(crossing.card for crossing in crossings)
    return [_crossover(card, [crossing for crossing in crossings if crossing.card == card]) for card in cards]


def _crossover(card: str, crossings: list[Crossing]) -> str:
    title = f"{SPEEDUPS} on {card} by {PRESSURE} (above: the conditions by letter)"
    names = sorted({crossing.strategy for crossing in crossings}, key=rank)
    bands = sorted({_band(crossing) for crossing in crossings})
    apart = min(MOST_APART, (WIDTH - 70) / len(bands) / (len(names) + 1))
    y_end = svg.axis_end(max(c.high or c.speedup for c in crossings))
    plot = svg.Plot(50, 24, apart * (len(names) + 1) * len(bands), 260, len(bands), y_end)
    shapes = svg.y_axis(plot)
    shapes.append(svg.line(plot.left, plot.y(1), plot.right, plot.y(1), width=1.5, dash="3 3"))
    for place, band in enumerate(bands):
        here = [crossing for crossing in crossings if _band(crossing) == band]
        shapes += [*_band_marks(plot, place, band, here)]
        for crossing in here:
            shapes += _crossing(plot, plot.x(place) + apart * (names.index(crossing.strategy) + 1), crossing)
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


def _band(crossing: Crossing) -> float:
    return next(end for end in BANDS if crossing.pressure < end)


def _band_marks(plot: svg.Plot, place: int, band: float, crossings: list[Crossing]) -> list[str]:
    letters = dict.fromkeys(crossing.section.split(":")[0] for crossing in crossings)
    middle = plot.x(place + 0.5)
    return [
        svg.line(plot.x(place + 1), plot.top, plot.x(place + 1), plot.bottom, svg.FAINT),
        svg.text(middle, plot.top - 8, " ".join(letters), "middle"),
        svg.text(middle, plot.bottom + 16, BANDS[band], "middle"),
    ]


def _crossing(plot: svg.Plot, x: float, crossing: Crossing) -> list[str]:
    shapes = []
    if crossing.low is not None and crossing.high is not None:
        ends = plot.y(crossing.low), plot.y(crossing.high)
        shapes.append(svg.line(x, ends[0], x, ends[1], palette.color(crossing.strategy), 2.5))
    hint = (
        f"{crossing.strategy}: {crossing.speedup:.3f} times in {crossing.section}; the shared prefixes fill "
        f"{crossing.pressure:.2g} of a KV cache"
    )
    return [*shapes, *_numbered(x, plot.y(crossing.speedup), crossing.strategy, hint)]


def _numbered(x: float, y: float, strategy: str, hint: str = "") -> list[str]:
    """A dot in the strategy's colour with its number, which a print in grey keeps."""
    color = palette.color(strategy)
    dot = svg.circle(x, y, color, hint=hint, radius=7.5)
    return [dot, svg.text(x, y + 4, palette.number(strategy), "middle", palette.on(color))]
