"""Figures by matplotlib, readable in print and with a colour vision deficiency. No other module imports matplotlib."""

import itertools
import math
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib import pyplot as pyplot  # for Optuna's figures
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_pl.plan.plan import PlannedTrial
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.cells import significance_mark
from transformer_pl.report.render import Table
from transformer_pl.report.rows import TableRow
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.trial import Trial

# The colours of Okabe and Ito, which most people with a colour vision deficiency can tell apart. In grey, markers and
# line styles tell curves apart. Colours and markers change first from row to row, then the style of lines.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LOOKS: list[dict[str, Any]] = [
    {"color": colour, "marker": marker, "linestyle": line}
    for line in ("-", "--", ":", "-.")
    for colour, marker in zip(COLOURS, "osD^vPX", strict=True)
]
NAME_WIDTH = 24  # characters in a line of a row's name
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1)}  # the axes
matplotlib.use("agg")  # no window, also where Optuna draws
matplotlib.rcParams.update(
    {
        **{"font.size": 9, "svg.fonttype": "none", "pdf.fonttype": 42, "savefig.dpi": 200, "savefig.bbox": "tight"},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8},
        "text.parse_math": False,  # a name with two $ in it is no formula
    }
)


class Point(NamedTuple):
    """A row's value with its interval, and its cost."""

    name: str
    value: float
    low: float
    high: float
    cost: float = math.nan
    significant: bool = False  # whether it differs significantly from base
    printed: float | None = None  # what the paper prints


class Curve(NamedTuple):
    """Measurements of a row during training, and the final one."""

    name: str
    by_seed: Sequence[Mapping[float, float]]  # the measurements, by steps or FLOPs
    end: float  # steps or FLOPs of the whole training
    final: float  # the mean of the seeds' final values


class Drawing(NamedTuple):
    """A figure, and what a reader must know to understand it."""

    title: str
    figure: Figure
    explanation: str  # sentences


def save(figure: Figure, path: Path) -> Path:
    """Save a figure as svg, pdf and png beside each other; return the path of the svg."""
    for kind in (".pdf", ".png", ".svg"):
        figure.savefig(path.with_suffix(kind))
    return path.with_suffix(".svg")


