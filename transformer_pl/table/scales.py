"""What the differences of rows at one scale say of those at a larger one (`--against`)."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_pl.runtime.errors import InputError
from transformer_pl.table import cells
from transformer_pl.table.columns import DAGGER, STAR, Record, column, difference_record
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.notes import FEWEST_ORDERED, name_of_base
from transformer_pl.table.row import Contrast, Outcome
from transformer_pl.table.statistics import Estimate, predict, rank_correlation

LEAST_HELD = 16 / 18  # of the 95 % intervals of rows that are predicted without themselves; else nothing is predicted


class TwoScales(NamedTuple):
    """The rows whose differences from base are known at two scales."""

    names: tuple[str, str]  # of the scales
    outcome: Outcome
    pairs: list[tuple[Contrast, Contrast]]
    x: np.ndarray  # the first difference of each pair
    y: np.ndarray  # the second one
    left_out: list[Estimate]  # the second one by the line through the other pairs
    held: int  # how many of the second ones lie within these 95 % intervals

    @property
    def is_predictable(self) -> bool:
        """Whether so many intervals hold that other rows may be predicted."""
        return self.held >= LEAST_HELD * len(self.pairs)


def at_both(here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str]) -> TwoScales:
    """The rows that are known at both scales. Raises an InputError for too few of them.

    A row whose seeds spread unlike those of the others here is left out: its difference is hardly known.
    """
    outcome, of_others = here[0].outcome, there[0].outcome
    if outcome.key != of_others.key:
        rule = f"must compare rows by the same score, but has {of_others.key} where {names[0]} has {outcome.key}"
        raise InputError(f"--against {names[1]}: {rule}; choose another scale")
    by_name = {contrast.row.name: contrast for contrast in there if _is_known(contrast)}
    fit = [contrast for contrast in here if _is_fit(contrast) and contrast.row.name in by_name]
    pairs = [(contrast, by_name[contrast.row.name]) for contrast in fit]
    x, y = np.array([[contrast.difference for contrast in pair] for pair in pairs], float).reshape(-1, 2).T
    if (fewest := min(len(set(x)), len(set(y)))) < FEWEST_ORDERED:
        rule = f"must have {FEWEST_ORDERED} rows that differ from base and from each other at both scales, but has"
        raise InputError(f"--against {names[1]}: {rule} {fewest}; train more rows at {names[0]} and at {names[1]}")
    left_out = [predict(np.delete(x, i), np.delete(y, i), x[i]) for i in range(len(x))]
    held = sum(predicted.low <= value <= predicted.high for predicted, value in zip(left_out, y, strict=True))
    return TwoScales(names, outcome, pairs, x, y, left_out, held)


def _is_known(contrast: Contrast) -> bool:
    return contrast.difference is not None and math.isfinite(contrast.difference)


def _is_fit(contrast: Contrast) -> bool:
    return _is_known(contrast) and not contrast.is_outlier


def scales_table(here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str]) -> Table:
    """Each row's difference from base at two scales, and what the first predicts of the second. names: of the scales.

    A row is predicted by the line through all others. Raises an InputError where too few rows are at both scales.
    """
    both, base = at_both(here, there, names), name_of_base([contrast.row for contrast in here])
    notes = [_sizes(both), _left_out(here, names[0]), f"{STAR} {DAGGER}"]
    predicted, by_name = _predictions(here, both), {contrast.row.name: contrast for contrast in there}
    pairs = [
        (first, by_name.get(name := first.row.name, Contrast(first.row, both.outcome)), predicted.get(name))
        for first in here
        if not first.row.is_base
    ]
    said, notes = _orders(both, base), [*filter(None, notes)]
    return Table(_columns(pairs, both), _records(pairs, both), notes, summary=said, caption=f"{said} {STAR}")


def _predictions(here: Sequence[Contrast], both: TwoScales) -> dict[str, Estimate]:
    """By row, its difference at the second scale, by the line through the other rows; empty if nothing is predicted."""
    if not both.is_predictable:
        return {}
    predicted = {fit.row.name: predict(both.x, both.y, fit.difference or 0.0) for fit in here if _is_fit(fit)}
    return predicted | {fit.row.name: value for (fit, _), value in zip(both.pairs, both.left_out, strict=True)}


def _columns(pairs: Sequence[tuple[Contrast, Contrast, Estimate | None]], both: TwoScales) -> list[Column]:
    """The columns of the differences at both scales, and of what is predicted."""
    firsts, seconds, predicted = zip(*pairs, strict=True)
    heading, form = f"Δ {both.outcome.title}", f"+z.{both.outcome.digits}f"
    return [
        column(firsts, "row", lambda contrast: cells.title(contrast.row)),
        column(firsts, f"{heading} {both.names[0]}", cells.marked_difference, f"{STAR} {DAGGER}"),
        column(seconds, f"{heading} {both.names[1]}", cells.marked_difference, f"{STAR} {DAGGER}"),
        column(
            predicted, f"predicted for {both.names[1]}", lambda known: cells.number(known.value, form) if known else ""
        ),
        column(predicted, "predicted 95 %", lambda known: cells.interval(known.interval(), form) if known else ""),
    ]


def _records(pairs: Sequence[tuple[Contrast, Contrast, Estimate | None]], both: TwoScales) -> list[Record]:
    keys = [f"{name}/{both.outcome.key}.difference" for name in both.names]
    predicted = ("predicted", "predicted.low", "predicted.high")
    return [
        {"name": first.row.name, "label": first.row.title}
        | difference_record(first, keys[0])
        | difference_record(second, keys[1])
        | dict(zip(predicted, (known.value, *known.interval()) if known else (None, None, None), strict=True))
        for first, second, known in pairs
    ]


def _orders(both: TwoScales, base: str) -> str:
    """How far the order and the directions of rows are those of the other scale. base: its name."""
    (first, second), x, y = both.names, both.x, both.y
    turns = list(itertools.combinations(range(len(x)), 2))
    kept = sum((x[i] - x[j]) * (y[i] - y[j]) > 0 for i, j in turns)
    signs, found = x * y > 0, np.array([contrast.is_found for contrast, _ in both.pairs])
    correlation, (low, high) = rank_correlation(x, y)
    said = f"{kept} of {len(turns)} pairs of rows ({kept / len(turns):.0%}) are in the same order at {first} and at "
    said += f"{second}, and {signs.sum()} of {len(x)} differences from {base} have the same sign"
    said += f": {signs[found].sum()} of the {found.sum()} that are significant at {first}" if found.any() else ""
    return f"{said}. Spearman's rank correlation is {correlation:+.2f} (95 % interval: {low:+.2f} to {high:+.2f})."


def _sizes(both: TwoScales) -> str:
    """How far sizes are those of the other scale, and how well they are predicted."""
    (first, second), by_line = both.names, np.array([predicted.value for predicted in both.left_out])
    errors = [np.sqrt(np.mean((both.y - of) ** 2)) for of in (both.x, 0, by_line)]
    from_first, from_zero, from_line = (f"{error:.{both.outcome.digits}f}" for error in errors)
    said = (
        f"Differences at {second} are {from_first} {both.outcome.title} from those at {first}, {from_zero} from zero, "
    )
    said += f"and {from_line} from the line through those of the other rows (root mean square). "
    counts = f"{both.held} of {len(both.pairs)} rows, each left out of its line, are within its 95 % interval"
    if not both.is_predictable:
        return f"{said}Nothing is predicted: only {counts}, and {LEAST_HELD:.0%} must be."
    return f"{said}The interval of a prediction is for one row, and holds how rows scatter about the line: {counts}."


def _left_out(here: Sequence[Contrast], first: str) -> str:
    """Which rows are left out of all but the table."""
    rows = [contrast.row.title for contrast in here if contrast.is_outlier and not contrast.row.is_base]
    why = f"whose seeds spread unlike those of the other rows at {first}, so that the difference there is hardly known"
    return f"All of these numbers leave out {', '.join(rows)}, {why}." if rows else ""
