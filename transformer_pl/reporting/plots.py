"""Figures, readable in print and by the colour-blind. The only door to matplotlib."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_pl.config import without_section

# Okabe and Ito's colours, which most people with a colour deficiency tell apart; in grey, markers and dashes do.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
LONGEST = 24  # characters of a name
matplotlib.rcParams.update(
    {"svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)


class Point(NamedTuple):
    """A row's BLEU with its interval, and what it was paid with."""

    name: str
    value: float
    low: float
    high: float
    cost: float
    sure: bool = False  # that it differs from base


class Curve(NamedTuple):
    """A row's measurements in the course of its training, one series a seed."""

    name: str
    at: Sequence[Sequence[float]]
    values: Sequence[Sequence[float]]


def save(figure: Figure, path: Path) -> Path:
    """As vectors (svg, pdf) and as pixels (png), beside each other; returns the last."""
    for kind in ("svg", "pdf", "png"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=200, bbox_inches="tight")
    return path.with_suffix(".png")


def forest(rows: Sequence[Point], paper: Mapping[str, float]) -> Figure:
    """Differences to base with their intervals, filled where they are sure; the paper's as crosses."""
    figure, axes = _axes(5.5, 0.9 + 0.28 * len(rows))
    for y, row in enumerate(rows):
        face = COLOURS[1] if row.sure else "white"
        axes.plot([row.low, row.high], [y, y], color=COLOURS[1], linewidth=1.2)
        axes.plot(row.value, y, "o", color=COLOURS[1], markerfacecolor=face, markersize=5)
        if row.name in paper:
            axes.plot(paper[row.name], y, "x", color=COLOURS[2], markersize=5, label="paper")
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="BLEU, difference to base (95 %)", ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [_short(row.name) for row in rows])
    axes.tick_params(axis="y", length=0)
    _legend(axes)
    return figure


def curves(rows: Sequence[Curve], unit: str, measure: str) -> Figure:
    """The mean over seeds by what was spent, from the lowest to the highest seed shaded."""
    figure, axes = _axes(6, 3.8)
    for row, (line, colour) in zip(rows, itertools.cycle(itertools.product(LINES, COLOURS)), strict=False):
        common = sorted(set.intersection(*map(set, row.at)))
        if not common:
            continue
        values = np.array([[dict(zip(at, seen, strict=True))[x] for x in common] for at, seen in _seeds(row)])
        axes.plot(common, values.mean(0), color=colour, linestyle=line, linewidth=1.2, label=_short(row.name))
        if len(values) > 1:
            axes.fill_between(common, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel=unit, ylabel=measure, yscale="log")
    _plain_log(axes.yaxis)
    _legend(axes, outside=True)
    return figure


def front(rows: Sequence[Point], unit: str, measure: str = "BLEU", up: bool = True) -> Figure:
    """A measure against a cost; the line joins the rows that no other beats at their cost or below.

    `up`: whether more of the measure is better.
    """
    figure, axes = _axes(5.5, 3.8)
    best: list[Point] = []
    sign = 1 if up else -1
    for row in sorted(rows, key=lambda row: (row.cost, -sign * row.value)):
        if not best or sign * row.value > sign * best[-1].value:
            best.append(row)
    axes.step([p.cost for p in best], [p.value for p in best], where="post", color="0.6", linewidth=0.8, zorder=0)
    for row in rows:
        colour = COLOURS[2] if row in best else COLOURS[1]
        axes.plot([row.cost] * 2, [row.low, row.high], color=colour, linewidth=0.8)
        axes.plot(row.cost, row.value, "D" if row in best else "o", color=colour, markersize=4)
        axes.annotate(_short(row.name), (row.cost, row.value), (4, 3), textcoords="offset points", fontsize=7)
    axes.set(xlabel=unit, ylabel=measure, xscale="log")
    _plain_log(axes.xaxis, matplotlib.ticker.EngFormatter(sep=""))
    return figure


def grid(rows: Sequence[Point], unit: str) -> Figure:
    """BLEU with its interval over the one number in which the rows differ, which is their cost here."""
    figure, axes = _axes(4.5, 3.2)
    rows = sorted(rows, key=lambda row: row.cost)
    x = [row.cost for row in rows]
    axes.plot(x, [row.value for row in rows], color=COLOURS[1], marker="o", markersize=4, linewidth=1.2)
    for row in rows:
        axes.plot([row.cost] * 2, [row.low, row.high], color=COLOURS[1], linewidth=0.8, marker="_", markersize=5)
    axes.set(xlabel=unit, ylabel="BLEU (95 %)")
    if x[0] > 0 and x[-1] / x[0] >= 8:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(x, [f"{value:g}" for value in x])
    return figure


def history(
    numbers: Sequence[int],
    values: Sequence[float],
    done: Sequence[bool],
    measure: str,
    up: bool,
    infinite: Sequence[int] = (),
) -> Figure:
    """Every trial by its number, one that was pruned by its last value; the line is the best so far.

    `infinite`: the numbers of trials whose value is not finite, which are marked at the edge where values are bad.
    """
    figure, axes = _axes(5, 3.2)
    marks = {True: ("o", COLOURS[1], "finished"), False: ("x", COLOURS[2], "pruned")}
    for kind, (marker, colour, label) in marks.items():
        chosen = [(n, v) for n, v, ended in zip(numbers, values, done, strict=True) if ended == kind]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), marker, color=colour, markersize=4, label=label)
    ended = [(n, v) for n, v, whole in zip(numbers, values, done, strict=True) if whole]
    if ended:
        best = (np.maximum if up else np.minimum).accumulate([v for _, v in ended])
        axes.step([n for n, _ in ended], best, where="post", color="0.6", linewidth=0.8, zorder=0, label="best so far")
    if infinite:
        at_edge = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        edge = [0.0 if up else 1.0] * len(infinite)
        axes.plot(infinite, edge, "^" if not up else "v", color=COLOURS[4], markersize=5, label="diverged", **at_edge)
    axes.set(xlabel="trial", ylabel=measure)
    if not up and _is_skewed(values):
        axes.set_yscale("log")
        _plain_log(axes.yaxis)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    _legend(axes)
    return figure


