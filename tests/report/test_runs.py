"""The table of anyone's runs: what is said of its rows, and the command that prints it."""

import csv
import io
import json
import re
import statistics
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import wandb
from helpers import ROOT
from scipy import stats

from tests.report.csv_runs import (
    HEADING,
    OPTIONS,
    SCORES,
    cells_of,
    lines_of,
    printed,
    refused,
    runs_table,
    values,
    write,
)
from transformer_pl.report.reading import read_runs
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.html import page_columns

# --- The numbers


def test_two_rows_are_compared_by_welch_s_t_test(tmp_path):
    """p and the interval are simulated to three digits."""
    path = write(tmp_path, *lines_of({"1": [0.90, 0.93, 0.89, 0.99], "4": [0.94, 0.92, 0.95, 0.96]}))
    table = runs_table(path, OPTIONS | {"base": "1"})
    runs, _ = read_runs(path, ["h"], ["acc"])
    of_base, of_row = ([v for row, v in zip(runs.rows, runs.values["acc"], strict=True) if row == h] for h in "14")
    assert values(table, "acc.mean") == [statistics.fmean(of_base), statistics.fmean(of_row)]
    assert values(table, "acc.sd") == [statistics.stdev(of_base), statistics.stdev(of_row)]
    assert values(table, "acc.difference")[1] == pytest.approx(statistics.fmean(of_row) - statistics.fmean(of_base))
    welch = stats.ttest_ind(of_row, of_base, equal_var=False)
    _, p = values(table, "acc.difference.p")
    assert p == pytest.approx(welch.pvalue, abs=0.005)
    interval = welch.confidence_interval()
    assert values(table, "acc.difference.low")[1] == pytest.approx(interval.low, abs=0.002)
    assert values(table, "acc.difference.high")[1] == pytest.approx(interval.high, abs=0.002)


def test_several_columns_make_a_row_and_each_metric_has_its_test(tmp_path):
    heading = "model,lr,acc,loss"
    rng = np.random.default_rng(1)
    lines = [f"{m},{lr},{rng.normal(ord(m), 0.1)},{rng.normal(5, 1)}" for m in "ab" for lr in (1, 2) for _ in range(3)]
    options = {"row": ("model", "lr"), "metric": ("acc", "loss"), "base": "model=b lr=1", "lower_is_better": ("loss",)}
    table = runs_table(write(tmp_path, *lines, heading=heading), options)
    assert values(table, "name") == ["model=b lr=1", "model=a lr=1", "model=a lr=2", "model=b lr=2"]
    found = [[p < 0.05 for p in values(table, f"{metric}.difference.p")[1:]] for metric in ("acc", "loss")]
    assert found == [[True, True, False], [False] * 3]
    assert any("not for the metrics" in note for note in table.notes)


def test_notes_are_on_each_metric(tmp_path):
    """Whichever comes first: how many rows are tested, which has one run, which equals base, and which is constant."""
    one, other = [1.0, 2.0, 3.0], [1.5, 2.5, 4.0]
    scores = {"base": (one, one), "new": (other, other), "same": (other, one), "fixed": (other, [5.0] * 3)}
    lines = [f"{name},{acc},{loss}" for name, of in scores.items() for acc, loss in zip(*of, strict=True)]
    path = write(tmp_path, *lines, "few,2.0,7.0", "few,3.0,", heading="h,acc,loss")
    for metrics in (("acc", "loss"), ("loss", "acc")):
        (note, *_) = runs_table(path, OPTIONS | {"metric": metrics, "lower_is_better": ("loss",)}).notes
        for said in ("For acc: *: ", "corrected for 4 rows", "For loss: *: ", "corrected for 2 rows", "2 or 3 runs"):
            assert said in note
        for said in ("base in every run, but for rounding: same.", "All runs of fixed give", "A row with one run"):
            assert note.count(said) == 1 and "For loss: " in note.partition(said)[0].rpartition(". ")[2]
    (alone, *_) = runs_table(path, OPTIONS).notes
    assert "For acc" not in alone and "4 rows" in alone


