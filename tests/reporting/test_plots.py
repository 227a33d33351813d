"""The figures of a sweep: names that can be told apart and lie on nothing, curves from one measurement on."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ROOT, a_result
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.reporting.figure_names import spread_apart
from transformer_pl.reporting.plots import Curve, Point, curves, forest, front, growth
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.sweep_plots import _cost_plots, draw_sweep_plots
from transformer_pl.reporting.table import table_of

LONG = [f"attention=AlibiAttention attention.slope={slope}" for slope in (0.25, 0.5)]
NAMES = [*LONG, r"$\frac$", "attention=AVeryLongNameOfAComponentThatSomebodyWrote", *(f"h={h}" for h in range(1, 17))]


def drawn(figure):
    """The figure's axes, with all positions computed."""
    FigureCanvasAgg(figure).draw()
    return figure.axes[0]


def written(axes):
    """The names beside the axes, or at its ticks, without line breaks."""
    texts = axes.texts or axes.get_yticklabels()
    return ["".join(text.get_text().split()) for text in texts]


@pytest.mark.parametrize(("params", "drawn"), [((431_000, 431_100), False), ((431_000, 861_000), True)])
def test_costs_that_hardly_differ_have_no_figure(tmp_path, params, drawn):
    """Its axis would tell 431k from 431.1k."""
    sweep = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"])
    rows = [SimpleNamespace(results=SimpleNamespace(measure=SimpleNamespace(name="bleu", title="BLEU")))]
    record = {"val/bleu.low": 59.0, "val/bleu.high": 61.0, "val/bleu.mean": 60.0, "val/bleu.difference.p": None}
    table = Table([], [record] * 2, [], rows)
    results = {row: {"params": count, "flops": 1.0} for row, count in enumerate(params)}
    sweep = sweep._replace(rows=sweep.rows[:2])
    assert list(_cost_plots(sweep, table, results)) == ["front_params"] * drawn


def points(values):
    return [Point(name, value, value - 1, value + 1, 1e6) for name, value in zip(NAMES, values, strict=False)]


def one_curve_each(values, validations=1):
    steps = [100 * (i + 1) for i in range(validations)]
    return [
        Curve(name, [steps], [[value + 1] * validations], 1000, value)
        for name, value in zip(NAMES, values, strict=False)
    ]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: front(points([60 + 0.01 * i for i in range(20)]), "parameters", "BLEU"),
        lambda: front(points([60.0] * 20), "parameters", "BLEU"),
        lambda: curves(one_curve_each([3 + 0.01 * i for i in range(20)]), "steps", "PPL"),
        lambda: forest(points([0.0] * 20), {}, "BLEU"),
    ],
    ids=["front", "equal points", "curves", "forest"],
)
def test_names_are_whole_and_lie_on_nothing(figure):
    axes = drawn(figure())
    assert all(any("".join(name.split()) in text for text in written(axes)) for name in NAMES)
    boxes = [Text.get_window_extent(text) for text in axes.texts or axes.get_yticklabels()]  # without their lines
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    frame = axes.get_window_extent()
    assert not any(frame.overlaps(box) for box in boxes)  # so no point and no line of the data is under a name


def test_a_curve_of_one_validation_is_seen_with_its_final_score():
    axes = drawn(curves(one_curve_each([3.25]), "steps", "PPL"))
    line, star = axes.lines
    assert list(line.get_xdata()) == [100] and line.get_marker() not in ("", "None", None)
    assert (list(star.get_xdata()), list(star.get_ydata()), star.get_marker()) == ([1000], [3.25], "*")
    assert written(axes)[0].endswith(":3.25")


def test_a_row_without_validations_has_its_final_score_alone():
    axes = drawn(curves([Curve("base", [], [], 1000, 3.25), Curve("h=4", [[10]], [[4.0]], 1000, None)], "steps", "PPL"))
    assert [line.get_marker() for line in axes.lines] == ["*", "s"] and written(axes) == ["h=4", "base:3.25"]


def test_a_curve_that_still_falls_is_marked():
    falling, flat = one_curve_each([3.25, 5.0])
    axes = drawn(curves([falling._replace(still_falls=True), flat], "steps", "PPL"))
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    assert [star.get_markerfacecolor() == "white" for star in stars] == [True, False]
    assert sorted(name.endswith("†") for name in written(axes)) == [False, True]
    names = written(drawn(forest(points([0.0, 1.0]), {}, "BLEU", {NAMES[1]})))
    assert [name.endswith("†") for name in names] == [False, True]


def test_the_figures_of_a_sweep_mark_the_rows_that_had_not_converged(tmp_path):
    """The curve of the row itself; the difference of the row. All rows had 60 sentences of a known score."""
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"])
    for planned in plan_trials(content, tmp_path):
        ended = {"fall": 0.05 if planned.name == "h=4 s1" else 0.0, "noise": None, "validations": 2}
        planned.trial.make()
        counts = [[7, 5, 3, 1, 8, 7, 6, 5, 8, 8]] * 60
        planned.trial.save_sentences("val", ["a"] * 60, "bleu", counts, range(60), [8] * 60)
        planned.trial.finish(a_result(id=planned.identity.trial, steps=700, convergence=ended))
    planned = plan_trials(content, tmp_path)
    figures = draw_sweep_plots(content, planned, table_of(content, planned))
    for name, words in (("curves_steps", "hollow star"), ("differences", "row or base had not converged")):
        assert words in figures[name].explanation
        assert [text for text in written(drawn(figures[name].figure)) if "†" in text] in (["h=4:2.00†"], ["h=4†"])


def test_the_figure_of_differences_says_how_many_rows_it_lacks(tmp_path):
    """One of them has one seed where base has two, so it has no interval."""
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])
    for planned in plan_trials(content, tmp_path):
        if planned.name != "h=4 s2":
            counts = [[7 - planned.config.seed, 5, 3, 1, 8, 7, 6, 5, 8, 8]] * 60
            planned.trial.make()
            planned.trial.save_sentences("val", ["a"] * 60, "bleu", counts, range(60), [8] * 60)
            planned.trial.finish(a_result(id=planned.identity.trial))
    planned = plan_trials(content, tmp_path)
    figure = draw_sweep_plots(content, planned, table_of(content, planned))["differences"]
    assert "1 row without an interval is not shown" in figure.explanation
    assert len(written(drawn(figure.figure))) == 3


def test_spread_apart():
    """Intervals that do not touch stay; others move as little as needed, within 0 and 1."""
    assert spread_apart([0.9, 0.5], [0.1, 0.1]) == [0.9, 0.5]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        wanted = np.sort(rng.uniform(0, 1, 9))[::-1]
        sizes = rng.uniform(0.02, 0.1, 9)
        centres = np.array(spread_apart(wanted, sizes))
        top, bottom = centres + sizes / 2, centres - sizes / 2
        assert (bottom[:-1] >= top[1:] - 1e-9).all() and top[0] <= 1 + 1e-9 and bottom[-1] >= -1e-9


def test_the_numbers_of_an_axis_are_no_formulas():
    axes = drawn(growth({"a": {32: 1e-4, 64: 3e-3, 4096: 9.0}, "b": {32: 2e-3, 64: 4e-3, 4096: 3.0}}))
    labels = [label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_majorticklabels()]
    assert {"32", "1000"} <= set(labels) and "$" not in "".join(labels)
