"""Figures by matplotlib, readable in print and with a colour vision deficiency. No other module imports matplotlib."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.ticker
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_pl.reporting.cells import UNCONVERGED
from transformer_pl.reporting.figure_names import NAME_SIZE, break_name, name_height, spread_apart

# The colours of Okabe and Ito, which most people with a colour vision deficiency can tell apart. In grey, markers and
# line styles tell curves apart.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX"
LINE_STYLES = ("-", "--", ":", "-.")
MARGIN = 0.7  # inches of a figure's height that are not of its axes, at most
matplotlib.rcParams.update(
    {"svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)
matplotlib.rcParams["text.parse_math"] = False  # a name with two $ in it is no formula


class Point(NamedTuple):
    """A row's value with its interval, and its cost."""

    name: str
    value: float
    low: float
    high: float
    cost: float
    significant: bool = False  # whether it differs significantly from base


class Curve(NamedTuple):
    """Measurements of a row during training, one series per seed, and the final one."""

    name: str
    at: Sequence[Sequence[float]]  # steps or FLOPs, by seed
    values: Sequence[Sequence[float]]  # the measurements there
    end: float  # steps or FLOPs of the whole training
    final: float | None  # the mean of the seeds' final values; None where one is not finite
    still_falls: bool = False  # whether it had not converged


class Drawing(NamedTuple):
    """A figure, and what a reader must know to understand it."""

    title: str
    figure: Figure
    explanation: str  # sentences


def save(figure: Figure, path: Path) -> Path:
    """Save a figure as svg, pdf and png beside each other; return the path of the png."""
    for kind in ("svg", "pdf", "png"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=200, bbox_inches="tight")
    return path.with_suffix(".png")


def forest(
    rows: Sequence[Point], paper: Mapping[str, float], measure: str, provisional: Collection[str] = ()
) -> Figure:
    """Forest plot: differences from base with their intervals, filled circles where significant; crosses: the paper's.

    provisional: the names of rows whose difference more steps may change; they are marked.
    """
    names = [break_name(row.name) + (UNCONVERGED if row.name in provisional else "") for row in rows]
    heights = np.array([0.14 + name_height(name) for name in names])
    figure, axes = new_axes(5, 0.9 + heights.sum())
    centres = heights.cumsum() - heights / 2
    for y, row in zip(centres, rows, strict=True):
        face = COLOURS[1] if row.significant else "white"
        axes.plot([row.low, row.high], [y, y], color=COLOURS[1], linewidth=1.2)
        axes.plot(row.value, y, "o", color=COLOURS[1], markerfacecolor=face, markersize=5)
        if row.name in paper:
            axes.plot(paper[row.name], y, "x", color=COLOURS[2], markersize=5, label="paper")
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel=f"{measure}, difference from base (95 %; filled: significant)", ylim=(heights.sum(), 0))
    axes.set_yticks(centres, names, fontsize=NAME_SIZE)
    axes.tick_params(axis="y", length=0)
    add_legend(axes)
    return figure


def curves(rows: Sequence[Curve], unit: str, measure: str) -> Figure:
    """Learning curves: the mean over seeds; the area between the lowest and the highest seed is shaded.

    unit: of the x axis, steps or FLOPs. The star of a row that had not converged is hollow, and its name is marked.
    """
    names = [break_name(row.name) + ("" if row.final is None else f": {row.final:.2f}") for row in rows]
    names = [name + UNCONVERGED if row.still_falls else name for name, row in zip(names, rows, strict=True)]
    figure, axes = _named_axes(names)
    looks = itertools.cycle(itertools.product(LINE_STYLES, zip(COLOURS, MARKERS, strict=True)))
    ends = [_draw_curve(axes, row, *look) for row, look in zip(rows, looks, strict=False)]
    axes.set(xlabel=unit, ylabel=measure, yscale="log")
    plain_log(axes.yaxis)
    _name_points(figure, axes, names, ends)
    return figure


