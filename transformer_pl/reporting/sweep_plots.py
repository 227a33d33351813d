"""The figures of a sweep, as far as its results allow them."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from transformer_pl.config import without_section
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.plots import Curve, Figure, Point
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.rows import ALPHA
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.trial import Trial

COSTS = {"params": "parameters", "flops": "training FLOPs"}  # keys of result.json
Figures = dict[str, tuple[str, Figure]]  # by file name, each with its caption


def draw_sweep_plots(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> Figures:
    """Draw the figures of a sweep. `table` has one record for each row of the sweep."""
    first_results: dict[int, dict[str, Any]] = {}  # of each row, of its first finished seed
    for one in planned:
        if result := one.trial.result():
            first_results.setdefault(one.row, result)
    return (
        _difference_plot(sweep, table)
        | _learning_curves(sweep, planned, first_results)
        | _cost_plots(sweep, table, first_results)
        | _grid_plot(sweep, table)
    )


def _difference_plot(sweep: Sweep, table: Table) -> Figures:
    differences = _points(sweep, table, "val/bleu.difference", lambda row: 0.0)
    if not differences:
        return {}
    published = {
        row.name: record["paper/bleu.difference"]
        for row, record in zip(sweep.rows, table.records, strict=True)
        if record["paper/bleu.difference"] is not None
    }
    return {"differences": ("Differences to base", plots.forest(differences, published))}


def _learning_curves(
    sweep: Sweep, planned: Sequence[PlannedTrial], first_results: Mapping[int, Mapping[str, Any]]
) -> Figures:
    figures: Figures = {}
    for name, unit in (("curves_steps", "steps"), ("curves_flops", "training FLOPs")):
        curves = []
        for row, result in sorted(first_results.items()):
            cost_per_step = 1.0 if unit == "steps" else result["flops"] / result["steps"]
            curves.append(_curve(sweep, planned, row, cost_per_step))
        if curves := [curve for curve in curves if curve.at]:
            figures[name] = (f"Validation perplexity by {unit}", plots.curves(curves, unit, "val/ppl"))
    return figures


def _cost_plots(sweep: Sweep, table: Table, first_results: Mapping[int, Mapping[str, Any]]) -> Figures:
    figures: Figures = {}
    for cost, unit in COSTS.items():
        costs = {row: result[cost] for row, result in first_results.items()}
        points = _points(sweep, table, "val/bleu", costs.__getitem__)
        if len({point.cost for point in points}) > 1:
            figures[f"front_{cost}"] = (f"BLEU against {unit}", plots.front(points, unit))
    return figures


def _grid_plot(sweep: Sweep, table: Table) -> Figures:
    """BLEU over the one number in which the rows differ."""
    key = _only_varied_number(sweep, table.records)
    if key is None:
        return {}
    points = _points(sweep, table, "val/bleu", lambda row: table.records[row][key])
    if len(points) < 3:
        return {}
    return {"grid": (f"BLEU over {key}", plots.grid(points, without_section(key)))}


def _points(sweep: Sweep, table: Table, metric: str, cost: Callable[[int], float]) -> list[Point]:
    """A point for each row that has an interval of this metric. `cost` takes the row's index."""
    points = []
    for i, (row, record) in enumerate(zip(sweep.rows, table.records, strict=True)):
        low, high, p_value = record[f"{metric}.low"], record[f"{metric}.high"], record["val/bleu.difference.p"]
        if low is not None:
            value = record[metric] if metric in record else record[f"{metric}.mean"]
            points.append(Point(row.name, value, low, high, cost(i), p_value is not None and p_value < ALPHA))
    return points


def _curve(sweep: Sweep, planned: Sequence[PlannedTrial], row: int, cost_per_step: float) -> Curve:
    """The finite validation perplexities of a row's finished trials, by their cost."""
    trials = [one.trial for one in planned if one.row == row and one.trial.result() and _has_intact_metrics(one.trial)]
    by_seed = [
        [
            line
            for line in trial.metrics()
            if "val/ppl" in line and line_kind(line) != "final" and math.isfinite(line["val/ppl"])
        ]
        for trial in trials
    ]
    by_seed = [lines for lines in by_seed if lines]
    costs = [[line["step"] * cost_per_step for line in lines] for lines in by_seed]
    return Curve(sweep.rows[row].name, costs, [[line["val/ppl"] for line in lines] for lines in by_seed])


def _has_intact_metrics(trial: Trial) -> bool:
    """Whether metrics.jsonl is as it was written; warns where it is damaged."""
    try:
        trial.intact("metrics.jsonl")
    except InputError as error:
        warn(str(error))
        return False
    return True


def _only_varied_number(sweep: Sweep, records: Sequence[Mapping[str, Any]]) -> str | None:
    """The key in which the rows differ, if it is one only and numeric. d_k and d_v do not count where they follow from
    h and d_model."""
    keys = [key for key in records[0] if key.partition(".")[0] in ("model", "optim", "data", "decode")]
    models = [row.configs[0].model for row in sweep.rows]
    if all(model.d_k is None and model.d_v is None for model in models):
        keys = [key for key in keys if key not in ("model.d_k", "model.d_v")]
    are_numbers = all(isinstance(record[key], Real) for record in records for key in keys)
    return keys[0] if len(keys) == 1 and are_numbers else None