def parallel(
    drawn: Mapping[str, Sequence[Any]], by_logarithm: Collection[str], values: Sequence[float], measure: str, up: bool
) -> Figure:
    """A line a trial through what it was drawn (`drawn`: by key) to its value; the darker, the better.

    Numbers are spread over their axis, by their logarithm where that is said; anything else in its order.
    """
    axes_of = {**{key: list(seen) for key, seen in drawn.items()}, measure: list(values)}
    if not up and _is_skewed(values):
        by_logarithm = {*by_logarithm, measure}
    figure, axes = _axes(1.2 + 1.1 * len(axes_of), 3.6)
    heights = []
    for x, (key, seen) in enumerate(axes_of.items()):
        at, ticks = _spread(seen, key in by_logarithm)
        heights.append(at)
        axes.plot([x, x], [0, 1], color="0.8", linewidth=0.8, zorder=0)
        for height, label in ticks:
            axes.annotate(label, (x, height), (3, 0), textcoords="offset points", fontsize=7, va="center", zorder=3)
    order = np.argsort(np.argsort(values if up else -np.asarray(values)))  # the best is last, and on top
    for i in np.argsort(order):
        shade = (order[i] + 1) / len(values)
        axes.plot(range(len(axes_of)), [at[i] for at in heights], color=COLOURS[1], alpha=0.1 + 0.9 * shade**2, lw=1)
    axes.set_xticks(range(len(axes_of)), [without_section(key) for key in drawn] + [measure])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    return figure


def share_bars(by_name: Mapping[str, float]) -> Figure:
    """What each has of a whole, the largest first."""
    ranked = sorted(by_name.items(), key=lambda item: -item[1])
    figure, axes = _axes(4.5, 0.8 + 0.28 * len(ranked))
    axes.barh(range(len(ranked)), [share for _, share in ranked], color=COLOURS[1], height=0.6)
    axes.set_yticks(range(len(ranked)), [_short(name) for name, _ in ranked])
    axes.set(xlabel="share", xlim=(0, 1), ylim=(len(ranked) - 0.5, -0.5))
    return figure


def expected_best_plot(expected: Sequence[float], measure: str) -> Figure:
    """The expected best of k trials."""
    figure, axes = _axes(4.5, 3.2)
    axes.plot(range(1, len(expected) + 1), expected, color=COLOURS[1], marker="o", markersize=3, linewidth=1.2)
    axes.set(xlabel="trials k", ylabel=f"expected best {measure}")
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    return figure


def growth(times: Mapping[str, Mapping[int, float]]) -> Figure:
    """Seconds over length, both by their logarithm; grey lines are what grows as n and as n²."""
    figure, axes = _axes(5, 3.6)
    times = {name: seconds for name, seconds in times.items() if seconds}
    for (name, seconds), colour, marker in zip(times.items(), itertools.cycle(COLOURS), itertools.cycle(MARKERS)):
        milliseconds = [1e3 * t for t in seconds.values()]
        axes.loglog(list(seconds), milliseconds, color=colour, marker=marker, markersize=4, linewidth=1.2, label=name)
    lengths = sorted({n for seconds in times.values() for n in seconds})
    slowest, fastest = (1e3 * end(end(seconds.values()) for seconds in times.values()) for end in (max, min))
    for power, label, line in ((1, "n", "--"), (2, "n²", ":")):
        guide = [slowest * (n / lengths[-1]) ** power for n in lengths]
        axes.loglog(lengths, guide, color="0.6", linestyle=line, linewidth=0.8, zorder=0, label=label)
    axes.set(xlabel="length n", ylabel="ms, forward and backward", ylim=(fastest / 2, slowest * 2))
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    _legend(axes)
    return figure


def _is_skewed(values: Sequence[float]) -> bool:
    """Whether a few that are far off would press all others together."""
    return max(values) > 4 * min(values) > 0


def _spread(seen: Sequence[Any], by_logarithm: bool) -> tuple[list[float], list[tuple[float, str]]]:
    """Heights from 0 to 1, and labelled ticks among them."""
    if all(isinstance(value, Real) for value in seen):
        low, high = min(seen), max(seen)
        scale = math.log if by_logarithm else float
        span = (scale(high) - scale(low)) or 1.0
        ends = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")] if high > low else [(0.0, f"{low:.4g}")]
        return [(scale(value) - scale(low)) / span for value in seen], ends
    kinds = sorted(dict.fromkeys(map(str, seen)))
    height = {kind: i / max(1, len(kinds) - 1) for i, kind in enumerate(kinds)}
    return [height[str(value)] for value in seen], [(at, _short(kind)) for kind, at in height.items()]


def _short(name: str) -> str:
    """A row of many changes by the first of them: the table has them all."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _seeds(row: Curve) -> Any:
    return zip(row.at, row.values, strict=True)


def _legend(axes: Axes, outside: bool = False) -> None:
    """Every name once."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        where = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if outside else {}
        axes.legend(handles.values(), handles, frameon=False, fontsize=7 if outside else 8, **where)


def _plain_log(axis: Any, form: Any = "{x:g}") -> None:
    """2, 5, 10 in place of powers of ten."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
