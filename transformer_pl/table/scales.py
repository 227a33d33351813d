"""What the differences of rows at one scale say of those at a larger one (`--against`)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from transformer_pl.runtime.errors import InputError
from transformer_pl.table import cells
from transformer_pl.table.columns import DAGGER, STAR, column
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.notes import FEWEST_ORDERED
from transformer_pl.table.rows import Contrast, Measure
from transformer_pl.table.statistics import Estimate, predict, rank_correlation

LEAST_HELD = 16 / 18  # of the 95 % intervals of rows that are predicted without themselves; else nothing is predicted


def at_both(here: Sequence[Contrast], there: Sequence[Contrast]) -> list[tuple[Contrast, Contrast]]:
    """The rows whose differences from base are known at both scales.

    A row whose seeds spread unlike those of the others here is left out: its difference is hardly known.
    """
    by_name = {one.row.name: one for one in there if _is_known(one)}
    return [(one, by_name[one.row.name]) for one in here if _is_fit(one) and one.row.name in by_name]


def left_one_out(x: np.ndarray, y: np.ndarray) -> tuple[list[Estimate], int]:
    """The y of each point by the line through the others, and how many lie within its 95 % interval."""
    each = [predict(np.delete(x, i), np.delete(y, i), x[i]) for i in range(len(x))]
    return each, sum(one.low <= value <= one.high for one, value in zip(each, y, strict=True))


def is_predictable(held: int, rows: int) -> bool:
    """Whether so many of the intervals of left-out rows hold that other rows may be predicted."""
    return held >= LEAST_HELD * rows


def _is_known(contrast: Contrast) -> bool:
    return contrast.difference is not None and math.isfinite(contrast.difference)


def _is_fit(contrast: Contrast) -> bool:
    return _is_known(contrast) and not contrast.is_outlier


def scales_table(here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str]) -> Table:
    """Each row's difference from base at two scales, and what the first predicts of the second. names: of the scales.

    A row is predicted by the line through all others. Raises an InputError where too few rows are at both scales.
    """
    measure, of_others = here[0].measure, there[0].measure
    if measure.key != of_others.key:
        rule = f"must compare rows by the same score, but has {of_others.key} where {names[0]} has {measure.key}"
        raise InputError(f"--against {names[1]}: {rule}; choose another scale")
    pairs = at_both(here, there)
    points = np.array([[one.difference for one in pair] for pair in pairs], float).reshape(-1, 2)
    if (fewest := min(len(set(values)) for values in points.T)) < FEWEST_ORDERED:
        rule = f"must have {FEWEST_ORDERED} rows that differ from base and from each other at both scales, but has"
        raise InputError(f"--against {names[1]}: {rule} {fewest}; train more rows at {names[0]} and at {names[1]}")
    x, y = points.T
    each, held = left_one_out(x, y)
    predicted: dict[str, Estimate] = {}
    if is_predictable(held, len(pairs)):
        predicted = {one.row.name: predict(x, y, one.difference or 0.0) for one in here if _is_fit(one)}
        predicted |= {one.row.name: value for (one, _), value in zip(pairs, each, strict=True)}
    notes = [_sizes(x, y, each, held, measure, names), _left_out(here, names[0]), f"{STAR} {DAGGER}"]
    columns = _columns(here, there, names, predicted)
    return Table(columns, [note for note in notes if note], summary=_orders(pairs, x, y, names))


def _columns(
    here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str], predicted: Mapping[str, Estimate]
) -> list[Column]:
    """The columns of the differences at both scales, and of what is predicted. predicted: by the name of the row."""
    measure, rows = here[0].measure, [one for one in here if not one.row.is_base]
    by_name = {one.row.name: one for one in there}
    others = [by_name.get(one.row.name, Contrast(one.row, measure)) for one in rows]
    columns = [
        column(rows, "", "name", "row.name"),
        column(rows, "row", "label", "row.title", lambda one: cells.title(one.row)),
    ]
    for name, of in zip(names, (rows, others), strict=True):
        heading, key, meaning = f"Δ {measure.title} {name}", f"{name}/{measure.key}.difference", f"{STAR} {DAGGER}"
        columns.append(column(of, heading, key, "difference", _marked, meaning))
        columns += [column(of, "", f"{key}.{end}", f"estimate.{end}") for end in ("low", "high")]
        columns.append(column(of, "", f"{key}.p", "p_value"))
    values, form = [predicted.get(one.row.name) for one in rows], f"+z.{measure.digits}f"
    columns.append(column(values, f"predicted for {names[1]}", "predicted", "value", form))
    columns.append(column(values, "predicted 95 %", "predicted.low", "low", partial(_interval, form)))
    columns.append(column(values, "", "predicted.high", "high"))
    return columns


def _marked(contrast: Contrast) -> str:
    return cells.converged(cells.difference(contrast), contrast.row)


def _interval(form: str, estimate: Estimate | None) -> str:
    return " to ".join(cells.number(end, form) for end in estimate.interval()) if estimate else ""


def _orders(pairs: Sequence[tuple[Contrast, Contrast]], x: np.ndarray, y: np.ndarray, names: tuple[str, str]) -> str:
    """How far the order and the directions of rows are those of the other scale."""
    (first, second), turns = names, list(itertools.combinations(range(len(x)), 2))
    kept = sum((x[i] - x[j]) * (y[i] - y[j]) > 0 for i, j in turns)
    signs, found = x * y > 0, np.array([one.is_found for one, _ in pairs])
    correlation, (low, high) = rank_correlation(x, y)
    said = f"{kept} of {len(turns)} pairs of rows ({kept / len(turns):.0%}) are in the same order at {first} and at "
    said += f"{second}, and {signs.sum()} of {len(x)} differences from base have the same sign"
    said += f": {signs[found].sum()} of the {found.sum()} that are significant at {first}" if found.any() else ""
    return f"{said}. Spearman's rank correlation is {correlation:+.2f} (95 % interval: {low:+.2f} to {high:+.2f})."


def _sizes(
    x: np.ndarray, y: np.ndarray, each: Sequence[Estimate], held: int, measure: Measure, names: tuple[str, str]
) -> str:
    """How far sizes are those of the other scale, and how well they are predicted."""
    (first, second), by_line = names, np.array([one.value for one in each])
    errors = [f"{np.sqrt(np.mean((y - of) ** 2)):.{measure.digits}f}" for of in (x, 0, by_line)]
    said = f"Differences at {second} are {errors[0]} {measure.title} from those at {first}, {errors[1]} from zero, and "
    said += f"{errors[2]} from the line through those of the other rows (root mean square). "
    counts = f"{held} of {len(x)} rows, each left out of its line, are within its 95 % interval"
    if not is_predictable(held, len(x)):
        return f"{said}Nothing is predicted: only {counts}, and {LEAST_HELD:.0%} must be."
    return f"{said}The interval of a prediction is for one row, and holds how rows scatter about the line: {counts}."


def _left_out(here: Sequence[Contrast], first: str) -> str:
    """Which rows are left out of all but the table."""
    rows = [one.row.title for one in here if one.is_outlier and not one.row.is_base]
    why = f"whose seeds spread unlike those of the other rows at {first}, so that the difference there is hardly known"
    return f"All of these numbers leave out {', '.join(rows)}, {why}." if rows else ""
