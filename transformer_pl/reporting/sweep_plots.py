"""The figures of a sweep, as far as its results allow them."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.cells import UNCONVERGED
from transformer_pl.reporting.plots import Curve, Drawing, Point
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.rows import ALPHA, RowResults
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.trial import Trial

COSTS = {"params": "parameters", "flops": "training FLOPs"}  # keys of a record
DIFFERS = 1.05  # ratio of the highest cost to the lowest: below it a figure over the cost shows nothing
CURVES = (
    "Perplexity per subword on the validation set during training; lower is better. A line is the mean over a row's "
    "seeds, the area around it reaches from the lowest to the highest seed. The star, and the number beside the name, "
    f"is the final perplexity, of the weights that the table's scores are of. A hollow star and {UNCONVERGED}: the row "
    "had not converged."
)
FRONT = (
    "Each point is a row, with the 95 % interval of its {}. The filled ones, joined by the line, are the Pareto "
    "front: no other row is better at the same or a lower cost."
)
DIFFERENCES = (
    "Each row's {} minus base's. The bar is its 95 % interval: where it crosses zero, the row may be better or worse "
    "than base. A filled circle differs significantly (p < 0.05); a cross is the difference that the paper prints. "
    f"{UNCONVERGED}: the row or base had not converged. Rows without an interval are left out."
)
Figures = dict[str, Drawing]  # by file name


def draw_sweep_plots(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> Figures:
    """Draw the figures of a sweep. `table` has one record for each row of the sweep."""
    return _difference_plot(sweep, table) | _learning_curves(sweep, planned, table) | _cost_plots(sweep, table)


def _difference_plot(sweep: Sweep, table: Table) -> Figures:
    measure, names = table.rows[0].results.measure, [row.name for row in sweep.rows]
    metric = f"{measure.name}.difference"
    differences = _points(names, table, f"val/{metric}", f"val/{metric}")
    if not differences:
        return {}
    marked = {name for name, row in zip(names, table.rows, strict=True) if row.is_provisional}
    printed = {name: record[f"paper/{metric}"] for name, record in zip(names, table.records, strict=True)}
    printed = {name: value for name, value in printed.items() if value is not None}
    forest = plots.forest(differences, printed, measure.title, marked)
    return {"differences": Drawing("Differences from base", forest, DIFFERENCES.format(measure.title))}


def _learning_curves(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> Figures:
    figures: Figures = {}
    for name, unit in (("curves_steps", "steps"), ("curves_flops", "training FLOPs")):
        done = [row for row, of_row in enumerate(table.rows) if of_row.results.done]
        curves = [_curve(sweep, planned, table.rows[row].results, row, unit) for row in done]
        if curves := [curve for curve in curves if any(curve.at) or curve.final is not None]:
            explanation = CURVES + ("" if unit == "steps" else " Rows are compared at equal computation.")
            drawing = plots.curves(curves, unit, "validation perplexity")
            figures[name] = Drawing(f"Validation perplexity by {unit}", drawing, explanation)
    return figures


def _curve(sweep: Sweep, planned: Sequence[PlannedTrial], results: RowResults, row: int, unit: str) -> Curve:
    """The finite validation perplexities of a row's finished trials, by steps or FLOPs, and their final mean."""
    per_step = 1.0 if unit == "steps" else results.done[0]["flops"] / results.done[0]["steps"]
    by_seed = [_validations(one.trial) for one in planned if one.row == row and one.trial.result()]
    by_seed = [lines for lines in by_seed if lines]
    finals = results.values("val/ppl")
    return Curve(
        sweep.rows[row].name,
        [[line["step"] * per_step for line in lines] for lines in by_seed],
        [[line["val/ppl"] for line in lines] for lines in by_seed],
        max(result["steps"] for result in results.done) * per_step,
        statistics.fmean(finals) if all(map(math.isfinite, finals)) else None,
        results.still_falls,
    )


def _validations(trial: Trial) -> list[dict[str, Any]]:
    """The validations during a training that have a finite perplexity."""
    validations = [line for line in trial.metrics() if "val/ppl" in line and line_kind(line) != "final"]
    return [line for line in validations if math.isfinite(line["val/ppl"])]


def _cost_plots(sweep: Sweep, table: Table) -> Figures:
    figures: Figures = {}
    measure, names = table.rows[0].results.measure, [row.name for row in sweep.rows]
    for cost, unit in COSTS.items():
        points = _points(names, table, f"val/{measure.name}", cost)
        costs = [point.cost for point in points]
        if points and max(costs) >= DIFFERS * min(costs):
            drawing = plots.front(points, unit, measure.title)
            figures[f"front_{cost}"] = Drawing(f"{measure.title} against {unit}", drawing, FRONT.format(measure.title))
    return figures


def _points(names: Sequence[str], table: Table, metric: str, cost: str) -> list[Point]:
    """A point for each row that has an interval of this metric. cost: the key of the cost in a record."""
    points, score = [], f"val/{table.rows[0].results.measure.name}"
    for name, record in zip(names, table.records, strict=True):
        low, high, p_value = record[f"{metric}.low"], record[f"{metric}.high"], record[f"{score}.difference.p"]
        if low is not None:
            value = record[metric] if metric in record else record[f"{metric}.mean"]
            points.append(Point(name, value, low, high, record[cost], p_value is not None and p_value < ALPHA))
    return points
