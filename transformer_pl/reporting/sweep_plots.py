"""The figures of a sweep: which ones its results allow, and what stands in them."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from transformer_pl.config import without_section
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.plots import Curve, Figure, Point
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.table import ALPHA
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.trial import Trial

Record = dict[str, Any]  # of a row: what Table.csv tells
COSTS = {"params": "parameters", "flops": "training FLOPs"}


def draw_sweep_plots(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> dict[str, tuple[str, Figure]]:
    """By file name, each with its caption. `table` has a record for each row of the sweep."""
    found: dict[str, tuple[str, Figure]] = {}
    first: dict[int, Record] = {}  # what a row's first finished seed came to
    for one in planned:
        if result := one.trial.result():
            first.setdefault(one.row, result)

    if differences := _points(sweep, table, "val/bleu.difference", lambda i: 0.0):
        paper = {
            row.name: record["paper/bleu.difference"] for row, record in zip(sweep.rows, table.records, strict=True)
        }
        known = {name: value for name, value in paper.items() if value is not None}
        found["differences"] = ("Differences to base", plots.forest(differences, known))
    for stem, unit, per_step in (
        ("curves_steps", "steps", lambda result: 1.0),
        ("curves_flops", "training FLOPs", lambda result: result["flops"] / result["steps"]),
    ):
        curves = [_curve(sweep, planned, i, per_step(first[i])) for i in sorted(first)]
        if curves := [curve for curve in curves if curve.at]:
            found[stem] = (f"Validation perplexity by {unit}", plots.curves(curves, unit, "val/ppl"))
    for cost, unit in COSTS.items():
        points = _points(sweep, table, "val/bleu", lambda i, cost=cost: first[i][cost])
        if len({point.cost for point in points}) > 1:
            found[f"front_{cost}"] = (f"BLEU against {unit}", plots.front(points, unit))
    if key := _one_number(sweep, table.records):
        points = _points(sweep, table, "val/bleu", lambda i: table.records[i][key])
        if len(points) > 2:
            found["grid"] = (f"BLEU over {key}", plots.grid(points, without_section(key)))
    return found


def _points(sweep: Sweep, table: Table, metric: str, cost: Callable[[int], float]) -> list[Point]:
    """Of the rows that have an interval."""
    points = []
    for i, (row, record) in enumerate(zip(sweep.rows, table.records, strict=True)):
        low, high, p = record[f"{metric}.low"], record[f"{metric}.high"], record["val/bleu.difference.p"]
        if low is not None:
            value = record[metric] if metric in record else record[f"{metric}.mean"]
            points.append(Point(row.name, value, low, high, cost(i), p is not None and p < ALPHA))
    return points


def _curve(sweep: Sweep, planned: Sequence[PlannedTrial], row: int, per_step: float) -> Curve:
    """Of the trials that are finished, for the others may end anywhere; without perplexities that are infinite."""
    trials = [one.trial for one in planned if one.row == row and one.trial.result() and _has_curve(one.trial)]
    validated = [
        [
            line
            for line in t.metrics()
            if "val/ppl" in line and line_kind(line) != "final" and math.isfinite(line["val/ppl"])
        ]
        for t in trials
    ]
    at = [[line["step"] * per_step for line in lines] for lines in validated if lines]
    return Curve(sweep.rows[row].name, at, [[line["val/ppl"] for line in lines] for lines in validated if lines])


def _has_curve(trial: Trial) -> bool:
    """Whether its metrics are as they were logged; a warning names damaged ones."""
    try:
        trial.intact("metrics.jsonl")
    except InputError as error:
        warn(str(error))
        return False
    return True


def _one_number(sweep: Sweep, records: Sequence[Record]) -> str | None:
    """The key of the one number in which all rows differ, if there is one; d_k and d_v may follow from it."""
    keys = [key for key in records[0] if key.partition(".")[0] in ("model", "optim", "data", "decode")]
    models = [row.configs[0].model for row in sweep.rows]
    if all(model.d_k is None and model.d_v is None for model in models):
        keys = [key for key in keys if key not in ("model.d_k", "model.d_v")]
    numbers = all(isinstance(record[key], Real) for record in records for key in keys)
    return keys[0] if len(keys) == 1 and numbers else None
