"""The figures of a sweep: names that can be told apart and lie on nothing, curves from one measurement on."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers import ROOT, a_result
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from transformer_pl.config import Config
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.columns import table_of
from transformer_pl.report.figures import curves, draw_sweep_plots, forest, front
from transformer_pl.report.rows import RowResults, TableRow
from transformer_pl.report.statistics import Estimate, RowComparison
from transformer_pl.tasks.translation import Translation

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
    return sorted("".join(text.get_text().split()) for text in names_of(axes))


def table_row(name, score, params=1e6, ppl=3.0, error=1.0, is_outlier=False):
    """A row beside a base of 60. error: the standard error of its difference."""
    metrics = {"val/bleu": score, "val/ppl": ppl}
    result = a_result(metrics=metrics, params=int(params), flops=1e9, steps=1000)
    base = RowResults(Config(), [a_result(metrics={"val/bleu": 60.0, "val/ppl": 3.0})], ["done"])
    compared = RowComparison(Estimate(score, (), 1.0, 50), Estimate(score - 60, (), error, 50), 0.5, is_outlier)
    results = RowResults(Config(), [result], ["done"], name=name)
    return TableRow(results, {}, None, False, base, compared, None)


ROWS = [table_row(name, 60 + 0.01 * i, 1e6 + 1e5 * i, 3 + 0.01 * i) for i, name in enumerate(NAMES)]
TITLED = [replace(row, results=row.results._replace(name=f"d_k={i}", title=row.title)) for i, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    "figure",
    [
        lambda rows: front(rows, "params", "parameters").figure,
        lambda rows: curves(rows, [[{100: row.results.params}] for row in rows]).figure,
        lambda rows: forest(rows, [None] * len(rows)).figure,
    ],
    ids=["front", "curves", "forest"],
)
@pytest.mark.parametrize("rows", [ROWS, TITLED], ids=["names", "the user's names"])
def test_names_are_whole_and_lie_on_nothing(figure, rows):
    axes = drawn(figure(rows))
    assert all(any("".join(name.split()) in text for text in written(axes)) for name in NAMES)
    boxes = [Text.get_window_extent(text) for text in names_of(axes)]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    frame = axes.get_window_extent()
    assert not any(frame.overlaps(box) for box in boxes)  # so no point and no line of the data is under a name


@pytest.mark.parametrize("is_outlier", [False, True])
def test_the_interval_of_a_wild_row_leaves_room_for_the_others(is_outlier):
    wild = table_row("big", 40, error=30.0, is_outlier=is_outlier)
    low, high = drawn(forest([*ROWS, wild], [None] * len(ROWS) + [0.6]).figure).get_xlim()
    assert low < -20 and (low > -25 and high < 5) == is_outlier


def test_a_cross_at_zero_is_in_the_picture_where_one_interval_is_not():
    rows = [table_row("a", 70), table_row("b", 71), table_row("big", 72, error=30.0, is_outlier=True)]
    low, _ = drawn(forest(rows, [0.0, None, None]).figure).get_xlim()
    assert low < 0


@pytest.mark.parametrize("printed", [[None, None], [None, 0.0], [0.5, -0.5]])
def test_crosses_are_explained_where_there_are_some(printed):
    rows = [table_row("a", 59), table_row("b", 61)]
    axes = drawn(forest(rows, printed).figure)
    crosses = axes.collections[-1].get_offsets()
    has_some = any(one is not None for one in printed)
    assert ("cross" in axes.get_xlabel()) == has_some == bool(crosses.count())


def test_the_pareto_front_is_filled():
    rows = [table_row("a", 60, 1e6), table_row("b", 59, 2e6), table_row("c", 62, 4e6), table_row("d", 62, 5e6)]
    axes = drawn(front(rows, "params", "parameters").figure)
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [mark.get_markerfacecolor() != "white" for mark in marks] == [True, False, True, False]
    assert front([rows[0], table_row("same", 61, 1e6)], "params", "parameters") is None


def test_a_curve_of_one_validation_is_seen_with_its_final_score():
    rows = [table_row("one", 60, ppl=3.25), table_row("none", 60)]
    axes = drawn(curves(rows, [[{100: 4.25}], [{}]]).figure)
    line, star = axes.lines
    assert list(line.get_xdata()) == [100] and line.get_marker() not in ("", "None", None)
    assert (list(star.get_xdata()), list(star.get_ydata()), star.get_marker()) == ([1000], [3.25], "*")
    assert written(axes) == ["one:3.25"]
    assert curves(rows, [[], []]) is None


def test_the_shaded_area_reaches_from_the_lowest_to_the_highest_seed():
    by_seed = [{10: 4.0, 20: 3.0}, {10: 6.0, 20: 5.0, 30: 1.0}]
    axes = drawn(curves([table_row("base", 60)], [by_seed]).figure)
    assert list(axes.lines[0].get_ydata()) == [5.0, 4.0]  # at the validations that both seeds have
    (area,) = axes.collections
    assert {tuple(corner) for corner in area.get_paths()[0].vertices} >= {(10, 4), (10, 6), (20, 3), (20, 5)}


def test_the_figures_of_a_sweep_are_of_its_rows(tmp_path):
    """h = 16 has one seed where base has two, so it has no interval; h = 32 is larger."""
    sweep = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])
    for planned in plan_trials(sweep, tmp_path):
        if planned.name != "h=16 s2":
            sentences = np.array(
                [[one[0] - planned.config.seed - planned.row, *one[1:], n, 8] for n, one in enumerate(KNOWN)]
            )
            planned.trial.make()
            planned.trial.save_sentences("val", ["a"] * 60, Translation.measure, sentences)
            line = '{"step": 350, "kind": "validation", "val/ppl": 3.0}\n'
            (planned.trial.folder / "metrics.jsonl").write_text(line)
            params = 861_000 if planned.name.startswith("h=32 ") else 431_000
            planned.trial.finish(a_result(id=planned.identity.trial, steps=700, params=params))
    planned = plan_trials(sweep, tmp_path)
    figures = draw_sweep_plots(planned, table_of(sweep, planned))
    assert set(figures) == {"differences", "curves_steps", "front_params"}  # FLOPs are equal
    assert written(drawn(figures["differences"].figure)) == ["(A)h=1", "(A)h=32", "(A)h=4"]
    assert written(drawn(figures["curves_steps"].figure)) == sorted(f"{row.name}:2.00" for row in sweep.rows)
