"""The figures of a sweep: names that can be told apart and lie on nothing, curves from one measurement on."""

import itertools

import pytest
from helpers import ROOT, a_result
from matplotlib.backends.backend_agg import FigureCanvasAgg

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.figures import Curve, Point, curves, draw_sweep_plots, forest, front, growth
from transformer_pl.report.table import table_of

LONG = [f"attention=AlibiAttention attention.slope={slope}" for slope in (0.25, 0.5)]
NAMES = [*LONG, r"$\frac$", "attention=AVeryLongNameOfAComponentThatSomebodyWrote", *(f"h={h}" for h in range(1, 17))]
KNOWN = [[7, 5, 3, 1, 8, 7, 6, 5, 8, 8]] * 60  # the BLEU counts of 60 sentences


def drawn(figure):
    """The figure's axes, with all positions computed."""
    FigureCanvasAgg(figure).draw()
    return figure.axes[0]


def names_of(axes):
    """The names beside the axes, or at its ticks."""
    return axes.get_legend().get_texts() if axes.get_legend() else axes.get_yticklabels()


def written(axes):
    return ["".join(text.get_text().split()) for text in names_of(axes)]


def points(values):
    return [Point(name, value, value - 1, value + 1, 1e6 + value) for name, value in zip(NAMES, values, strict=False)]


def one_curve_each(values):
    return [Curve(name, [{100: value + 1}], 1000, value) for name, value in zip(NAMES, values, strict=False)]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: front(points([60 + 0.01 * i for i in range(20)]), "parameters", "BLEU"),
        lambda: curves(one_curve_each([3 + 0.01 * i for i in range(20)]), "steps", "PPL"),
        lambda: forest(points([0.0] * 20), "BLEU"),
        lambda: growth({name: {32: 1e-4, 4096: 9.0} for name in NAMES}),
    ],
    ids=["front", "curves", "forest", "growth"],
)
def test_names_are_whole_and_lie_on_nothing(figure):
    axes = drawn(figure())
    assert all(any("".join(name.split()) in text for text in written(axes)) for name in NAMES)
    boxes = [text.get_window_extent() for text in names_of(axes)]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    frame = axes.get_window_extent()
    assert not any(frame.overlaps(box) for box in boxes)  # so no point and no line of the data is under a name


def test_the_pareto_front_is_filled():
    rows = [Point("a", 60, 59, 61, 1e6), Point("b", 59, 58, 60, 2e6), Point("c", 62, 61, 63, 4e6)]
    marks = [line for line in drawn(front(rows, "parameters", "BLEU")).lines if len(line.get_xdata()) == 1]
    assert [mark.get_markerfacecolor() != "white" for mark in marks] == [True, False, True]


def test_a_curve_of_one_validation_is_seen_with_its_final_score():
    rows = [*one_curve_each([3.25]), Curve("none", [], 1000, 3.5), Curve("diverged", [{10: 4.0}], 1000, None)]
    axes = drawn(curves(rows, "steps", "PPL"))
    line, star, *others = axes.lines
    assert list(line.get_xdata()) == [100] and line.get_marker() not in ("", "None", None)
    assert (list(star.get_xdata()), list(star.get_ydata()), star.get_marker()) == ([1000], [3.25], "*")
    assert [list(line.get_ydata()) for line in others] == [[], [3.5], [4.0]]
    assert [name.rpartition(":")[2] for name in written(axes)] == ["3.25", "3.50", "diverged"]


def test_the_shaded_area_reaches_from_the_lowest_to_the_highest_seed():
    row = Curve("base", [{10: 4.0, 20: 3.0}, {10: 6.0, 20: 5.0, 30: 1.0}], 30, 2.0)
    axes = drawn(curves([row], "steps", "PPL"))
    assert list(axes.lines[0].get_ydata()) == [5.0, 4.0]  # at the validations that both seeds have
    (area,) = axes.collections
    assert {tuple(corner) for corner in area.get_paths()[0].vertices} >= {(10, 4), (10, 6), (20, 3), (20, 5)}


def test_the_numbers_of_an_axis_are_no_formulas():
    axes = drawn(growth({"a": {32: 1e-4, 64: 3e-3, 4096: 9.0}, "b": {32: 2e-3, 64: 4e-3, 4096: 3.0}}))
    labels = [label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_majorticklabels()]
    assert {"32", "1000"} <= set(labels) and "$" not in "".join(labels)


def test_the_figures_of_a_sweep_are_of_its_rows(tmp_path):
    """h = 16 has one seed where base has two, so it has no interval; h = 32 is larger."""
    sweep = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])
    for planned in plan_trials(sweep, tmp_path):
        if planned.name != "h=16 s2":
            counts = [[one[0] - planned.config.seed, *one[1:]] for one in KNOWN]
            planned.trial.make()
            planned.trial.save_sentences("val", ["a"] * 60, "bleu", counts, range(60), [8] * 60)
            params = 861_000 if planned.name.startswith("h=32 ") else 431_000
            planned.trial.finish(a_result(id=planned.identity.trial, steps=700, params=params))
    planned = plan_trials(sweep, tmp_path)
    figures = draw_sweep_plots(sweep, planned, table_of(sweep, planned))
    assert set(figures) == {"differences", "curves_steps", "curves_flops", "front_params"}  # FLOPs are equal
    assert written(drawn(figures["differences"].figure)) == ["h=1", "h=4", "h=32"]
    assert written(drawn(figures["curves_steps"].figure)) == [f"{row.name}:2.00" for row in sweep.rows]