@pytest.mark.parametrize(("lower", "said"), [(False, "better"), (True, "worse")])
def test_a_margin_says_what_is_equal_better_or_worse(tmp_path, lower, said):
    scores = {"base": [5.0, 5.01, 4.99], "same": [5.0, 5.01, 4.99], "high": [6.0, 6.01, 5.99], "wide": [4.0, 5.0, 6.0]}
    options = OPTIONS | {"margin": (("acc", 0.2),), "lower_is_better": lower}
    table = runs_table(write(tmp_path, *lines_of(scores)), options)
    assert values(table, "acc.difference.within.0.2") == ["", "equal", said, "undecided"]


@pytest.mark.parametrize("lost", ["r,failed,hot,0.1,4,6", "r,finished,hot,0.1,4,nan"])
def test_a_row_of_which_a_run_has_no_number_is_never_better(tmp_path, lost):
    """It says how many runs it had, and nobody has planned that base has more of them."""
    scores = {"base": [5.0, 5.01, 4.99, 5.0], "hot": [6.0, 6.01, 5.99]}
    options = OPTIONS | {"margin": (("acc", 0.2),)}
    for more, verdict, runs in (([], "better", "3"), ([lost], "", "3/4")):
        table = runs_table(write(tmp_path, *lines_of(scores), *more), options)
        assert values(table, "acc.difference.within.0.2") == ["", verdict]
        assert next(column.cells for column in table.columns if column.name == "runs") == ["4", runs]
        notes = " ".join(table.notes)
        assert ("No test of hot" in notes) == bool(more) and "more runs" not in notes


def test_each_metric_has_its_direction(tmp_path):
    """One that is called a loss must have one, and only metrics can have one."""
    lines = [f"{h},{s / 9 + (h == 'b')},{s / 9 + (h == 'b')}" for h in ("base", "b") for s in range(4)]
    path = write(tmp_path, *lines, heading="h,acc,val/loss")
    options = OPTIONS | {"metric": ("acc", "val/loss"), "margin": (("acc", 0.1), ("val/loss", 0.1))}
    for lower, said in ((("val/loss",), ["better", "worse"]), (True, ["worse", "worse"])):
        (_, row) = runs_table(path, options | {"lower_is_better": lower}).records
        assert [row[f"{metric}.difference.within.0.1"] for metric in ("acc", "val/loss")] == said
    words = [path, "--row=h", "--metric=acc,val/loss"]
    for given in ([], ["--lower-is-better=acc"]):
        _, _, remedy = refused(*words, *given).strip().rpartition("; add ")
        assert printed(*words, *remedy.split())
    assert "--lower-is-better" in refused("--lower-is-better", *words)


def test_rows_that_could_be_base_are_proposed(tmp_path):
    path = write(tmp_path, "resnet18,0.1,1", "wide one,0.1,2", heading="h,lr,acc")
    summary = runs_table(path, OPTIONS | {"row": ("h", "lr")}).summary
    assert "--base" in summary and "'h=resnet18 lr=0.1', 'h=wide one lr=0.1'" in summary


@pytest.mark.parametrize(
    ("scores", "differences", "noted"),
    [
        ({"base": [1.0], "4": [2.0]}, [None, 1.0], "says nothing about other runs"),
        ({"base": [1.0, 1.0], "4": [1.0, 1.0], "8": [2.0, 2.0]}, [None, 0.0, 1.0], "of base, 4, 8 give the same score"),
        ({"base": [1.0, 1.0 + 1e-8], "4": [1.5 + 1e-8, 1.5]}, [None, 0.5], "of base, 4 give the same score"),
        ({"base": [-1e5, -1e5 - 1e-2], "4": [-2e5 - 1e-2, -2e5]}, [None, -1e5], "of base, 4 give the same score"),
    ],
)
def test_without_variation_between_runs_there_is_no_test(tmp_path, scores, differences, noted):
    """A spread below a millionth of the score is none: it is how numbers are rounded."""
    path = write(tmp_path, *lines_of(scores))
    table = runs_table(path, OPTIONS)
    paired = runs_table(path, OPTIONS | {"seed": "seed", "paired": True}) if "same" in noted else table
    for made in (table, paired):
        assert values(made, "acc.difference") == pytest.approx(differences)
        for key in ("acc.low", "acc.difference.low", "acc.difference.p"):
            assert values(made, key) == [None] * len(scores)
        assert any(noted in note for note in made.notes)
        assert all(len(cell) < 22 for column in made.columns for cell in column.cells)  # no digits of rounding
    assert (values(table, "acc.sd") == [None, None]) == (len(scores["base"]) == 1)


