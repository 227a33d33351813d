"""Figures, readable in print and by the colour-blind. The only door to matplotlib."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

# Okabe and Ito's colours, which most people with a colour deficiency tell apart; in grey, markers and dashes do.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX"
matplotlib.rcParams.update(
    {"svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)


def save(figure: Figure, path: Path) -> None:
    """As vectors (svg, pdf) and as pixels (png), beside each other."""
    for kind in ("svg", "pdf", "png"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=200, bbox_inches="tight")


def growth(times: Mapping[str, Mapping[int, float]]) -> Figure:
    """Seconds over length, both by their logarithm; grey lines are what grows as n and as n²."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    for i, (name, seconds) in enumerate(times.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        axes.loglog(list(seconds), [1e3 * t for t in seconds.values()], linewidth=1.2, label=name, **style)
    lengths = sorted({n for seconds in times.values() for n in seconds})
    slowest = 1e3 * max(max(seconds.values()) for seconds in times.values() if seconds)
    for power, label in ((1, "n"), (2, "n²")):
        guide = [slowest * (n / lengths[-1]) ** power for n in lengths]
        axes.loglog(
            lengths, guide, color="0.6", linestyle={1: "--", 2: ":"}[power], linewidth=0.8, zorder=0, label=label
        )
    low = min(1e3 * min(seconds.values()) for seconds in times.values() if seconds)
    axes.set(xlabel="length n", ylabel="ms, forward and backward", ylim=(low / 2, slowest * 2))
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    return figure
