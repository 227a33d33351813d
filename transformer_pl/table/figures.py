"""Figures by matplotlib, readable in print and with a colour vision deficiency. No other module imports matplotlib."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib import pyplot as pyplot  # for Optuna's figures
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from transformer_pl.table.formats import Table
from transformer_pl.table.rows import Contrast, PrintedTable
from transformer_pl.table.scales import at_both
from transformer_pl.table.statistics import predict

# The colours of Okabe and Ito, which most people with a colour vision deficiency can tell apart. In grey, markers and
# line styles tell curves apart. Colours and markers change first from row to row, then the style of lines.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LOOKS = cycler(linestyle=["-", "--", ":", "-."]) * (cycler(color=COLOURS) + cycler(marker=list("osD^vPX")))
BESIDE_INTERVAL = 0.06  # inches from an interval to the dots of its seeds, below it
NAME_WIDTH = 34  # characters in a line of a row's name
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1)}  # where the legend is: beside the axes
matplotlib.use("agg")  # open no window, not even where Optuna draws
matplotlib.rcParams.update(
    {
        **{"font.size": 9, "svg.fonttype": "none", "pdf.fonttype": 42, "savefig.dpi": 200, "savefig.bbox": "tight"},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8},
        "text.parse_math": False,  # a name with two $ in it is no formula
        "svg.hashsalt": "transformer_pl",  # else the ids in a picture are drawn anew each time
    }
)


DIFFERS = 1.05  # ratio of the highest cost to the lowest: below it a figure over the cost shows nothing
HIGHEST_LOSS = 50.0  # nats per token, above any that a model has; axes overflow at much higher ones
CURVES = (
    "Line: mean over seeds; band: lowest to highest. Star and number: the perplexity of the scored weights. A curve "
    "that crosses the dotted line has reached base's lowest loss."
)
FRONT = "A row, with the 95 % interval of its {}; filled: no row is better at the same cost or less."
SCALES = (
    "Filled: p < 0.05 at the first scale. Line and band, if there are some: the prediction for one more row, with its "
    "95 % interval."
)
DIFFERENCES = (
    "Where an interval crosses zero, the row may be better or worse than base. A dot below it is one seed, as its "
    "difference from base's mean. An arrow ends an interval that reaches beyond the picture."
)


class Drawing(NamedTuple):
    """A figure, and what a reader must know to understand it."""

    title: str
    figure: Figure
    explanation: str  # sentences


def save(figure: Figure, path: Path) -> Path:
    """Save a figure as svg, pdf and png beside each other, the same each time; return the path of the svg."""
    for kind, undated in ((".pdf", {"CreationDate": None}), (".png", None), (".svg", {"Date": None})):
        figure.savefig(path.with_suffix(kind), metadata=undated)
    return path.with_suffix(".svg")


def draw_sweep_plots(table: Table) -> dict[str, Drawing]:
    """Draw the figures of a sweep, by file name, as far as its results allow."""
    contrasts = table.contrasts
    drawings = {
        "differences": forest(contrasts, table.printed),
        "curves_steps": curves(contrasts),
        "front_params": front(contrasts, "params", "parameters"),
        "front_flops": front(contrasts, "flops", "training FLOPs"),
    }
    return {name: drawing for name, drawing in drawings.items() if drawing}


def forest(contrasts: Sequence[Contrast], printed: PrintedTable | None = None) -> Drawing | None:
    """Forest plot of the differences from base, and of those that the paper prints; None where none is known."""
    known = [(one, one.estimate.interval()) for one in contrasts if one.estimate]
    if not known:
        return None
    shown, intervals = zip(*known, strict=True)
    names, seeds = [break_name(one.row.title) for one in shown], [_dots(one) for one in shown]
    of_paper = np.array([printed and printed.difference(one.row.printed) for one in shown], float)
    heights = np.array([0.21 + 0.12 * name.count("\n") for name in names])  # inches
    figure = Figure(figsize=(5.5, 0.6 + heights.sum()), layout="constrained")
    axes, centres, dots = figure.subplots(), heights.cumsum() - heights / 2, np.concatenate(seeds)
    axes.hlines(centres, *zip(*intervals, strict=True), color=COLOURS[1], linewidth=1.2)
    faces = np.where([one.is_found for one in shown], COLOURS[1], "white")
    axes.scatter([one.difference for one in shown], centres, 25, faces, edgecolors=COLOURS[1], zorder=2)
    axes.scatter(dots, np.repeat(centres + BESIDE_INTERVAL, [*map(len, seeds)]), 4, COLOURS[1], linewidths=0)
    axes.scatter(of_paper, centres, 25, COLOURS[2], marker="x", zorder=2)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    if len(usual := [ends for one, ends in known if not one.is_outlier]) < len(known):
        _show_usual(axes, np.array(intervals), centres, [*np.ravel(usual), *dots, *of_paper])
    has_paper = bool(np.isfinite(of_paper).any())
    marks = f"filled: p < 0.05{'; dot: a seed' * bool(dots.size)}{'; cross: paper' * has_paper}"
    base = next((one.row.title for one in contrasts if one.row.is_base), "base").removesuffix(" (reference)")
    title = contrasts[0].measure.title
    axes.set_xlabel(f"{title}, difference from {base}, 95 % interval ({marks})", fontsize=8)
    axes.set_ylim(heights.sum(), 0)
    axes.set_yticks(centres, names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    return Drawing("Differences from base", figure, DIFFERENCES)


def _dots(contrast: Contrast) -> np.ndarray:
    """The seeds of a row, as differences from base's mean; none where it is made of a mean, or compared in pairs."""
    sample = contrast.row.samples.get(contrast.measure.key)
    if contrast.shares_weights or (sample and not sample.has_seeds):
        return np.zeros(0)
    return (contrast.difference or 0.0) - fmean(contrast.scores) + np.array(contrast.scores)


