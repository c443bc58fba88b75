"""Types of command-line arguments that computing relies on; argparse names the argument and exits with 2."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path


def at_least(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """A whole number of at least `least`, and no more than can be computed with."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected a whole number of at most {most:,}, found {text!r:.40}")
        return value

    return parse


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0, found {text!r}")
    return value


def above_zero(text: str) -> float:
    """A finite number above 0."""
    if not (value := not_negative(text)):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def new_file(text: str) -> Path:
    """A file to be written, in a folder that is there: known before hours of work, not after."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder of that name" if path.is_dir() else f"no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"expected a file to write in a folder that exists, found {found}")
    return path
