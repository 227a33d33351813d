"""Figures by matplotlib, readable in print and with a colour vision deficiency. No other module imports matplotlib."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
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
NAME_WIDTH = 28  # characters in a line of a row's name
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1)}  # the axes
matplotlib.use("agg")  # no window, also where Optuna draws
matplotlib.rcParams.update(
    {
        **{"font.size": 9, "svg.fonttype": "none", "pdf.fonttype": 42, "savefig.dpi": 200, "savefig.bbox": "tight"},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8},
        "text.parse_math": False,  # a name with two $ in it is no formula
    }
)


DIFFERS = 1.05  # ratio of the highest cost to the lowest: below it a figure over the cost shows nothing
CURVES = "Mean of the seeds, from the lowest to the highest one. Star and number: the perplexity of the scored weights."
FRONT = "A row, with the 95 % interval of its {}; filled: no row is better at the same cost or less."
DIFFERENCES = "Where an interval crosses zero, the row may be better or worse than base. Filled: p < 0.05."


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


def draw_sweep_plots(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table) -> dict[str, Drawing]:
    """Draw the figures of a sweep, by file name, as far as its results allow. `table` has the rows of the sweep."""
    rows = {one.name: row for one, row in zip(sweep.rows, table.rows, strict=True)}
    column = f"paper/{table.rows[0].results.measure.name}.difference"
    printed = {name: record[column] for name, record in zip(rows, table.records, strict=True)}
    perplexities: dict[str, list[dict[int, float]]] = {name: [] for name in rows}
    for one in planned:
        if one.trial.result():
            perplexities[sweep.rows[one.row].name].append(_perplexities(one.trial))
    drawings = {
        "differences": forest(rows, printed),
        "curves_steps": curves(rows, perplexities, "steps"),
        "curves_flops": curves(rows, perplexities, "training FLOPs"),
        "front_params": front(rows, "params", "parameters"),
        "front_flops": front(rows, "flops", "training FLOPs"),
    }
    return {name: drawing for name, drawing in drawings.items() if drawing}


def _perplexities(trial: Trial) -> dict[int, float]:
    """The perplexity of each validation during the training, by step."""
    lines = [line for line in trial.metrics() if "val/ppl" in line and line_kind(line) != "final"]
    return {line["step"]: line["val/ppl"] for line in lines}


def forest(rows: Mapping[str, TableRow], printed: Mapping[str, float | None]) -> Drawing | None:
    """Forest plot of the differences from base, and of those that the paper prints; None where none is known."""
    known = [
        (break_name(f"{row.label} {name}".strip()), value, row.score.difference.interval(), row.score, printed[name])
        for name, row in rows.items()
        if (value := row.difference()) is not None and row.score and row.score.difference
    ]
    if not known:
        return None
    names, values, intervals, scores, of_paper = zip(*known, strict=True)
    heights = np.array([0.21 + 0.12 * name.count("\n") for name in names])  # inches
    figure = Figure(figsize=(5.5, 0.6 + heights.sum()), layout="constrained")
    axes = figure.subplots()
    centres, measure = heights.cumsum() - heights / 2, next(iter(rows.values())).results.measure.title
    axes.hlines(centres, *zip(*intervals, strict=True), color=COLOURS[1], linewidth=1.2)
    faces = [COLOURS[1] if significance_mark(score) else "white" for score in scores]
    axes.scatter(values, centres, 25, faces, edgecolors=COLOURS[1], zorder=2)
    axes.scatter(np.array(of_paper, float), centres, 25, COLOURS[2], marker="x", zorder=2)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"{measure}, difference from base, 95 % interval (filled: p < 0.05; cross: paper)", fontsize=8)
    axes.set_ylim(heights.sum(), 0)
    axes.set_yticks(centres, names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    return Drawing("Differences from base", figure, DIFFERENCES)


def curves(
    rows: Mapping[str, TableRow], perplexities: Mapping[str, Sequence[Mapping[int, float]]], unit: str
) -> Drawing | None:
    """Learning curves: the mean over seeds; the area between the lowest and the highest seed is shaded.

    perplexities: of every row for each finished seed, by step. unit: of the x axis. The final value is a star. None
    where nothing is known, and of FLOPs where the rows' costs are about equal.
    """
    drawn = [name for name in rows if any(perplexities[name])]
    costs = [rows[name].results.flops or 0.0 for name in drawn]
    if not drawn or (unit != "steps" and max(costs) < DIFFERS * min(costs)):
        return None
    figure, axes = _axes_beside_names(drawn)
    ends, highest = list[tuple[float, float, str, str]](), 0.0
    for name, look in zip(drawn, itertools.cycle(LOOKS), strict=False):
        results, by_seed = rows[name].results, [seed for seed in perplexities[name] if seed]
        of_step = 1.0 if unit == "steps" else results.done[0]["flops"] / results.done[0]["steps"]
        final, end = fmean(results.values("val/ppl")), max(result["steps"] for result in results.done) * of_step
        common = sorted(set.intersection(*map(set, by_seed)))
        x, y = [step * of_step for step in common], np.array([[seed[step] for step in common] for seed in by_seed])
        ends.append((final, end, f"{name}: {final:.2f}", look["color"]))
        every, highest = max(1, len(common) // 8), max(highest, final, *y.mean(0)[len(common) // 5 :])
        axes.plot(x, y.mean(0), markersize=3.5, markevery=every, linewidth=1.2, **look)
        if len(y) > 1:
            axes.fill_between(x, y.min(0), y.max(0), color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(end, final, "*", color=look["color"], markersize=8)
    axes.set(xlabel=unit, ylabel="validation perplexity", yscale="log")
    axes.set_ylim(top=1.05 * highest)  # without the first fifth, beside which the ends would look alike
    plain_log(axes.yaxis)
    _label_ends(axes, ends, figure.get_figheight())
    return Drawing(f"Validation perplexity by {unit}", figure, CURVES)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], inches: float) -> None:
    """A label beside the end of each curve, or where there is room near it, with a line to it.

    ends: y and x of the end, text and colour of each curve. inches: the height of the figure.
    """
    low, high = np.log(axes.get_ylim())
    step = min(1 / len(ends), 0.16 / inches)  # of the height of the axes, for each label
    heights: list[float] = []
    for y, *_ in (ends := sorted(ends)):
        heights.append(max((np.log(y) - low) / (high - low), heights[-1] + step if heights else 0.0))
    for place, (y, x, text, colour) in enumerate(ends):
        height = min(heights[place], 1 - step * (len(ends) - 1 - place))
        look: dict[str, Any] = {"textcoords": "axes fraction", "fontsize": 8, "va": "center", "annotation_clip": False}
        look["arrowprops"] = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "relpos": (0, 0.5)}
        axes.annotate(text, (x, y), (1.06, height), **look)


def front(rows: Mapping[str, TableRow], cost: str, unit: str) -> Drawing | None:
    """The score against a cost; rows of the Pareto front are filled: no other is higher at the same or a lower cost.

    cost: params or flops. None where the rows' costs are about equal.
    """
    points = {
        name: (getattr(row.results, cost), fmean(row.results.scores), row.score.row_mean.interval())
        for name, row in rows.items()
        if row.score
    }
    costs = [cost for cost, _, _ in points.values()]
    if not points or max(costs) < DIFFERS * min(costs):
        return None
    best: list[tuple[float, float]] = []
    for x, y, _ in sorted(points.values(), key=lambda point: (point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    figure, axes = _axes_beside_names([*points])
    axes.step(*zip(*best, strict=True), where="post", color="0.6", linewidth=0.8, zorder=0)
    for (name, (x, y, interval)), look in zip(points.items(), itertools.cycle(LOOKS), strict=False):
        axes.plot([x, x], interval, color=look["color"], linewidth=0.8)
        look = look | {"linestyle": "none", "markerfacecolor": look["color"] if (x, y) in best else "white"}
        axes.plot(x, y, markersize=5, label=break_name(name), **look)
    title = next(iter(rows.values())).results.measure.title
    axes.set(xlabel=unit, ylabel=title, xscale="log")
    plain_log(axes.xaxis, matplotlib.ticker.EngFormatter(sep=""))
    axes.legend(**BESIDE)
    return Drawing(f"{title} against {unit}", figure, FRONT.format(title))


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
    """A name on as many lines as it needs, so that names which differ look different."""
    return textwrap.fill(name, NAME_WIDTH, break_on_hyphens=False) or name


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