def _draw_curve(axes: Axes, row: Curve, line: str, colour_and_marker: tuple[str, str]) -> tuple[float, float, str]:
    """Draw the curve of a row from its first measurement on; return where it ends, and its colour."""
    colour, marker = colour_and_marker
    end: tuple[float, float] = (row.end, math.nan)
    if common := sorted(set.intersection(*map(set, row.at))) if row.at else []:
        by_seed = [dict(zip(*series, strict=True)) for series in zip(row.at, row.values, strict=True)]
        values = np.array([[seed[x] for x in common] for seed in by_seed])  # (S, measurements)
        look: dict[str, Any] = {"marker": marker, "markersize": 3.5, "markevery": max(1, len(common) // 8)}
        axes.plot(common, values.mean(0), color=colour, linestyle=line, linewidth=1.2, **look)
        if len(values) > 1:
            axes.fill_between(common, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        end = (common[-1], values.mean(0)[-1])
    if row.final is not None:
        end = (row.end, row.final)
        axes.plot(*end, "*", color=colour, markersize=8, markerfacecolor="white" if row.still_falls else colour)
    return *end, colour


def front(rows: Sequence[Point], unit: str, measure: str, up: bool = True) -> Figure:
    """A measure against a cost. The line is the Pareto front: no other row is better at the same or a lower cost.

    up: whether higher values are better.
    """
    names = [break_name(row.name) for row in rows]
    figure, axes = _named_axes(names)
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
    axes.set(xlabel=unit, ylabel=measure, xscale="log")
    plain_log(axes.xaxis, matplotlib.ticker.EngFormatter(sep=""))
    _name_points(figure, axes, names, [(row.cost, row.value, "0.8") for row in rows])
    return figure


def grid(rows: Sequence[Point], unit: str, measure: str) -> Figure:
    """A measure with its interval over the one number in which the rows differ, which is the `cost` of each point."""
    figure, axes = new_axes(4.5, 3.2)
    rows = sorted(rows, key=lambda row: row.cost)
    x = [row.cost for row in rows]
    axes.plot(x, [row.value for row in rows], color=COLOURS[1], marker="o", markersize=4, linewidth=1.2)
    for row in rows:
        axes.plot([row.cost] * 2, [row.low, row.high], color=COLOURS[1], linewidth=0.8, marker="_", markersize=5)
    axes.set(xlabel=unit, ylabel=f"{measure} (95 %)")
    if x[0] > 0 and x[-1] / x[0] >= 8:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(x, [f"{value:g}" for value in x])
    return figure


def growth(times: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time over sequence length n on logarithmic axes, with guides that grow as n and n².

    times: seconds by layer and n.
    """
    figure, axes = new_axes(5, 3.6)
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
    plain_log(axes.yaxis)
    axes.minorticks_off()
    add_legend(axes)
    return figure


def _named_axes(names: Sequence[str]) -> tuple[Figure, Axes]:
    """Axes that are high enough for a column of these names beside them."""
    return new_axes(5, max(3.6, MARGIN + sum(map(name_height, names))))


def _name_points(figure: Figure, axes: Axes, names: Sequence[str], points: Sequence[tuple[float, float, str]]) -> None:
    """Write the names of points in a column right of the axes, joined to the points by lines.

    So no name lies on a point or on another name. points: x, y and the colour of the line. The axes have their limits.
    """
    room = figure.get_figheight() - MARGIN
    wanted = [(axes.transScale + axes.transLimits).transform((x, y))[1] for x, y, _ in points]  # 0 to 1
    order = np.argsort(wanted)[::-1]  # the highest first
    heights = spread_apart([wanted[i] for i in order], [name_height(names[i]) / room for i in order])
    for i, height in zip(order, heights, strict=True):
        x, y, colour = points[i]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            names[i],
            (x, y),
            (1.08, height),
            textcoords=axes.transAxes,
            fontsize=NAME_SIZE,
            va="center",
            arrowprops=line,
            annotation_clip=False,
        )


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def add_legend(axes: Axes) -> None:
    """Add a legend with every label once, above the axes, where it lies on nothing."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        axes.legend(
            handles.values(), handles, frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 1)
        )


def plain_log(axis: Any, form: Any = "{x:g}") -> None:
    """Label a logarithmic axis with 1, 2, 5, 10, ... rather than powers of ten."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


@contextmanager
def drawing_by_pyplot() -> Iterator[None]:
    """In it another library may draw by pyplot and set a style: its figures stay, pyplot and the style do not."""
    pyplot.switch_backend("agg")
    with pyplot.rc_context():
        yield
    pyplot.close("all")