def forest(rows: Sequence[Point], measure: str) -> Figure:
    """Forest plot: differences from base with intervals, filled circles where significant; crosses: the paper's."""
    names = [break_name(row.name) for row in rows]
    heights = np.array([0.28 + 0.14 * name.count("\n") for name in names])  # inches
    figure = Figure(figsize=(5, 0.9 + heights.sum()), layout="constrained")
    axes = figure.subplots()
    centres = heights.cumsum() - heights / 2
    for y, row in zip(centres, rows, strict=True):
        face = COLOURS[1] if row.significant else "white"
        axes.plot([row.low, row.high], [y, y], color=COLOURS[1], linewidth=1.2)
        axes.plot(row.value, y, "o", color=COLOURS[1], markerfacecolor=face, markersize=5)
        if row.printed is not None:
            axes.plot(row.printed, y, "x", color=COLOURS[2], markersize=5)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"{measure}, difference from base (95 %; filled: significant; cross: the paper's)")
    axes.set_ylim(heights.sum(), 0)
    axes.set_yticks(centres, names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    return figure


def curves(rows: Sequence[Curve], unit: str, measure: str) -> Figure:
    """Learning curves: the mean over seeds; the area between the lowest and the highest seed is shaded.

    unit: of the x axis, steps or FLOPs. The final value is a star.
    """
    figure, axes = _axes_beside_names([row.name for row in rows])
    for row, look in zip(rows, itertools.cycle(LOOKS), strict=False):
        label, colour = f"{break_name(row.name)}: {row.final:.2f}", look["color"]
        common = sorted(set.intersection(*map(set, row.by_seed)))
        values = np.array([[seed[x] for x in common] for seed in row.by_seed])  # (S, measurements)
        every = max(1, len(common) // 8)
        axes.plot(common, values.mean(0), label=label, markersize=3.5, markevery=every, linewidth=1.2, **look)
        axes.fill_between(common, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(row.end, row.final, "*", color=colour, markersize=8)
    axes.set(xlabel=unit, ylabel=measure, yscale="log")
    plain_log(axes.yaxis)
    axes.legend(**BESIDE)
    return figure


def front(rows: Sequence[Point], unit: str, measure: str) -> Figure:
    """A measure against a cost; rows of the Pareto front are filled: no other is higher at the same or a lower cost."""
    best: list[Point] = []
    for row in sorted(rows, key=lambda row: (row.cost, -row.value)):
        if not best or row.value > best[-1].value:
            best.append(row)
    figure, axes = _axes_beside_names([row.name for row in rows])
    axes.step([p.cost for p in best], [p.value for p in best], where="post", color="0.6", linewidth=0.8, zorder=0)
    for row, look in zip(rows, itertools.cycle(LOOKS), strict=False):
        axes.plot([row.cost] * 2, [row.low, row.high], color=look["color"], linewidth=0.8)
        face, label = look["color"] if row in best else "white", break_name(row.name)
        look = look | {"linestyle": "none", "markerfacecolor": face}
        axes.plot(row.cost, row.value, markersize=5, label=label, **look)
    axes.set(xlabel=unit, ylabel=measure, xscale="log")
    plain_log(axes.xaxis, matplotlib.ticker.EngFormatter(sep=""))
    axes.legend(**BESIDE)
    return figure


def growth(times: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time over sequence length n on logarithmic axes, with guides that grow as n and n².

    times: seconds by layer and n.
    """
    points = [(n, 1e3 * seconds) for by_length in times.values() for n, seconds in by_length.items()]
    lengths, slowest = sorted({n for n, _ in points}), max(ms for _, ms in points)
    figure, axes = _axes_beside_names([*times])
    for (name, seconds), look in zip(times.items(), itertools.cycle(LOOKS), strict=False):
        axes.plot(list(seconds), [1e3 * t for t in seconds.values()], markersize=4, label=break_name(name), **look)
    for power, label, line in ((1, "n", "--"), (2, "n²", ":")):
        guide = [slowest * (n / lengths[-1]) ** power for n in lengths]
        axes.plot(lengths, guide, color="0.6", linestyle=line, linewidth=0.8, zorder=0, label=label)
    axes.set(xlabel="length n", ylabel="ms, forward and backward", xscale="log", yscale="log")
    axes.set_ylim(min(ms for _, ms in points) / 2, slowest * 2)
    axes.set_xticks(lengths, [str(n) for n in lengths])
    plain_log(axes.yaxis)
    axes.minorticks_off()
    axes.legend(**BESIDE)
    return figure


def break_name(name: str) -> str:
    """A name on as many lines as it needs, so that names which differ look different: broken at blanks, then `=`."""
    breakable = re.sub(r"(?<==)(?=\S{12})", " ", name) if len(name) > NAME_WIDTH else name
    return "\n".join(textwrap.wrap(breakable, NAME_WIDTH, break_on_hyphens=False)) or name


def _axes_beside_names(names: Sequence[str]) -> tuple[Figure, Axes]:
    """Axes that are high enough for a column of these names beside them."""
    lines = sum(1 + break_name(name).count("\n") for name in names)
    height = max(3.6, 0.6 + 0.15 * lines + 0.05 * len(names))  # inches
    figure = Figure(figsize=(7, height), layout="constrained")
    return figure, figure.subplots()


def plain_log(axis: Any, form: Any = "{x:g}") -> None:
    """Label a logarithmic axis with 1, 2, 5, 10, ... rather than powers of ten."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


# ---------------------------------------------------------------------------------------------------------------------
# The figures of a sweep

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


def draw_sweep_plots(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> dict[str, Drawing]:
    """Draw the figures of a sweep, by file name, as far as its results allow. `table` has the rows of the sweep."""
    rows = {one.name: row for one, row in zip(sweep.rows, table.rows, strict=True)}
    trials = [[one.trial for one in planned if one.row == place] for place in range(len(rows))]
    drawings = {
        "differences": _difference_plot(rows, table.records),
        "curves_steps": _learning_curves(rows, trials, "steps"),
        "curves_flops": _learning_curves(rows, trials, "training FLOPs"),
        "front_params": _cost_plot(rows, "params", "parameters"),
        "front_flops": _cost_plot(rows, "flops", "training FLOPs"),
    }
    return {name: drawing for name, drawing in drawings.items() if drawing}


def _difference_plot(rows: Mapping[str, TableRow], records: Sequence[Mapping[str, Any]]) -> Drawing | None:
    points, measure = [], next(iter(rows.values())).results.measure
    for (name, row), record in zip(rows.items(), records, strict=True):
        difference = row.difference()
        if difference is not None and row.score and row.score.difference:
            significant, printed = bool(significance_mark(row.score)), record[f"paper/{measure.name}.difference"]
            points.append(Point(name, difference, *row.score.difference.interval(), math.nan, significant, printed))
    explanation = DIFFERENCES.format(measure.title)
    return Drawing("Differences from base", forest(points, measure.title), explanation) if points else None


def _learning_curves(rows: Mapping[str, TableRow], trials: Sequence[Sequence[Trial]], unit: str) -> Drawing | None:
    of_rows = []
    for (name, row), of_row in zip(rows.items(), trials, strict=True):
        by_step = [_perplexities(trial) for trial in of_row if trial.result()]
        if any(by_step):
            of_step = 1.0 if unit == "steps" else row.results.done[0]["flops"] / row.results.done[0]["steps"]
            by_seed = [{step * of_step: value for step, value in seed.items()} for seed in by_step if seed]
            end = max(result["steps"] for result in row.results.done) * of_step
            of_rows.append(Curve(name, by_seed, end, statistics.fmean(row.results.values("val/ppl"))))
    explanation = CURVES + ("" if unit == "steps" else " Rows are compared at equal computation.")
    title = f"Validation perplexity by {unit}"
    return Drawing(title, curves(of_rows, unit, "validation perplexity"), explanation) if of_rows else None


def _perplexities(trial: Trial) -> dict[int, float]:
    """The perplexity of each validation during the training, by step."""
    lines = [line for line in trial.metrics() if "val/ppl" in line and line_kind(line) != "final"]
    return {line["step"]: line["val/ppl"] for line in lines}


def _cost_plot(rows: Mapping[str, TableRow], cost: str, unit: str) -> Drawing | None:
    points, title = [], next(iter(rows.values())).results.measure.title
    for name, row in rows.items():
        if row.score:
            interval, results = row.score.row_mean.interval(), row.results
            points.append(Point(name, statistics.fmean(results.scores), *interval, getattr(results, cost)))
    costs = [point.cost for point in points]
    if not points or max(costs) < DIFFERS * min(costs):
        return None
    return Drawing(f"{title} against {unit}", front(points, unit, title), FRONT.format(title))