@pytest.mark.parametrize(
    ("scores", "place", "cell"),
    [
        ({"base": [10.1, 10.2, 10.3], "8": [3e28, 3.1e28, 12.0]}, 0, "10.20 ± 0.10"),  # beside a wild row
        ({"base": [0.5] * 3, "4": [0.8] * 3, "8": [0.1, 0.15, 0.2]}, 2, "0.150 ± 0.050"),  # and those that do not vary
    ],
)
def test_a_row_has_the_digits_of_rows_that_are_like_it(tmp_path, scores, place, cell):
    """Though the deviation of three times 0.8 is not computed as 0."""
    table = runs_table(write(tmp_path, *lines_of(scores)), OPTIONS)
    assert next(column.cells for column in table.columns if column.name == "acc")[place] == cell


def test_pairs_that_do_not_vary_are_counted_apart(tmp_path):
    lines = lines_of({"base": [0.5] * 3, "4": [0.8] * 3, "8": [0.1, 0.15, 0.2]})
    said = printed(write(tmp_path, *lines), "--row=h", "--metric=acc", "--pairs", "--format=md")
    assert "2 of 2 pairs" in said and "1 more pair" in said and "-0.350*" in said


def test_runs_that_base_has_more_of_were_not_planned(tmp_path):
    table = runs_table(write(tmp_path, *lines_of({"base": [1.0, 1.1, 0.9], "4": [2.0, 2.2]})), OPTIONS)
    assert values(table, "acc.n") == [3, 2] and not any("more runs" in note for note in table.notes)


def test_a_metric_that_has_the_name_of_another_column_cannot_be_chosen(tmp_path):
    path = write(tmp_path, *lines_of(), heading=HEADING.replace("acc", "p"))
    assert "two columns" in refused(path, "--row=h", "--metric=p", "--base=1", "--columns=row,p")


# --- Pairs


PAIRS_HEADING = "model,env,acc"


def pairs_of(scores, envs="abcdefgh"):
    return [f"{name},{env},{acc!r}" for name, of in scores.items() for env, acc in zip(envs, of, strict=False)]


def test_pairs_are_compared_by_their_differences(tmp_path):
    """Where environments differ more than models."""
    base = [10.0, 20.0, 30.0, 40.0, 50.0]
    row = [score + gain for score, gain in zip(base, [0.8, 1.1, 1.0, 0.9, 1.05], strict=True)]
    path = write(tmp_path, *pairs_of({"base": base, "new": row}), heading=PAIRS_HEADING)
    options = {"row": ("model",), "metric": ("acc",), "seed": "env"}
    assert values(runs_table(path, options), "acc.difference.p")[1] > 0.8
    paired, welch = runs_table(path, options | {"paired": True}), stats.ttest_rel(row, base)
    assert values(paired, "acc.difference.p")[1] == pytest.approx(welch.pvalue, rel=1e-4)
    interval = welch.confidence_interval()
    ends = [values(paired, f"acc.difference.{end}")[1] for end in ("low", "high")]
    assert ends == pytest.approx([interval.low, interval.high], rel=1e-4)
    assert "+0.970*" in next(column.cells for column in paired.columns if column.name == "Δ acc")[1]


@pytest.mark.parametrize(
    ("column", "is_fold"),
    [("fold", True), ("CV_Split", True), ("test-folds", True), ("env", False), ("folding", False), ("seed", False)],
)
def test_pairs_of_folds_have_a_note_on_their_shared_training_data(tmp_path, column, is_fold):
    path = write(tmp_path, *pairs_of({"base": [1.0, 2.0, 3.0], "new": [1.5, 2.4, 3.6]}), heading=f"model,{column},acc")
    table = runs_table(path, {"row": ("model",), "metric": ("acc",), "seed": column, "paired": True})
    assert any("share their training data" in note for note in table.notes) == is_fold