def _show_usual(axes: Axes, intervals: np.ndarray, centres: np.ndarray, values: Sequence[float]) -> None:
    """Show these values, and arrows where an interval reaches beyond them; one row with a wide interval would make all
    others small. intervals: (rows, 2); centres: their heights; values: those that are not known are NaN."""
    low, high = np.nanmin(values), np.nanmax(values)
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    (starts, ends), (low, high) = intervals.T, axes.get_xlim()
    for place, marker, is_cut in ((low, "<", starts < low), (high, ">", ends > high)):
        axes.scatter(np.full(is_cut.sum(), place), centres[is_cut], 25, COLOURS[1], marker=marker, clip_on=False)


def curves(contrasts: Sequence[Contrast]) -> Drawing | None:
    """Learning curves: the mean over seeds; the area between the lowest and the highest seed is shaded.

    A row whose seeds share no step is left out. The final value is a star. A line shows base's lowest value: where a
    curve crosses it, the row has reached base's loss. None where nothing is known.
    """
    known = [(one.row, [seed for seed in one.row.losses if seed]) for one in contrasts]
    drawn = [(row, by_seed) for row, by_seed in known if by_seed and set.intersection(*map(set, by_seed))]
    if not drawn:
        return None
    figure, axes = _axes_beside_names([row.shown_name for row, _ in drawn])
    highest, start = 0.0, math.inf
    for (row, by_seed), look in zip(drawn, LOOKS(), strict=False):
        final, end = min(fmean(row.values["val/ppl"]), math.exp(HIGHEST_LOSS)), max(row.scored_steps)
        common = sorted(set.intersection(*map(set, by_seed)))
        y = np.exp([[min(seed[step], HIGHEST_LOSS) for step in common] for seed in by_seed])
        fifth = len(common) // 5  # left out: beside its high values the ends would look alike
        highest, start = max(highest, final, *y.mean(0)[fifth:]), min(start, common[fifth])
        label = break_name(f"{row.shown_name}: {final:.2f}")
        axes.plot(
            common, y.mean(0), markersize=3.5, markevery=max(1, len(common) // 8), linewidth=1.2, label=label, **look
        )
        if row.is_base:
            axes.axhline(y.mean(0).min(), color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        if len(y) > 1:
            axes.fill_between(common, y.min(0), y.max(0), color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(end, final, "*", color=look["color"], markersize=8)
    axes.set(xlabel="steps", ylabel="validation perplexity", yscale="log")
    axes.set_ylim(top=1.05 * highest)
    axes.set_xlim(left=start)
    plain_log(axes.yaxis)
    axes.legend(**BESIDE)
    return Drawing("Validation perplexity by steps", figure, CURVES)


def front(contrasts: Sequence[Contrast], cost: str, unit: str) -> Drawing | None:
    """The score against a cost; rows of the Pareto front are filled: no other is better at the same or a lower cost.

    cost: params or flops. None where the rows' costs are about equal.
    """
    points = {
        one.row.shown_name: (getattr(one.row, cost), fmean(one.scores), one.mean.interval())
        for one in contrasts
        if one.mean
    }
    costs = [cost for cost, _, _ in points.values()]
    if not points or max(costs) < DIFFERS * min(costs):
        return None
    best: list[tuple[float, float]] = []
    sign = -1 if contrasts[0].measure.lower_is_better else 1
    for x, y, _ in sorted(points.values(), key=lambda point: (point[0], -sign * point[1])):
        if not best or sign * y > sign * best[-1][1]:
            best.append((x, y))
    figure, axes = _axes_beside_names([*points])
    axes.step(*zip(*best, strict=True), where="post", color="0.6", linewidth=0.8, zorder=0)
    for (x, _, interval), look in zip(points.values(), LOOKS(), strict=False):
        axes.plot([x, x], interval, color=look["color"], linewidth=0.8)
    _draw_points(axes, points, [(x, y) for x, y, _ in points.values()], [(x, y) in best for x, y, _ in points.values()])
    title = contrasts[0].measure.title
    axes.set(xlabel=unit, ylabel=title, xscale="log")
    plain_log(axes.xaxis, matplotlib.ticker.EngFormatter(sep=""))
    return Drawing(f"{title} against {unit}", figure, FRONT.format(title))


def scales(here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str]) -> Drawing:
    """The differences from base at two scales, and the line by which the second are predicted. names: of the scales."""
    both = at_both(here, there, names)
    x, y, places = both.x, both.y, [*zip(both.x, both.y, strict=True)]
    figure, axes = _axes_beside_names([one.row.shown_name for one, _ in both.pairs])
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    if both.is_predictable:
        at = np.linspace(x.min(), x.max(), 50)
        line = np.array([[one.value, *one.interval()] for one in (predict(x, y, place) for place in at)]).T
        axes.plot(at, line[0], color="0.6", linewidth=0.8, zorder=0)
        axes.fill_between(at, *line[1:], color="0.6", alpha=0.15, linewidth=0)
    numbered = [f"{i}  {one.row.shown_name}" for i, (one, _) in enumerate(both.pairs, start=1)]
    _draw_points(axes, numbered, places, [one.is_found for one, _ in both.pairs])
    for i, (place, look) in enumerate(zip(places, LOOKS(), strict=False), start=1):
        axes.annotate(str(i), place, (4, 3), textcoords="offset points", fontsize=7, color=look["color"])
    first, second = (f"{here[0].measure.title} at {name}, difference from base" for name in names)
    axes.set(xlabel=first, ylabel=second)
    return Drawing("Differences at two scales", figure, SCALES)


def _draw_points(axes: Axes, names: Iterable[str], places: Iterable[Sequence[float]], filled: Iterable[bool]) -> None:
    """A point for each row, and its name in the legend."""
    for name, (x, y), is_filled, look in zip(names, places, filled, LOOKS(), strict=False):
        look = look | {"linestyle": "none", "markerfacecolor": look["color"] if is_filled else "white"}
        axes.plot(x, y, markersize=5, label=break_name(name), **look)
    axes.legend(**BESIDE)


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
