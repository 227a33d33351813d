"""The figures of a sweep: names that can be told apart and lie on nothing, curves from one measurement on."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import ROOT, a_result
from made_rows import PPL, sweep_table
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from shipped_components import marks_of

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.table.figures import curves, draw_sweep_plots, forest, front, save
from transformer_pl.table.row import Contrast, Outcome, Printed, PrintedTable, Row
from transformer_pl.table.statistics import Estimate
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.runs_folder import RunsFolder

BLEU = Outcome("val/bleu", "BLEU")
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


def contrast(name, score, params=1e6, ppl=3.0, error=1.0, is_outlier=False, printed=None, seeds=()):
    """A row beside a base of 60. error: the standard error of its difference. printed: the paper's difference. seeds:
    the perplexity of each by step."""
    values = {"val/bleu": [score], "val/ppl": [ppl]}
    printed = None if printed is None else Printed("A", printed)
    losses = [{step: math.log(one) for step, one in seed.items()} for seed in seeds]
    known = {"flops": 1e9, "scored_steps": [1000], "losses": losses, "is_base": name == "base"}
    row = Row(name=name, values=values, params=int(params), printed=printed, **known)
    mean, change = Estimate(score, (), 1.0, 50), Estimate(score - 60, (), error, 50)
    return Contrast(row, BLEU, score - 60, mean, change, 0.5, is_outlier)


PAPER = PrintedTable("a paper", Printed("base", 0.0))
ROWS = [
    contrast(name, 60 + 0.01 * i, 1e6 + 1e5 * i, 3 + 0.01 * i, seeds=[{100: 4.0 + i}]) for i, name in enumerate(NAMES)
]
TITLED = [replace(one, row=replace(one.row, name=f"d_k={i}", own_name=one.row.title)) for i, one in enumerate(ROWS)]


@pytest.mark.parametrize(
    "figure",
    [
        lambda rows: front(rows, "params", "parameters").figure,
        lambda rows: curves(rows).figure,
        lambda rows: forest(rows).figure,
    ],
    ids=["front", "curves", "forest"],
)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ROWS, id="names"),
        pytest.param(TITLED, id="the user's names", marks=marks_of("transformer_pl/table/figures.py")),
    ],
)
def test_names_are_whole_and_lie_on_nothing(figure, rows):
    axes = drawn(figure(rows))
    assert all(any("".join(name.split()) in text for text in written(axes)) for name in NAMES)
    boxes = [Text.get_window_extent(text) for text in names_of(axes)]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    frame = axes.get_window_extent()
    assert not any(frame.overlaps(box) for box in boxes)  # so no point and no line of the data is under a name


@pytest.mark.parametrize("is_outlier", [False, True])
def test_the_interval_of_a_wild_row_leaves_room_for_the_others(is_outlier):
    wild = contrast("big", 52, error=9.0, is_outlier=is_outlier, printed=0.6)
    low, high = drawn(forest([*ROWS, wild], PAPER).figure).get_xlim()
    assert low < -8 and (low > -11 and high < 5) == is_outlier


@pytest.mark.parametrize(("far", "is_shown"), [([48], True), ([30], False), ([30, 90], False), ([30, 29, 28], False)])
def test_rows_that_would_stretch_the_axis_more_than_fourfold_are_left_out_and_named(far, is_shown):
    """However many they are, up to a half, and on whatever side."""
    drawing = forest([*ROWS[:4], *(contrast(f"far{score}", score) for score in far)])
    axes, names = drawn(drawing.figure), [f"far{score} ({score - 60:+.1f})" for score in far]
    low, high = axes.get_xlim()
    assert (high - low > 10) == is_shown == any("far" in name for name in written(axes))
    assert all((name in drawing.explanation) != is_shown for name in names)
    assert len(drawn(forest([contrast("far", 30)]).figure).get_yticks()) == 1  # of one row there is a picture


@pytest.mark.parametrize("is_outlier", [False, True])
def test_an_interval_that_is_cut_ends_in_arrows_at_the_edges(is_outlier):
    axes = drawn(forest([*ROWS, contrast("big", 60, error=9.0, is_outlier=is_outlier)]).figure)
    marks = [tuple(offset) for one in axes.collections for offset in one.get_offsets() if offset[0] in axes.get_xlim()]
    assert [x for x, _ in marks] == ([*axes.get_xlim()] if is_outlier else [])
    assert all(y == axes.get_yticks()[-1] for _, y in marks)


def test_each_seed_is_a_dot_by_its_difference_from_the_mean_of_base():
    one = contrast("a", 61)
    seeds = replace(one, row=replace(one.row, values=one.row.values | {"val/bleu": [59, 61, 63]}))
    axes = drawn(forest([seeds]).figure)
    assert any(sorted(dots.get_offsets()[:, 0]) == [-1, 1, 3] for dots in axes.collections)


def test_a_picture_is_the_same_each_time(tmp_path):
    """So that a page changes only with its results."""
    rows = [contrast("a", 61), contrast("b", 62)]
    saved = [save(forest(rows).figure, tmp_path / name) for name in ("one", "other")]
    for kind in (".svg", ".pdf", ".png"):
        assert len({path.with_suffix(kind).read_bytes() for path in saved}) == 1


def test_a_cross_at_zero_is_in_the_picture_where_one_interval_is_not():
    rows = [contrast("a", 70, printed=0.0), contrast("b", 71), contrast("big", 72, error=9.0, is_outlier=True)]
    low, _ = drawn(forest(rows, PAPER).figure).get_xlim()
    assert low < 0


@pytest.mark.parametrize("printed", [[None, None], [None, 0.0], [0.5, -0.5]])
def test_crosses_are_explained_where_there_are_some(printed):
    rows = [contrast("a", 59, printed=printed[0]), contrast("b", 61, printed=printed[1])]
    axes = drawn(forest(rows, PAPER).figure)
    crosses = axes.collections[-1].get_offsets()
    has_some = any(one is not None for one in printed)
    assert ("cross" in axes.get_xlabel()) == has_some == bool(crosses.count())


def test_a_cross_stands_at_the_ratio_of_perplexities_where_ours_are_ratios():
    """The paper's row has 5.29 where its base has 4.92, and a BLEU that is 0.9 lower."""
    printed = PrintedTable("a paper", Printed("base", 25.8, 4.92))
    row = Row(name="h=1", values={"val/loss": [1.1]}, printed=Printed("A", 24.9, 5.29))
    ours = Contrast(row, PPL, 0.1, estimate=Estimate(0.1, (), 0.01, 50))
    axes = drawn(forest([ours], printed).figure)
    ((x, _),) = axes.collections[-1].get_offsets()
    assert x == pytest.approx(5.29 / 4.92)