@pytest.mark.parametrize(("count", "is_few"), [(3, True), (5, True), (6, False)])
def test_it_is_said_where_pairs_are_few(tmp_path, count, is_few):
    scores = {name: (np.arange(count) * factor).tolist() for name, factor in (("base", 1.0), ("new", 1.3))}
    path = write(tmp_path, *pairs_of(scores), heading=PAIRS_HEADING)
    options = {"row": ("model",), "metric": ("acc",), "seed": "env"}
    for paired in (True, False):
        notes = " ".join(runs_table(path, options | {"paired": paired}).notes)
        assert ("So few find less" in notes) == (paired and is_few)


def test_a_missing_partner_is_named_and_its_run_does_not_count(tmp_path):
    scores = {"base": [10.0, 20.0, 30.0, 40.0], "new": [11.0, 21.2, 31.1, 99.0], "old": [0.0, 9.0, 0.0, 30.5]}
    lines = pairs_of(scores)
    del lines[8], lines[3]  # base's d, and old's a
    path = write(tmp_path, *lines[::-1], heading=PAIRS_HEADING)
    options = {"row": ("model",), "metric": ("acc",), "seed": "env", "paired": True}
    table = runs_table(path, options)
    by_name = {record["name"]: record for record in table.records}
    assert by_name["new"]["acc.difference"] == pytest.approx(1.1)
    assert by_name["old"]["acc.difference"] == pytest.approx((9.0 - 20.0 + 0.0 - 30.0) / 2)
    p = stats.ttest_rel([11.0, 21.2, 31.1], [10.0, 20.0, 30.0]).pvalue
    alone = runs_table(write(tmp_path, *lines[:6], heading=PAIRS_HEADING), options)
    assert values(alone, "acc.difference.p")[1] == pytest.approx(p, rel=1e-3)
    assert any("base has no env d" in note and "old has no env a" in note for note in table.notes)


def test_a_missing_partner_is_named_with_its_metric_where_there_are_several(tmp_path):
    lines = ["base,a,1,1", "base,b,2,2", "base,c,3,3", "new,a,2,3", "new,b,3,", "new,c,5,4"]
    path = write(tmp_path, *lines, heading="model,env,acc,loss")
    options = {
        "row": ("model",),
        "metric": ("acc", "loss"),
        "seed": "env",
        "paired": True,
        "lower_is_better": ("loss",),
    }
    assert any("for loss new has no env b" in note for note in runs_table(path, options).notes)
    (alone,) = (note for note in runs_table(path, options | {"metric": ("loss",)}).notes if "partner" in note)
    assert "missing: new has no env b" in alone


# --- Items, such as questions


ITEMS = {"row": ("model",), "metric": ("acc",), "item": ("task", "q"), "seed": "seed"}


def lines_of_items(scores, seed=4):
    """A line for each number of {row: (runs, items)}, in any order."""
    numbered = [(row, *place, value) for row, of in scores.items() for place, value in np.ndenumerate(of)]
    lines = [f"{row},{run},{'xy'[n % 2]},{n // 2},{value:.17g}" for row, run, n, value in numbered]
    return np.random.default_rng(seed).permutation(lines)


def items_table(tmp_path, scores, **more):
    return runs_table(write(tmp_path, *lines_of_items(scores), heading="model,seed,task,q,acc"), ITEMS | more)


