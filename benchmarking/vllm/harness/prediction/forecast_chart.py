"""Hit rate of each strategy against KV capacity, as an SVG picture."""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 220, 40, 50
COLORS = ("#1b6ca8", "#e07b00", "#2a9d5c", "#c0392b", "#7d4fb3", "#8a6d3b", "#444444")
TITLE = "Prefix-cache hit rate against the KV cache of one engine"

Curve = Sequence[tuple[float, float]]  # KV tokens of an engine, hit rate


class Axes(NamedTuple):
    """Where a point lies: KV tokens on a logarithmic axis, hit rate on a linear one."""

    low: float  # log10 of tokens
    high: float
    top_rate: float

    def x(self, tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(tokens) - self.low) / (self.high - self.low)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / self.top_rate


def draw(curves: Mapping[str, Curve], kv_tokens: float, working_set_tokens: float, possible: float) -> str:
    """The picture, with the capacity of the chosen GPU and the size of the shared prefixes marked."""
    capacities = [tokens for curve in curves.values() for tokens, _ in curve]
    marks = {"this GPU": kv_tokens, "shared prefixes": working_set_tokens}
    all_tokens = [*capacities, *(tokens for tokens in marks.values() if tokens)]
    rates = [rate for curve in curves.values() for _, rate in curve]
    axes = Axes(math.log10(min(all_tokens)), math.log10(max(all_tokens)) + 0.01, 1.05 * max(0.01, possible, *rates))
    shapes = [*_grid(axes), *_marks(axes, marks, possible), *_curves(axes, curves)]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = 'style="font-family:system-ui,sans-serif;font-size:12px;background:#fff"'
    body = "\n".join([_text(LEFT, 20, TITLE), *shapes])
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{TITLE}" {size} {style}>\n{body}\n</svg>\n'


def _grid(axes: Axes) -> Iterator[str]:
    for step in range(5):
        rate = axes.top_rate * step / 4
        yield _line(LEFT, axes.y(rate), WIDTH - RIGHT, axes.y(rate), "#ddd")
        yield _text(LEFT - 6, axes.y(rate) + 4, f"{rate:.0%}", "end")
    for step in range(5):
        tokens = 10 ** (axes.low + (axes.high - axes.low) * step / 4)
        yield _text(axes.x(tokens), HEIGHT - BOTTOM + 18, f"{float(f'{tokens:.2g}'):,.0f}", "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "tokens of KV cache", "middle")


def _marks(axes: Axes, marks: Mapping[str, float], possible: float) -> Iterator[str]:
    yield _line(LEFT, axes.y(possible), WIDTH - RIGHT, axes.y(possible), "#444", dash="2 4")
    yield _text(WIDTH - RIGHT + 4, axes.y(possible) + 4, "possible")
    for i, (name, tokens) in enumerate(marks.items()):
        if tokens:
            yield _line(axes.x(tokens), TOP, axes.x(tokens), HEIGHT - BOTTOM, "#888", dash="6 4")
            yield _text(axes.x(tokens) + 4, HEIGHT - BOTTOM - 8 - 16 * i, name, color="#666")


def _curves(axes: Axes, curves: Mapping[str, Curve]) -> Iterator[str]:
    for i, (name, curve) in enumerate(curves.items()):
        color = COLORS[i % len(COLORS)]
        path = " ".join(f"{axes.x(tokens):.1f},{axes.y(rate):.1f}" for tokens, rate in curve)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield _text(WIDTH - RIGHT + 60, HEIGHT - BOTTOM - 18 * (len(curves) - i), name, color=color)


def _line(x1: float, y1: float, x2: float, y2: float, color: str, dash: str = "none") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-dasharray="{dash}"/>'


def _text(x: float, y: float, content: str, anchor: str = "start", color: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{html.escape(content)}</text>'
