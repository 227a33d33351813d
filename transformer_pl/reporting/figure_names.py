"""The names of rows in figures: whole, so that they can be told apart, and placed so that none lies on another."""

import re
import textwrap
from collections.abc import Sequence

NAME_WIDTH = 24  # characters in a line
NAME_SIZE = 8  # points
LINE = 1.25 * NAME_SIZE / 72  # inches


def break_name(name: str) -> str:
    """A name on as many lines as it needs, so that names which differ look different: broken at blanks, then `=`."""
    pieces = [piece for word in name.split() for piece in _fitting(word)]
    lines = pieces[:1] or [""]
    for piece in pieces[1:]:
        longer = f"{lines[-1]} {piece}"
        fits = len(longer) <= NAME_WIDTH and not lines[-1].endswith("=")
        lines[-1:] = [longer] if fits else [lines[-1], piece]
    return "\n".join(lines)


def name_height(name: str) -> float:
    """The height of a name in inches."""
    return LINE * (1 + name.count("\n"))


def spread_apart(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Centres of intervals of these sizes, near the wanted ones, that do not overlap. All are within 0 and 1 if they
    fit. wanted: from the highest to the lowest."""
    centres, edge = list(wanted), 1.0
    for i, size in enumerate(sizes):
        centres[i] = min(centres[i], edge - size / 2)
        edge = centres[i] - size / 2
    edge = 0.0
    for i in reversed(range(len(sizes))):
        centres[i] = max(centres[i], edge + sizes[i] / 2)
        edge = centres[i] + sizes[i] / 2
    return centres


def _fitting(word: str) -> list[str]:
    """The word, in parts of at most NAME_WIDTH characters."""
    parts = [word] if len(word) <= NAME_WIDTH else re.split(r"(?<==)", word, maxsplit=1)
    return [line for part in parts if part for line in textwrap.wrap(part, NAME_WIDTH, break_on_hyphens=False)]
