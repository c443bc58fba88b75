"""One colour a strategy, the same in every chart; and a ramp for the parts of a run.

Strategies take the colours of Okabe and Ito ("Color Universal Design", 2008), told apart with every common kind of
colour blindness; lines differ in their dashes, dots carry numbers and rows names, so that a print in grey can be read.
"""

STRATEGY_COLORS = {
    "naive-batch": "#0072B2",
    "naive-batch-sorted": "#56B4E9",
    "continuous-batch": "#D55E00",
    "continuous-batch-sorted": "#E69F00",
    "prefix-bucketing": "#009E73",
    "prefix-bucketing-sorted": "#4818F0",
    "ray-data": "#CC79A7",
    "prefix-planned": "#000000",
}
DASHES = ("", "8 3", "2 3", "8 3 2 3", "12 4", "4 4", "1 5", "6 2 2 2")
OTHER_COLOR = "#777777"

# From dark to light, evenly in lightness (after matplotlib's cividis), so that neighbours differ in grey too.
_RAMP = ((0, 34, 78), (59, 73, 108), (112, 113, 115), (165, 156, 116), (225, 204, 85), (254, 232, 56))


def color(strategy: str) -> str:
    return STRATEGY_COLORS.get(strategy, OTHER_COLOR)


def dash(strategy: str) -> str:
    names = list(STRATEGY_COLORS)
    return DASHES[names.index(strategy) % len(DASHES)] if strategy in names else "1 2"


def number(strategy: str) -> str:
    """A strategy's number in charts where its name does not fit beside its dot."""
    names = list(STRATEGY_COLORS)
    return str(names.index(strategy) + 1) if strategy in names else "?"


def part_color(index: int, parts: int) -> str:
    """Colour of the part at `index` of `parts`, as #rrggbb."""
    place = index / max(parts - 1, 1) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def on(background: str) -> str:
    """Black or white, whichever can be read on a colour."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "#000" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "#fff"
