"""What the differences of rows at one scale say of those at a larger one (`--against`)."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_pl.runtime.errors import InputError
from transformer_pl.table import cells
from transformer_pl.table.columns import DAGGER, DIFFERENCE, STAR, column, for_programs
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.notes import FEWEST_ORDERED, name_of_base
from transformer_pl.table.rows import Contrast, Measure
from transformer_pl.table.statistics import Estimate, predict, rank_correlation

LEAST_HELD = 16 / 18  # of the 95 % intervals of rows that are predicted without themselves; else nothing is predicted


class TwoScales(NamedTuple):
    """The rows whose differences from base are known at two scales."""

    names: tuple[str, str]  # of the scales
    measure: Measure
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
    measure, of_others = here[0].measure, there[0].measure
    if measure.key != of_others.key:
        rule = f"must compare rows by the same score, but has {of_others.key} where {names[0]} has {measure.key}"
        raise InputError(f"--against {names[1]}: {rule}; choose another scale")
    by_name = {one.row.name: one for one in there if _is_known(one)}
    pairs = [(one, by_name[one.row.name]) for one in here if _is_fit(one) and one.row.name in by_name]
    x, y = np.array([[one.difference for one in pair] for pair in pairs], float).reshape(-1, 2).T
    if (fewest := min(len(set(x)), len(set(y)))) < FEWEST_ORDERED:
        rule = f"must have {FEWEST_ORDERED} rows that differ from base and from each other at both scales, but has"
        raise InputError(f"--against {names[1]}: {rule} {fewest}; train more rows at {names[0]} and at {names[1]}")
    left_out = [predict(np.delete(x, i), np.delete(y, i), x[i]) for i in range(len(x))]
    held = sum(one.low <= value <= one.high for one, value in zip(left_out, y, strict=True))
    return TwoScales(names, measure, pairs, x, y, left_out, held)


def _is_known(contrast: Contrast) -> bool:
    return contrast.difference is not None and math.isfinite(contrast.difference)


def _is_fit(contrast: Contrast) -> bool:
    return _is_known(contrast) and not contrast.is_outlier


def scales_table(here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str]) -> Table:
    """Each row's difference from base at two scales, and what the first predicts of the second. names: of the scales.

    A row is predicted by the line through all others. Raises an InputError where too few rows are at both scales.
    """
    both, base = at_both(here, there, names), name_of_base([one.row for one in here])
    notes = [_sizes(both), _left_out(here, names[0]), f"{STAR} {DAGGER}"]
    return Table(_columns(here, there, both), [note for note in notes if note], summary=_orders(both, base))


def _columns(here: Sequence[Contrast], there: Sequence[Contrast], both: TwoScales) -> list[Column]:
    """The columns of the differences at both scales, and of what is predicted."""
    measure, rows = both.measure, [one for one in here if not one.row.is_base]
    by_name, predicted = {one.row.name: one for one in there}, dict[str, Estimate]()
    others = [by_name.get(one.row.name, Contrast(one.row, measure)) for one in rows]
    if both.is_predictable:
        predicted = {one.row.name: predict(both.x, both.y, one.difference or 0.0) for one in here if _is_fit(one)}
        predicted |= {one.row.name: value for (one, _), value in zip(both.pairs, both.left_out, strict=True)}
    columns = [
        column(rows, "", "name", "row.name"),
        column(rows, "row", "label", "row.title", lambda one: cells.title(one.row)),
    ]
    for name, of in zip(both.names, (rows, others), strict=True):
        heading, key = f"Δ {measure.title} {name}", f"{name}/{measure.key}.difference"
        columns.append(column(of, heading, key, "difference", _marked, f"{STAR} {DAGGER}", missing=_marked))
        columns += for_programs(of, key, DIFFERENCE)[1:]
    values, form = [predicted.get(one.row.name) for one in rows], f"+z.{measure.digits}f"
    return [
        *columns,
        column(values, f"predicted for {both.names[1]}", "predicted", "value", form),
        column(values, "predicted 95 %", "predicted.low", "low", lambda one: cells.interval(one.interval(), form)),
        column(values, "", "predicted.high", "high"),
    ]


def _marked(contrast: Contrast) -> str:
    return cells.converged(cells.difference(contrast), contrast.row)


def _orders(both: TwoScales, base: str) -> str:
    """How far the order and the directions of rows are those of the other scale. base: its name."""
    (first, second), x, y = both.names, both.x, both.y
    turns = list(itertools.combinations(range(len(x)), 2))
    kept = sum((x[i] - x[j]) * (y[i] - y[j]) > 0 for i, j in turns)
    signs, found = x * y > 0, np.array([one.is_found for one, _ in both.pairs])
    correlation, (low, high) = rank_correlation(x, y)
    said = f"{kept} of {len(turns)} pairs of rows ({kept / len(turns):.0%}) are in the same order at {first} and at "
    said += f"{second}, and {signs.sum()} of {len(x)} differences from {base} have the same sign"
    said += f": {signs[found].sum()} of the {found.sum()} that are significant at {first}" if found.any() else ""
    return f"{said}. Spearman's rank correlation is {correlation:+.2f} (95 % interval: {low:+.2f} to {high:+.2f})."


def _sizes(both: TwoScales) -> str:
    """How far sizes are those of the other scale, and how well they are predicted."""
    (first, second), by_line = both.names, np.array([one.value for one in both.left_out])
    errors = [np.sqrt(np.mean((both.y - of) ** 2)) for of in (both.x, 0, by_line)]
    from_first, from_zero, from_line = (f"{error:.{both.measure.digits}f}" for error in errors)
    said = (
        f"Differences at {second} are {from_first} {both.measure.title} from those at {first}, {from_zero} from zero, "
    )
    said += f"and {from_line} from the line through those of the other rows (root mean square). "
    counts = f"{both.held} of {len(both.pairs)} rows, each left out of its line, are within its 95 % interval"
    if not both.is_predictable:
        return f"{said}Nothing is predicted: only {counts}, and {LEAST_HELD:.0%} must be."
    return f"{said}The interval of a prediction is for one row, and holds how rows scatter about the line: {counts}."


def _left_out(here: Sequence[Contrast], first: str) -> str:
    """Which rows are left out of all but the table."""
    rows = [one.row.title for one in here if one.is_outlier and not one.row.is_base]
    why = f"whose seeds spread unlike those of the other rows at {first}, so that the difference there is hardly known"
    return f"All of these numbers leave out {', '.join(rows)}, {why}." if rows else ""
