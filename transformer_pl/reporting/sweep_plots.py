"""The figures of a sweep, as far as its results allow them."""

import math
import statistics
from collections.abc import Mapping, Sequence

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.cells import significance_mark
from transformer_pl.reporting.plots import Curve, Drawing, Point
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.rows import RowResults, TableRow
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.trial import Trial

COSTS = {"params": "parameters", "flops": "training FLOPs"}  # of RowResults
DIFFERS = 1.05  # ratio of the highest cost to the lowest: below it a figure over the cost shows nothing
CURVES = (
    "Perplexity per subword on the validation set during training; lower is better. A line is the mean over a row's "
    "seeds, the area around it reaches from the lowest to the highest seed. The star, and the number beside the name, "
    "is the final perplexity, of the weights that the table's scores are of."
)
FRONT = (
    "Each point is a row, with the 95 % interval of its {}. The filled ones, joined by the line, are the Pareto "
    "front: no other row is better at the same or a lower cost."
)
DIFFERENCES = (
    "Each row's {} minus base's. The bar is its 95 % interval: where it crosses zero, the row may be better or worse "
    "than base. A filled circle differs significantly (p < 0.05); a cross is the difference that the paper prints. "
    "Rows without an interval are left out."
)
Figures = dict[str, Drawing]  # by file name


def draw_sweep_plots(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> Figures:
    """Draw the figures of a sweep. `table` has one row for each row of the sweep."""
    rows = {one.name: row for one, row in zip(sweep.rows, table.rows, strict=True)}
    trials = {name: [one.trial for one in planned if one.row == place] for place, name in enumerate(rows)}
    return _difference_plot(rows, table) | _learning_curves(rows, trials) | _cost_plots(rows)


def _difference_plot(rows: Mapping[str, TableRow], table: Table) -> Figures:
    measure = table.rows[0].results.measure
    points = [
        Point(name, difference, *row.score.difference.interval(), significant=bool(significance_mark(row.score)))
        for name, row in rows.items()
        if (difference := row.difference()) is not None and row.score and row.score.difference
    ]
    if not points:
        return {}
    printed = {name: one[f"paper/{measure.name}.difference"] for name, one in zip(rows, table.records, strict=True)}
    forest = plots.forest(points, printed, measure.title)
    return {"differences": Drawing("Differences from base", forest, DIFFERENCES.format(measure.title))}


def _learning_curves(rows: Mapping[str, TableRow], trials: Mapping[str, Sequence[Trial]]) -> Figures:
    figures: Figures = {}
    for name, unit in (("curves_steps", "steps"), ("curves_flops", "training FLOPs")):
        curves = [_curve(row, rows[row].results, trials[row], unit) for row in rows if rows[row].results.done]
        if curves := [curve for curve in curves if any(curve.at) or curve.final is not None]:
            explanation = CURVES + ("" if unit == "steps" else " Rows are compared at equal computation.")
            drawing = plots.curves(curves, unit, "validation perplexity")
            figures[name] = Drawing(f"Validation perplexity by {unit}", drawing, explanation)
    return figures


def _curve(name: str, results: RowResults, trials: Sequence[Trial], unit: str) -> Curve:
    """The finite validation perplexities of a row's finished trials, by steps or FLOPs, and their final mean."""
    per_step = 1.0 if unit == "steps" else results.done[0]["flops"] / results.done[0]["steps"]
    of_trials = [trial.metrics() for trial in trials if trial.result()]
    validations = [[line for line in lines if "val/ppl" in line and line_kind(line) != "final"] for lines in of_trials]
    by_seed = [finite for lines in validations if (finite := [one for one in lines if math.isfinite(one["val/ppl"])])]
    finals = results.values("val/ppl")
    return Curve(
        name,
        [[line["step"] * per_step for line in lines] for lines in by_seed],
        [[line["val/ppl"] for line in lines] for lines in by_seed],
        max(result["steps"] for result in results.done) * per_step,
        statistics.fmean(finals) if all(map(math.isfinite, finals)) else None,
    )


def _cost_plots(rows: Mapping[str, TableRow]) -> Figures:
    figures: Figures = {}
    measured = [(name, row.results, row.score.row_mean) for name, row in rows.items() if row.score]
    for cost, unit in COSTS.items():
        points = [
            Point(name, statistics.fmean(results.scores), *score.interval(), cost=getattr(results, cost))
            for name, results, score in measured
        ]
        costs = [point.cost for point in points]
        if points and max(costs) >= DIFFERS * min(costs):
            title = measured[0][1].measure.title
            drawing = plots.front(points, unit, title)
            figures[f"front_{cost}"] = Drawing(f"{title} against {unit}", drawing, FRONT.format(title))
    return figures