def test_the_pareto_front_is_filled():
    rows = [contrast("a", 60, 1e6), contrast("b", 59, 2e6), contrast("c", 62, 4e6), contrast("d", 62, 5e6)]
    axes = drawn(front(rows, "params", "parameters").figure)
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [mark.get_markerfacecolor() != "white" for mark in marks] == [True, False, True, False]
    assert front([rows[0], contrast("same", 61, 1e6)], "params", "parameters") is None


def test_a_curve_of_one_validation_is_seen_with_its_final_score():
    rows = [contrast("one", 60, ppl=3.25, seeds=[{100: 4.25}]), contrast("none", 60, seeds=[{}])]
    axes = drawn(curves(rows).figure)
    line, star = axes.lines
    assert list(line.get_xdata()) == [100] and line.get_marker() not in ("", "None", None)
    assert (list(star.get_xdata()), list(star.get_ydata()), star.get_marker()) == ([1000], [3.25], "*")
    assert written(axes) == ["one:3.25"]
    assert curves(rows[1:]) is None


def test_the_shaded_area_reaches_from_the_lowest_to_the_highest_seed():
    by_seed = [{10: 4.0, 20: 3.0}, {10: 6.0, 20: 5.0, 30: 1.0}]
    axes = drawn(curves([contrast("base", 60, seeds=by_seed)]).figure)
    assert axes.lines[0].get_ydata() == pytest.approx([5.0, 4.0])  # at the validations that both seeds have
    assert axes.lines[1].get_ydata() == pytest.approx([4.0, 4.0])  # base's last loss, across the picture
    (area,) = axes.collections
    corners = {tuple(corner.round(9)) for corner in area.get_paths()[0].vertices}
    assert corners >= {(10, 4), (10, 6), (20, 3), (20, 5)}


def test_the_figures_of_a_sweep_are_of_its_rows(tmp_path):
    """h = 16 has one seed where base has two, so it has no interval; h = 32 is larger."""
    sweep = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])
    for planned in plan_trials(sweep, RunsFolder(tmp_path)):
        if planned.name != "h=16 s2":
            sentences = np.array(
                [[one[0] - planned.config.seed - planned.place, *one[1:], n, 8] for n, one in enumerate(KNOWN)]
            )
            planned.folder.make()
            planned.folder.save_sentences("val", ["a"] * 60, Translation.measure, sentences)
            params = 861_000 if planned.name.startswith("h=32 ") else 431_000
            planned.folder.finish(a_result(id=planned.id, steps=700, params=params, losses={350: 1.1}))
    planned = plan_trials(sweep, RunsFolder(tmp_path))
    figures = draw_sweep_plots(sweep_table((sweep, planned))[0])
    assert set(figures) == {"differences", "curves_steps", "front_params"}  # FLOPs are equal
    assert written(drawn(figures["differences"].figure)) == ["(A)h=1", "(A)h=32", "(A)h=4"]
    assert written(drawn(figures["curves_steps"].figure)) == sorted(f"{row.name}:2.00" for row in sweep.rows)


@pytest.mark.parametrize("draw", [curves, lambda rows: front(rows, "params", "parameters")], ids=["curves", "front"])
def test_a_legend_names_base_and_the_rows_that_differ_most(draw):
    rows = [contrast("base", 60, seeds=[{100: 4.0}])]
    rows += [contrast(f"h={h}", 60 + h, 1e6 * (h + 21), seeds=[{100: 25.0 + h}]) for h in range(-20, 21) if h]
    legend = drawn(draw(rows).figure).get_legend()
    names = {text.get_text().split(":")[0] for text in legend.get_texts()}
    assert len(names) == 20 and names >= {"base", *(f"h={h}" for h in (*range(-20, -11), *range(12, 21)))}
    assert str(len(rows) - 20) in legend.get_title().get_text()
