"""Figures by matplotlib, readable in print and with a colour vision deficiency. No other module imports matplotlib."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
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
from transformer_pl.table.row import Contrast, Outcome, PrintedTable
from transformer_pl.table.scales import at_both
from transformer_pl.table.statistics import predict

# The colours of Okabe and Ito, which most people with a colour vision deficiency can tell apart. In grey, markers and
# line styles tell curves apart. Colours and markers change first from row to row, then the style of lines.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LOOKS = cycler(linestyle=["-", "--", ":", "-."]) * (cycler(color=COLOURS) + cycler(marker=list("osD^vPX")))
BESIDE_INTERVAL = 0.06  # inches from an interval to the dots of its seeds, below it
NAME_WIDTH = 34  # characters in a line of a row's name
STRETCH = 4.0  # by how much a row may lengthen the axis of differences
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1)}  # where the legend is: beside the axes
MOST_NAMES = 20  # in a legend
UNNAMED = {"color": "#cccccc", "linestyle": "-", "marker": "o", "zorder": 1, "label": ""}  # of a row beyond these
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
TRIES = "A point is one training with a seed that is not in the table. No line should be best at its end."
DIFFERENCES = (
    "Where an interval crosses zero, the row may be better or worse than base. A dot below it is one {}, compared with "
    "base's mean. An arrow ends an interval that reaches beyond the picture."
)


Look = dict[str, Any]  # how the line and the point of a row are drawn, and its `label` in the legend


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
        **{f"differences_{of[0].outcome.key.replace('/', '_')}": forest(of) for of in table.further},
        "curves_steps": curves(contrasts),
        "front_params": front(contrasts, "params", "parameters"),
        "front_flops": front(contrasts, "flops", "training FLOPs"),
    }
    return {name: drawing for name, drawing in drawings.items() if drawing}


def forest(contrasts: Sequence[Contrast], printed: PrintedTable | None = None, trial: str = "seed") -> Drawing | None:
    """Forest plot of the differences from base, and of those that the paper prints; None where none is known.

    trial: what a row has several of.
    """
    outcome, near = contrasts[0].outcome, _near(contrasts, printed)
    known = [(contrast, [*map(outcome.shown, contrast.estimate.interval())]) for contrast in near if contrast.estimate]
    if not known:
        return None
    shown, intervals = zip(*known, strict=True)
    names, seeds = [break_name(contrast.row.title) for contrast in shown], [_dots(contrast) for contrast in shown]
    of_paper = np.array([_printed(contrast, printed) for contrast in shown], float)
    heights = np.array([0.21 + 0.12 * name.count("\n") for name in names])  # inches
    figure = Figure(figsize=(5.5, 0.75 + heights.sum()), layout="constrained")
    axes, centres, dots = figure.subplots(), heights.cumsum() - heights / 2, np.concatenate(seeds)
    axes.hlines(centres, *zip(*intervals, strict=True), color=COLOURS[1], linewidth=1.2)
    faces = np.where([contrast.is_found for contrast in shown], COLOURS[1], "white")
    values = [outcome.shown(contrast.estimate.value) for contrast in shown]
    axes.scatter(values, centres, 25, faces, edgecolors=COLOURS[1], zorder=2)
    axes.scatter(dots, np.repeat(centres + BESIDE_INTERVAL, [*map(len, seeds)]), 4, COLOURS[1], linewidths=0)
    axes.scatter(of_paper, centres, 25, COLOURS[2], marker="x", zorder=2)
    axes.axvline(outcome.shown(0.0), color="0.6", linewidth=0.8, zorder=0)
    if len(usual := [ends for contrast, ends in known if not contrast.is_outlier]) < len(known):
        _show_usual(axes, np.array(intervals), centres, [*np.ravel(usual), *dots, *of_paper])
    has_paper = bool(np.isfinite(of_paper).any())
    marks = f"filled: p < 0.05{f'; dot: a {trial}' * bool(dots.size)}{'; cross: paper' * has_paper}"
    base = next((row.title for row in (contrast.row for contrast in contrasts) if row.is_base), "base")
    base = base.removesuffix(" (reference)")
    title, compared, explained = _words(outcome, base)
    axes.set_xlabel(f"{compared}, 95 % interval\n({marks})")  # a phone is narrow
    axes.set_ylim(heights.sum(), 0)
    axes.locator_params(axis="x", nbins=6)  # more numbers would touch each other
    axes.set_yticks(centres, names)
    axes.tick_params(axis="y", length=0)
    return Drawing(title, figure, explained.format(trial) + _left_out(contrasts, near))


def _left_out(contrasts: Sequence[Contrast], near: Sequence[Contrast]) -> str:
    """Which rows are not in the picture, as a sentence."""
    far = [f"{of.row.title} ({_change(of)})" for of in contrasts if of.estimate and of not in near]
    return f" Left out, because it would stretch the axis more than fourfold: {', '.join(far)}." if far else ""


def _change(contrast: Contrast) -> str:
    """The difference of a row from base, or its ratio to base."""
    change, outcome = contrast.difference or 0.0, contrast.outcome
    return f"{outcome.shown(change):.2f}" if outcome.is_logarithm else f"{change:+.1f}"


def _near(contrasts: Sequence[Contrast], printed: PrintedTable | None) -> list[Contrast]:
    """The tested rows in the picture: more than half, those that reach least far from base with interval, seeds and the
    paper's difference, and further ones up to the first that would stretch the axis more than STRETCH times."""
    reach: list[tuple[float, float, Contrast]] = []
    none = contrasts[0].outcome.shown(0.0)
    for contrast in contrasts:
        if contrast.estimate:
            of_paper = _printed(contrast, printed)
            ends = map(contrast.outcome.shown, contrast.estimate.interval())
            drawn = (*_dots(contrast), *ends, none if of_paper is None else of_paper)
            values = [0.0, *(value - none for value in drawn)]
            reach.append((min(values), max(values), contrast))
    reach.sort(key=lambda row: max(-row[0], row[1]))
    lows, highs = np.array([row[:2] for row in reach]).reshape(-1, 2).T
    widths = np.maximum.accumulate(highs) - np.minimum.accumulate(lows)  # of each row and those before it
    further = (n for n in range(len(reach) // 2 + 1, len(reach)) if widths[n] > STRETCH * widths[n - 1])
    near = [contrast for *_, contrast in reach[: next(further, len(reach))]]
    return [contrast for contrast in contrasts if contrast in near]


def _printed(contrast: Contrast, printed: PrintedTable | None) -> float | None:
    """Where the paper's difference of a row stands on the axis of ours; None where it is not known."""
    change = printed.change(contrast.row.printed, contrast.outcome) if printed else None
    return None if change is None else contrast.outcome.shown(change)


def _words(outcome: Outcome, base: str) -> tuple[str, str, str]:
    """The title of a forest plot, its axis, and what a reader must know. base: its name."""
    if outcome.is_logarithm:
        return f"{outcome.title} beside base", f"{outcome.title} / {base}", DIFFERENCES.replace("zero", "1")
    return "Differences from base", f"{outcome.title}, difference from {base}", DIFFERENCES


def _dots(contrast: Contrast) -> np.ndarray:
    """The seeds of a row, as differences from base's mean; none where it is made of a mean, or compared in pairs."""
    sample = contrast.row.samples.get(contrast.outcome.key)
    if contrast.shares_weights or (sample and not sample.has_seeds):
        return np.zeros(0)
    dots = (contrast.difference or 0.0) - fmean(contrast.scores) + np.array(contrast.scores)
    return np.exp(dots) if contrast.outcome.is_logarithm else dots


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
    measured = [(contrast, [seed for seed in contrast.row.losses if seed]) for contrast in contrasts]
    known = [(contrast, seeds) for contrast, seeds in measured if seeds and set.intersection(*map(set, seeds))]
    if not known:
        return None
    figure, axes, looks = _axes_beside_names([contrast for contrast, _ in known])
    highest, start = 0.0, math.inf
    for (contrast, by_seed), look in zip(known, looks, strict=True):
        row = contrast.row
        final, end = min(fmean(row.values["val/ppl"]), math.exp(HIGHEST_LOSS)), max(row.scored_steps)
        common = sorted(set.intersection(*map(set, by_seed)))
        y = np.exp([[min(seed[step], HIGHEST_LOSS) for step in common] for seed in by_seed])
        fifth = len(common) // 5  # left out: beside its high values the ends would look alike
        highest, start = max(highest, final, *y.mean(0)[fifth:]), min(start, common[fifth])
        label = look["label"] and break_name(f"{row.shown_name}: {final:.2f}")
        look, every = look | {"label": label}, max(1, len(common) // 8)
        axes.plot(common, y.mean(0), markersize=3.5, markevery=every, linewidth=1.2, **look)
        if row.is_base:
            axes.axhline(y.mean(0).min(), color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        if len(y) > 1 and label:
            axes.fill_between(common, y.min(0), y.max(0), color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(end, final, "*", color=look["color"], markersize=8, zorder=look.get("zorder", 2))
    axes.set(xlabel="steps", ylabel="validation perplexity", yscale="log")
    axes.set_ylim(top=1.05 * highest)
    axes.set_xlim(left=start)
    plain_log(axes.yaxis)
    _add_legend(axes, looks)
    return Drawing("Validation perplexity by steps", figure, CURVES)


def front(contrasts: Sequence[Contrast], cost: str, unit: str) -> Drawing | None:
    """The score against a cost; rows of the Pareto front are filled: no other is better at the same or a lower cost.

    cost: params or flops. None where the rows' costs are about equal.
    """
    shown = contrasts[0].outcome.shown
    points = [
        (contrast, x, shown(fmean(contrast.scores)), tuple(map(shown, contrast.mean.interval())))
        for contrast in contrasts
        if contrast.mean and (x := getattr(contrast.row, cost)) is not None
    ]
    places = [(x, y) for _, x, y, _ in points]
    costs = [x for x, _ in places]
    if not points or max(costs) < DIFFERS * min(costs):
        return None
    best: list[tuple[float, float]] = []
    sign = -1 if contrasts[0].outcome.lower_is_better else 1
    for x, y in sorted(places, key=lambda place: (place[0], -sign * place[1])):
        if not best or sign * y > sign * best[-1][1]:
            best.append((x, y))
    figure, axes, looks = _axes_beside_names([contrast for contrast, *_ in points])
    axes.step(*zip(*best, strict=True), where="post", color="0.6", linewidth=0.8, zorder=0)
    for (_, x, _, interval), look in zip(points, looks, strict=True):
        axes.plot([x, x], interval, color=look["color"], linewidth=0.8, zorder=look.get("zorder", 2))
    _draw_points(axes, looks, places, [place in best for place in places])
    title = contrasts[0].outcome.title
    axes.set(xlabel=unit, ylabel=title, xscale="log")
    plain_log(axes.xaxis, matplotlib.ticker.EngFormatter(sep=""))
    return Drawing(f"{title} against {unit}", figure, FRONT.format(title))


def scales(here: Sequence[Contrast], there: Sequence[Contrast], names: tuple[str, str]) -> Drawing:
    """The differences from base at two scales, and the line by which the second are predicted. names: of the scales."""
    both = at_both(here, there, names)
    x, y, places = both.x, both.y, [*zip(both.x, both.y, strict=True)]
    figure, axes, looks = _axes_beside_names([contrast for contrast, _ in both.pairs])
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    if both.is_predictable:
        at = np.linspace(x.min(), x.max(), 50)
        predicted = [predict(x, y, place) for place in at]
        line = np.array([[estimate.value, *estimate.interval()] for estimate in predicted]).T
        axes.plot(at, line[0], color="0.6", linewidth=0.8, zorder=0)
        axes.fill_between(at, *line[1:], color="0.6", alpha=0.15, linewidth=0)
    for i, (place, look) in enumerate(zip(places, looks, strict=True), start=1):
        if look["label"]:
            look["label"] = f"{i}  {look['label']}"
            axes.annotate(str(i), place, (4, 3), textcoords="offset points", fontsize=7, color=look["color"])
    _draw_points(axes, looks, places, [contrast.is_found for contrast, _ in both.pairs])
    first, second = (f"{here[0].outcome.title} at {name}, difference from base" for name in names)
    axes.set(xlabel=first, ylabel=second)
    return Drawing("Differences at two scales", figure, SCALES)


def draw_tries(tries: Sequence[tuple[str, Mapping[str, float], float]]) -> Drawing:
    """The metric of each row against each value that it has tried.

    tries: row, values by key, metric; an infinite metric is left out.
    """
    keys, rows = [*tries[0][1]], dict.fromkeys(row for row, *_ in tries)
    figure = Figure(figsize=(7, 3.6 * len(keys)), layout="constrained")
    for key, axes in zip(keys, figure.subplots(len(keys), squeeze=False)[:, 0], strict=True):
        for row, look in zip(rows, LOOKS(), strict=False):
            known = sorted((point[key], value) for name, point, value in tries if name == row and math.isfinite(value))
            axes.plot([x for x, _ in known], [y for _, y in known], label=break_name(row), markersize=4, **look)
        axes.set(xlabel=key, ylabel="the metric of the tries", xscale="log")
        plain_log(axes.xaxis)
        axes.legend(**BESIDE)
    return Drawing("What each row has tried", figure, TRIES)


def _draw_points(axes: Axes, looks: Sequence[Look], places: Iterable[Sequence[float]], filled: Iterable[bool]) -> None:
    """A point for each row, and the names of rows beside them."""
    for look, (x, y), is_filled in zip(looks, places, filled, strict=True):
        marker = {"linestyle": "none", "markerfacecolor": look["color"] if is_filled else "white"}
        axes.plot(x, y, markersize=5, **look | marker | {"label": break_name(look["label"])})
    _add_legend(axes, looks)


def differing_most(contrasts: Sequence[Contrast], count: int) -> list[Contrast]:
    """Base, and the rows that differ most from it: at most `count` in all, in their order in the table."""
    ranked = sorted(contrasts, key=lambda contrast: (not contrast.row.is_base, -abs(contrast.difference or 0.0)))
    names = {contrast.row.name for contrast in ranked[:count]}
    return [contrast for contrast in contrasts if contrast.row.name in names]


def _add_legend(axes: Axes, looks: Sequence[Look]) -> None:
    """Write the names of rows beside the axes, and how many rows are grey, without a name."""
    grey = sum(not look["label"] for look in looks)
    title = f"base and rows that differ most\n(grey: {grey} others)" if grey else None
    axes.legend(**BESIDE, title=title, alignment="left")


def break_name(name: str) -> str:
    """A name on as many lines as it needs, so that names which differ look different."""
    return textwrap.fill(name, NAME_WIDTH, break_on_hyphens=False) or name


def _axes_beside_names(contrasts: Sequence[Contrast]) -> tuple[Figure, Axes, list[Look]]:
    """Axes that are high enough for the names of rows beside them, and how each row is drawn, with its name as `label`.

    Of more than MOST_NAMES rows those that differ least from base are drawn in grey and have no name.
    """
    named, looks = [contrast.row.name for contrast in differing_most(contrasts, MOST_NAMES)], iter(LOOKS())
    drawn: list[Look] = [
        {**next(looks), "label": contrast.row.shown_name} if contrast.row.name in named else dict(UNNAMED)
        for contrast in contrasts
    ]
    lines = sum(1 + break_name(look["label"]).count("\n") for look in drawn if look["label"])
    height = max(3.6, 0.6 + 0.15 * lines + 0.05 * len(named))  # inches
    figure = Figure(figsize=(7, height), layout="constrained")
    return figure, figure.subplots(), drawn


def plain_log(axis: Any, form: Any = "{x:g}") -> None:
    """Label a logarithmic axis with 1, 2, 5, 10, ... rather than powers of ten."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
