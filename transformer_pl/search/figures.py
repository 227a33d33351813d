"""The figures of a search alone: its history, its trials over their hyperparameters, what mattered, what to expect."""

import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from transformer_pl.config import without_section
from transformer_pl.reporting.plots import (
    COLOURS,
    Figure,
    add_legend,
    break_name,
    new_axes,
    plain_log,
    whole_numbers,
)


def history(
    numbers: Sequence[int],
    values: Sequence[float],
    done: Sequence[bool],
    measure: str,
    up: bool,
    infinite: Sequence[int] = (),
) -> Figure:
    """The value of every trial by its number; a pruned trial has its last value. The line is the best value so far.

    done: whether each trial finished, rather than being pruned. up: whether higher values are better. infinite: the
    numbers of trials without a finite value, marked at the edge of the worst values.
    """
    figure, axes = new_axes(5, 3.2)
    finished = [(n, v) for n, v, is_done in zip(numbers, values, done, strict=True) if is_done]
    pruned = [(n, v) for n, v, is_done in zip(numbers, values, done, strict=True) if not is_done]
    for points, marker, colour, label in (
        (finished, "o", COLOURS[1], "finished"),
        (pruned, "x", COLOURS[2], "pruned"),
    ):
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, markersize=4, label=label)
    if finished:
        best = (np.maximum if up else np.minimum).accumulate([v for _, v in finished])
        axes.step(
            [n for n, _ in finished], best, where="post", color="0.6", linewidth=0.8, zorder=0, label="best so far"
        )
    if infinite:
        edge, marker = (0.0, "v") if up else (1.0, "^")
        (diverged,) = axes.plot(infinite, [edge] * len(infinite), marker, transform=axes.get_xaxis_transform())
        diverged.set(color=COLOURS[4], markersize=5, label="diverged", clip_on=False)
    axes.set(xlabel="trial", ylabel=measure)
    if not up and _is_skewed(values):
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    whole_numbers(axes.xaxis)
    add_legend(axes)
    return figure


def parallel(
    drawn: Mapping[str, Sequence[Any]], by_logarithm: Collection[str], values: Sequence[float], measure: str, up: bool
) -> Figure:
    """Parallel coordinates: a line per trial through its hyperparameters to its value; stronger is better.

    drawn: the hyperparameters by key. by_logarithm: the keys with a logarithmic axis. Values that are not numbers stand
    in alphabetical order.
    """
    axes_of = {**{key: list(seen) for key, seen in drawn.items()}, measure: list(values)}
    if not up and _is_skewed(values):
        by_logarithm = {*by_logarithm, measure}
    figure, axes = new_axes(1.2 + 1.1 * len(axes_of), 3.6)
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
        axes.plot(range(len(axes_of)), [at[i] for at in heights], color=COLOURS[1], alpha=0.25 + 0.75 * shade**2, lw=1)
    axes.set_xticks(range(len(axes_of)), [without_section(key) for key in drawn] + [measure])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    return figure


def share_bars(by_name: Mapping[str, float]) -> Figure:
    """Bars of shares of a whole, the largest first."""
    ranked = sorted(by_name.items(), key=lambda item: -item[1])
    figure, axes = new_axes(4.5, 0.8 + 0.28 * len(ranked))
    axes.barh(range(len(ranked)), [share for _, share in ranked], color=COLOURS[1], height=0.6)
    axes.set_yticks(range(len(ranked)), [break_name(name) for name, _ in ranked])
    axes.set(xlabel="share", xlim=(0, 1), ylim=(len(ranked) - 0.5, -0.5))
    return figure


def expected_best_plot(expected: Sequence[float], measure: str) -> Figure:
    """The expected best value of k trials over k."""
    figure, axes = new_axes(4.5, 3.2)
    axes.plot(range(1, len(expected) + 1), expected, color=COLOURS[1], marker="o", markersize=3, linewidth=1.2)
    axes.set(xlabel="trials k", ylabel=f"expected best {measure}")
    whole_numbers(axes.xaxis)
    return figure


def _is_skewed(values: Sequence[float]) -> bool:
    """Whether a few large values would squeeze all others together on a linear axis."""
    return max(values) > 4 * min(values) > 0


def _spread(seen: Sequence[Any], by_logarithm: bool) -> tuple[list[float], list[tuple[float, str]]]:
    """The height of each value on an axis from 0 to 1, and its labelled ticks."""
    if all(isinstance(value, Real) for value in seen):
        low, high = min(seen), max(seen)
        scale = math.log if by_logarithm else float
        span = (scale(high) - scale(low)) or 1.0
        ends = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")] if high > low else [(0.0, f"{low:.4g}")]
        return [(scale(value) - scale(low)) / span for value in seen], ends
    kinds = sorted(dict.fromkeys(map(str, seen)))
    height = {kind: i / max(1, len(kinds) - 1) for i, kind in enumerate(kinds)}
    return [height[str(value)] for value in seen], [(at, break_name(kind)) for kind, at in height.items()]
