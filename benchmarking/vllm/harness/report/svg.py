"""The few SVG shapes that the charts are made of, as text. All text is escaped; nothing is loaded from anywhere."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

INK = "#222"
FAINT = "#ddd"
FONT = "font-family:system-ui,sans-serif;font-size:12px"


@dataclass(frozen=True)
class Plot:
    """A plotting area in pixels with linear axes that both start at zero; `x_max` and `y_max` are their other ends."""

    left: float
    top: float
    width: float
    height: float
    x_max: float
    y_max: float = 1.0

    def x(self, value: float) -> float:
        return self.left + self.width * value / self.x_max

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.y_max)

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


def figure(title: str, width: float, height: float, shapes: Sequence[str]) -> str:
    """A whole chart: its title is the caption and what a screen reader says."""
    name = html.escape(title)
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    body = "\n".join(shapes)
    svg = f'<svg role="img" aria-label="{name}" {size} style="{FONT}">\n{body}\n</svg>'
    return f"<figure><figcaption>{name}</figcaption>{svg}</figure>"


def note(title: str, text: str) -> str:
    """Stands where a chart would, and says why there is none."""
    return f'<figure><figcaption>{html.escape(title)}</figcaption><p class="note">{html.escape(text)}</p></figure>'


def x_axis(plot: Plot) -> list[str]:
    shapes = []
    for tick in ticks(plot.x_max):
        shapes.append(line(plot.x(tick), plot.top, plot.x(tick), plot.bottom, FAINT))
        shapes.append(text(plot.x(tick), plot.bottom + 16, number(tick), anchor="middle"))
    return [*shapes, line(plot.left, plot.bottom, plot.right, plot.bottom)]


def y_axis(plot: Plot) -> list[str]:
    shapes = []
    for tick in ticks(plot.y_max):
        shapes.append(line(plot.left, plot.y(tick), plot.right, plot.y(tick), FAINT))
        shapes.append(text(plot.left - 6, plot.y(tick) + 4, number(tick), anchor="end"))
    return [*shapes, line(plot.left, plot.top, plot.left, plot.bottom)]


def axis_end(largest: float) -> float:
    """The round number at or above `largest` where an axis ends."""
    step = _step(largest)
    return step * math.ceil(round(largest / step, 9)) if largest > 0 else 1.0


def ticks(end: float) -> list[float]:
    step = _step(end)
    return [step * i for i in range(round(end / step) + 1)]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def text(x: float, y: float, content: str, anchor: str = "start", color: str = INK, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"{weight}'
    return f"<text {place}>{html.escape(content)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, color: str = INK, width: float = 1, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width:g}"{dashes}/>'


def polyline(points: Sequence[tuple[float, float]], color: str, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'


def circle(x: float, y: float, color: str, hollow: bool = False, hint: str = "", radius: float = 4.5) -> str:
    fill = "#fff" if hollow else color
    shape = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{color}" stroke-width="1.5"'
    return f"<circle {shape}><title>{html.escape(hint)}</title></circle>"


def rectangle(x: float, y: float, width: float, height: float, color: str, hint: str = "") -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{color}"'
    return f'<rect {shape} stroke="#fff" stroke-width="0.7"><title>{html.escape(hint)}</title></rect>'


def _step(end: float) -> float:
    """1, 2 or 5 times a power of ten that gives four to eight steps."""
    if end <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(end / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if end / (power * factor) <= 8)