def test_one_run_each_is_compared_item_by_item(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.normal(0.5, 0.3, (1, 60))
    row = base + rng.normal(0.05, 0.1, (1, 60))
    table, paired = items_table(tmp_path, {"base": base, "b": row}), stats.ttest_rel(row[0], base[0])
    assert values(table, "acc.difference.p")[1] == pytest.approx(paired.pvalue, rel=0.01)
    assert values(table, "acc.difference.high")[1] == pytest.approx(paired.confidence_interval().high, rel=0.01)
    with pytest.raises(InputError, match="two runs or more"):
        items_table(tmp_path, {"base": base, "b": row}, pairs=True)


def test_items_without_an_effect_leave_the_test_of_runs(tmp_path):
    """And runs that do not vary leave that of items. Both together find less."""
    rng = np.random.default_rng(5)
    runs = {"base": rng.normal(0.5, 0.02, 4), "b": rng.normal(0.55, 0.02, 4)}
    by_run = {name: np.repeat(of[:, None], 40, 1) for name, of in runs.items()}
    welch = stats.ttest_ind(runs["b"], runs["base"], equal_var=False).pvalue
    p = values(items_table(tmp_path, by_run), "acc.difference.p")[1]
    assert p == pytest.approx(welch, abs=0.005)
    items = {"base": rng.normal(0, 0.3, 40), "b": rng.normal(0, 0.3, 40)}
    both = {name: by_run[name] + items[name] - items[name].mean() for name in runs}
    table = items_table(tmp_path, both)
    assert values(table, "acc.difference.p")[1] > 2 * p
    assert values(table, "acc.mean") == pytest.approx([of.mean() for of in runs.values()])
    assert values(table, "acc.n") == [4, 4] and cells_of(table, "runs") == ["4", "4"]


def test_a_run_has_all_items_or_none(tmp_path):
    scores = {"base": np.random.default_rng(1).normal(size=(3, 30)), "b": np.random.default_rng(2).normal(size=(3, 30))}
    scores["b"][1] = np.nan
    table = items_table(tmp_path, scores)
    assert cells_of(table, "runs") == ["3", "2/3"] and any("1 run without acc: b (1)" in note for note in table.notes)
    scores["b"][2, 5] = np.nan
    with pytest.raises(InputError, match="task=y q=2"):
        items_table(tmp_path, scores)
    with pytest.raises(InputError, match="differ in row or seed"):
        items_table(tmp_path, scores, item=("task",))


def test_intervals_by_cluster_hold_where_those_by_item_do_not(tmp_path):
    """In 60 files of a row that does not differ, with six items in each of 30 clusters."""
    rng, held = np.random.default_rng(7), {"item": 0, "cluster": 0}
    for _ in range(60):
        base = rng.normal(0, 1, (30, 6))
        row = base + rng.normal(0, 0.5, (30, 1)) + rng.normal(0, 0.5, (30, 6))
        numbered = [(name, *place, x) for name, of in (("base", base), ("b", row)) for place, x in np.ndenumerate(of)]
        lines = [
            f"{name},{cluster},{item},{x:.6f}" for name, cluster, item, x in rng.permutation(np.array(numbered, object))
        ]
        path = write(tmp_path, *lines, heading="model,text,q,acc")
        for unit, by in (("item", {}), ("cluster", {"cluster": ("text",)})):
            table = runs_table(path, {"row": ("model",), "metric": ("acc",), "item": ("text", "q")} | by)
            held[unit] += values(table, "acc.difference.low")[1] < 0 < values(table, "acc.difference.high")[1]
            assert values(table, "acc.mean")[1] == pytest.approx(row.mean(), abs=1e-6)
    assert held["cluster"] >= 52 and held["item"] < 48  # 57 are expected; fewer than 52 in one of 100 tests


def test_a_cluster_of_each_item_is_the_item(tmp_path):
    """And in clusters of several sizes each item has the same weight."""
    rng = np.random.default_rng(2)
    scores = {"base": rng.normal(size=(3, 400)), "b": rng.normal(size=(3, 400))}
    by_item, alike = items_table(tmp_path, scores), items_table(tmp_path, scores, cluster=("q", "task"))
    for end in ("low", "high"):
        assert values(alike, f"acc.{end}") == pytest.approx(values(by_item, f"acc.{end}"), rel=1e-9)
    lines = [f"{line},{int(line.split(',')[3]) // 9}" for line in lines_of_items(scores)]
    path = write(tmp_path, *lines, heading="model,seed,task,q,acc,text")
    uneven = runs_table(path, ITEMS | {"cluster": ("text",)})
    assert values(uneven, "acc.mean") == pytest.approx([of.mean() for of in scores.values()])
    assert ["clusters" in " ".join(table.notes) for table in (by_item, uneven)] == [False, True]


@pytest.mark.parametrize(
    ("words", "changed", "named"),
    [
        (["--item=q", "--cluster=txt"], {}, ["txt", "text"]),
        (["--cluster=text"], {}, ["--cluster", "--item"]),
        (["--item=q", "--cluster=text"], {(3, "text"): ""}, ["line 5", "text"]),
        (["--item=q", "--cluster=text"], {(90, "text"): "99"}, ["line 92", "99", "--item"]),  # in the other row
        (["--item=q", "--cluster=part"], {}, ["--cluster part", "20"]),  # two clusters
        (["--std=acc", "--n=3", "--cluster=text"], {}, ["--cluster"]),
    ],
)
def test_clusters_that_are_none_are_refused(tmp_path, words, changed, named):
    table = [
        {"model": m, "q": f"q{i}", "text": str(i // 2), "part": str(i % 2), "acc": i * i % 7}
        for m in ("base", "b")
        for i in range(60)
    ]
    for (line, column), cell in changed.items():
        table[line][column] = cell
    path = write(tmp_path, *(",".join(map(str, line.values())) for line in table), heading=",".join(table[0]))
    said = refused(path, "--row=model", "--metric=acc", *words)
    assert all(name in said for name in named), said


@pytest.mark.parametrize(
    ("form", "number", "is_refused"),
    [
        ("{i},{x}", 60, True),  # the same questions in all rows
        ("{row}{i},{x}", 60, False),  # an id of runs
        ("{i},{x}", 50, False),
        ("{row}{i},{bit}", 60, True),  # right or wrong
    ],
)
def test_more_lines_than_anybody_trains_are_told_apart_by_seeds_or_items(tmp_path, form, number, is_refused):
    rng = np.random.default_rng(3)
    lines = [
        f"{row},{form.format(row=row, i=i, x=rng.normal(), bit=rng.integers(2))}" for row in "ab" for i in range(number)
    ]
    path = write(tmp_path, *lines, heading="model,id,acc")
    words = [path, "--row=model", "--metric=acc", "--base=a"]
    assert ("--item" in refused(*words)) if is_refused else printed(*words)
    if is_refused and "bit" not in form:
        path.write_text("\n".join([path.read_text(), *lines]))  # two runs, which the questions do not tell apart
        assert "--item id" in (said := refused(*words)) and "--seed id" not in said
        path = write(tmp_path, *lines, heading="model,id,acc")
    if "bit" in form:  # also where no other column is there
        path.write_text("\n".join(re.sub(",.*,", ",", line) for line in path.read_text().splitlines()))
        assert "--item" in refused(*words)
        path = write(tmp_path, *lines, heading="model,id,acc")
    assert printed(*words, "--seed=id")  # whoever says so is believed
    if "{row}" not in form:
        assert printed(*words, "--item=id")


# --- One run against many


def test_one_run_is_inside_or_outside_of_base_s_runs(tmp_path):
    """By the t of one more run of base, corrected for the rows with one run. It has no star, and no summary."""
    of_base, ones = [1.0, 1.1, 0.9, 1.05, 0.97], {"near": 1.2, "far": 1.25, "farther": -4.0}
    path = write(tmp_path, *lines_of({"base": of_base} | {name: [one] for name, one in ones.items()}))
    table = runs_table(path, OPTIONS)
    scale = np.std(of_base, ddof=1) * np.sqrt(1 + 1 / 5)
    p = 2 * stats.t.sf(abs(np.subtract([*ones.values()], np.mean(of_base))) / scale, 4)
    assert p[0] < 0.1 and 0.025 < p[1] < 0.05  # so that the correction decides
    corrected = [max(p * [1, 2, 3]), max(p[1:] * [2, 3]), p[2] * 3]  # Holm's; the last is the smallest
    assert values(table, "acc.one_run.p")[1:] == pytest.approx(corrected)
    assert values(table, "acc.one_run") == [None, "within base's runs", "within base's runs", "outside base's runs"]
    for key in ("acc.difference.p", "acc.difference.low"):
        assert values(table, key) == [None] * 4
    assert table.summary == "" and "*" not in "".join(cell for column in table.columns for cell in column.cells)
    rng = np.random.default_rng(0)
    runs, one = rng.normal(size=(100_000, 5)), 3 * rng.normal(size=100_000)  # which spreads three times as far
    t = (one - runs.mean(1)) / np.sqrt(runs.var(1, ddof=1) * (1 + 1 / 5))
    share = np.mean(2 * stats.t.sf(abs(t), 4) < 0.05)
    assert any(f"in {share:.0%} of cases".replace("%", " %") in note for note in table.notes)


def test_a_row_whose_other_run_has_no_number_says_nothing(tmp_path):
    path = write(tmp_path, *lines_of({"base": [1.0, 1.1], "8": [5.0]}), "x,finished,8,0.1,2,NaN")
    assert "acc.one_run" not in runs_table(path, OPTIONS).records[1]


# --- The command


@pytest.mark.parametrize("form", ["json", "md"])
def test_pairs_say_what_was_left_out(tmp_path, form):
    """As the usual table does; and in every format what was found."""
    lines = [f"finished,{h},{lr},{h * lr + s / 9}" for h in (1, 2) for lr in (1, 3) for s in (0, 1, 2)]
    path = write(tmp_path, *lines, "crashed,1,1,0", "finished,1,1,", heading="State,h,lr,acc")
    text = printed(path, "--row=h,lr", "--metric=acc", "--pairs", f"--format={form}")
    assert all(said in text for said in ("1 crashed", "h=1 lr=1 (line 15)", "of 6 pairs"))


def test_every_format_has_the_table(tmp_path):
    path = write(tmp_path, *lines_of())
    words = [path, "--row=h", "--metric=acc", "--seed=seed", "--base=1"]
    for form in ("terminal", "md", "tex"):
        text = printed(*words, f"--format={form}")
        assert "0.930" in text and "4" in text and "runs" in text
    (first, *_) = csv.DictReader(io.StringIO(printed(*words, "--format=csv")))
    assert first["name"] == "1" and float(first["acc.mean"]) == pytest.approx(0.9)
    assert len(json.loads(printed(*words, "--format=json"))["rows"]) == 3
    several = page_columns(runs_table(path, {"row": ("h",), "metric": ("acc", "seed"), "base": "1"}))
    assert [one.column.name for one in several if not one.folded][:3] == ["row", "acc", "Δ acc"]
    assert {one.below.name for one in several if one.below} >= {"acc 95 %", "seed 95 %"}
    page = printed(*words, "--format=html").strip()
    assert page == str(tmp_path / "runs.report" / "report.html")
    text = (tmp_path / "runs.report" / "report.html").read_text()
    assert "<svg" in text and "0.930" in text and (tmp_path / "runs.report/figures/differences.pdf").exists()


def test_a_table_that_is_too_wide_keeps_the_names_of_its_rows_and_its_last_column(tmp_path, monkeypatch):
    """That of several metrics has two columns for each, and that of pairs a column for each row."""
    monkeypatch.setenv("COLUMNS", "40")
    metrics = [f"accuracy_{i}" for i in range(4)]
    lines = [",".join([f"m{i}", *(f"{i + s / 9}" for _ in metrics)]) for i in range(7) for s in (1, 2)]
    path = write(tmp_path, *lines, heading=",".join(["h", *metrics]))
    for words in ([f"--metric={','.join(metrics)}", "--base=m0"], ["--metric=accuracy_0", "--pairs"]):
        _, _, grid = printed(path, "--row=h", *words).rpartition("\u2500")
        (line,) = (line for line in grid.splitlines() if "m6" in line)
        assert line.split()[-1].startswith("+1.00" if "--pairs" in words else "+6.00")


class FakeApi:
    """What W&B's API answers, as its documentation has it: no server is here to ask."""

    asked = []

    def runs(self, path, filters):
        self.asked.append((path, filters))
        if "nothing" in str(filters):
            return []
        if "steps" in str(filters):  # finished ones, which stopped at the same steps
            summary = [(h, {"acc": acc, "_step": acc}) for h in "ab" for acc in (1, 2)]
            return [SimpleNamespace(name=h, state="finished", config={"h": h}, summary=of) for h, of in summary]
        if "broken" in str(filters):
            raise ConnectionError("no answer")
        return [
            SimpleNamespace(
                name=f"{h}-{s}",
                state="crashed" if s == 4 else "finished",
                config={"h": h, "seed": s, "lr": 0.1, "model": {"width": 8, "state": "zeros"}},
                summary={"acc": acc, "_step": 9, "lr": 1e-5, "val/acc": {"max": acc}},
            )
            for h, values in SCORES.items()
            for s, acc in enumerate([*values[:3], 0.0], start=1)
        ]


def test_runs_of_a_group_online_make_the_same_table(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "Api", FakeApi)
    words = ["--row=h", "--metric=acc", "--seed=seed", "--base=1", "--format=csv"]
    crashed = [f"run-{h}-4,crashed,{h},0.1,4,0.0" for h in SCORES]
    online, local = (printed(of, *words) for of in ("wandb://me/project/group", write(tmp_path, *lines_of(), *crashed)))
    assert online == local and FakeApi.asked[-1][0] == "me/project" and "group" in str(FakeApi.asked[-1][1])
    address = "wandb://me/project/group"
    notes = json.loads(printed(address, *words[:-1], "--format=json"))["notes"]
    assert any("3 runs left out: 3 crashed" in note for note in notes)
    assert "summary.lr" in refused(address, "--row=lr", "--metric=acc")
    nested = printed(address, "--row=h,model.width,config.lr", "--metric=val/acc.max,summary.lr", "--format=csv")
    assert "h=4 model.width=8 config.lr=0.1,0.93" in nested and "1e-05" in nested
    monkeypatch.chdir(tmp_path)  # where the page is, whatever the name of the group
    for group in ("lr0.1", "lr0.2"):
        page = printed(f"wandb://me/project/{group}", *words[:-1], "--format=html")
        assert page == f"{group}.report/report.html\n"
    for address, named in (("me/project", "GROUP"), ("me", "GROUP"), ("me/project/exp/lr 0.1", "")):
        asked = len(FakeApi.asked)
        assert named in (refused if named else printed)(f"wandb://{address}", *words)
        assert named or FakeApi.asked[asked:] == [
            ("me/project", {"$or": [{k: "exp/lr 0.1"} for k in ("group", "sweep")]})
        ]
    assert "a,1.5" in printed("wandb://me/project/steps", "--row=h", "--metric=acc", "--format=csv")
    for group, named in (("nothing", "no runs"), ("broken", "no answer")):
        assert named in refused(f"wandb://me/project/{group}", *words)


def test_nothing_slow_is_imported(tmp_path):
    path = write(tmp_path, *lines_of())
    code = (
        "import sys; from transformer_pl.report.__main__ import main; "
        f"main([{str(path)!r}, '--row=h', '--metric=acc', '--base=1']); "
        "print(sorted({'torch', 'lightning', 'wandb', 'optuna', 'matplotlib'} & sys.modules.keys()))"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert completed.stdout.rstrip().endswith("[]"), completed.stderr


def test_rows_that_could_each_be_base_keep_their_names(tmp_path):
    path = write(tmp_path, *lines_of({"base": [0.1, 0.2, 0.3], "baseline": [0.5, 0.6, 0.7]}))
    words = [path, "--row=h", "--metric=acc"]
    first, *_ = printed(*words, "--base=baseline", "--format=md").splitlines()
    assert "base is" in first and "than base (baseline)" in first
    (pair,) = csv.DictReader(io.StringIO(printed(*words, "--pairs", "--format=csv")))
    assert {pair["row"], pair["other"]} == {"base", "baseline"}
