"""The table of anyone's runs: what is said of its rows, and the command that prints it."""

import csv
import io
import json
import statistics
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import wandb
from helpers import ROOT
from scipy import stats

from tests.report.csv_runs import HEADING, OPTIONS, SCORES, lines_of, printed, refused, runs_table, values, write
from transformer_pl.report.reading import read_runs
from transformer_pl.table.html import page_columns

# --- The numbers


def test_two_rows_are_compared_by_welch_s_t_test(tmp_path):
    """p and the interval are simulated to three digits."""
    path = write(tmp_path, *lines_of({"1": [0.90, 0.93, 0.89, 0.99], "4": [0.94, 0.92, 0.95, 0.96]}))
    table = runs_table(path, OPTIONS | {"base": "1"})
    of_base, of_row = (
        [run.values["acc"] for run in read_runs(path, ["h"], ["acc"])[0] if run.row == h] for h in ("1", "4")
    )
    assert values(table, "acc.mean") == [statistics.fmean(of_base), statistics.fmean(of_row)]
    assert values(table, "acc.sd") == [statistics.stdev(of_base), statistics.stdev(of_row)]
    assert values(table, "acc.difference")[1] == pytest.approx(statistics.fmean(of_row) - statistics.fmean(of_base))
    welch = stats.ttest_ind(of_row, of_base, equal_var=False)
    _, p = values(table, "acc.difference.p")
    assert p == pytest.approx(welch.pvalue, abs=0.005)
    interval = welch.confidence_interval()
    assert values(table, "acc.difference.low")[1] == pytest.approx(interval.low, abs=0.002)
    assert values(table, "acc.difference.high")[1] == pytest.approx(interval.high, abs=0.002)


def test_intervals_hold_the_true_differences(tmp_path):
    """In 60 files of six rows, of which two differ."""
    rng, held = np.random.default_rng(3), 0
    true = {"0": 0.0, "1": 0.0, "2": 1.0, "3": 0.0, "4": -2.0, "5": 0.0}
    for _ in range(60):
        path = write(tmp_path, *lines_of({h: rng.normal(mean, 0.5, 4).round(6) for h, mean in true.items()}))
        records = runs_table(path, OPTIONS | {"base": "0"}).records
        held += all(one["acc.difference.low"] <= true[one["name"]] <= one["acc.difference.high"] for one in records[1:])
    assert held >= 52  # 57 are expected; fewer than 52 in one of 100 tests


def test_several_columns_make_a_row_and_each_metric_has_its_test(tmp_path):
    heading = "model,lr,acc,loss"
    rng = np.random.default_rng(1)
    lines = [f"{m},{lr},{rng.normal(ord(m), 0.1)},{rng.normal(5, 1)}" for m in "ab" for lr in (1, 2) for _ in range(3)]
    options = {"row": ("model", "lr"), "metric": ("acc", "loss"), "base": "model=b lr=1"}
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
        (note, *_) = runs_table(path, OPTIONS | {"metric": metrics}).notes
        for said in ("For acc: *: ", "corrected for 4 rows", "For loss: *: ", "corrected for 2 rows", "2 or 3 seeds"):
            assert said in note
        for said in ("base in every seed, but for rounding: same.", "All seeds of fixed give", "A row with one seed"):
            assert note.count(said) == 1 and "For loss: " in note.partition(said)[0].rpartition(". ")[2]
    (alone, *_) = runs_table(path, OPTIONS).notes
    assert "For acc" not in alone and "4 rows" in alone


@pytest.mark.parametrize(("lower", "said"), [(False, "better"), (True, "worse")])
def test_a_margin_says_what_is_equal_better_or_worse(tmp_path, lower, said):
    scores = {"base": [5.0, 5.01, 4.99], "same": [5.0, 5.01, 4.99], "high": [6.0, 6.01, 5.99], "wide": [4.0, 5.0, 6.0]}
    options = OPTIONS | {"margin": (("acc", 0.2),), "lower_is_better": lower}
    table = runs_table(write(tmp_path, *lines_of(scores)), options)
    assert values(table, "acc.difference.within.0.2") == ["", "equal", said, "undecided"]


def test_one_run_a_row_has_no_test(tmp_path):
    table = runs_table(write(tmp_path, *lines_of({"base": [1.0], "4": [2.0]})), OPTIONS)
    assert values(table, "acc.difference") == [None, 1.0]
    for key in ("acc.low", "acc.difference.low", "acc.difference.p", "acc.sd"):
        assert values(table, key) == [None, None]
    assert any("says nothing about other seeds" in note for note in table.notes)


def test_where_no_row_varies_there_is_no_test(tmp_path):
    table = runs_table(write(tmp_path, *lines_of({"base": [1.0, 1.0], "4": [1.0, 1.0], "8": [2.0, 2.0]})), OPTIONS)
    assert values(table, "acc.difference") == [None, 0.0, 1.0]
    for key in ("acc.difference.p", "acc.low", "acc.difference.low"):
        assert values(table, key) == [None, None, None]
    assert any("of base, 4, 8 give the same score" in note for note in table.notes)


def test_one_wild_row_takes_no_digits_from_the_others(tmp_path):
    lines = lines_of({"base": [10.1, 10.2, 10.3], "8": [3e28, 3.1e28, 12.0]})
    table = runs_table(write(tmp_path, *lines), OPTIONS)
    assert next(column.cells for column in table.columns if column.name == "acc")[0] == "10.20 ± 0.10"


def test_a_row_whose_runs_are_equal_takes_part_in_no_digits(tmp_path):
    """Though the deviation of three times 0.8 is not computed as 0. Pairs that do not vary are counted apart."""
    lines = lines_of({"base": [0.5] * 3, "4": [0.8] * 3, "8": [0.1, 0.15, 0.2]})
    table = runs_table(write(tmp_path, *lines), OPTIONS)
    assert next(column.cells for column in table.columns if column.name == "acc")[2] == "0.150 ± 0.050"
    said = printed(write(tmp_path, *lines), "--row=h", "--metric=acc", "--pairs", "--format=md")
    assert "2 of 2 pairs" in said and "1 more pair" in said and "-0.350*" in said


def test_a_metric_that_has_the_name_of_another_column_cannot_be_chosen(tmp_path):
    path = write(tmp_path, *lines_of(), heading=HEADING.replace("acc", "p"))
    assert "two columns" in refused(path, "--row=h", "--metric=p", "--base=1", "--columns=row,p")


# --- Pairs


PAIRS_HEADING = "model,env,acc"


def pairs_of(scores, envs="abcdefgh"):
    return [f"{name},{env},{acc!r}" for name, of in scores.items() for env, acc in zip(envs, of, strict=False)]


def test_pairs_are_compared_by_their_differences(tmp_path):
    """Where environments differ more than models. Folds of one cross-validation count for less."""
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
    folds, k = runs_table(path, options | {"paired": True, "folds": True}), 5
    gains = np.subtract(row, base)
    t = gains.mean() / np.sqrt((1 / k + 1 / (k - 1)) * gains.var(ddof=1))
    assert values(folds, "acc.difference.p")[1] == pytest.approx(2 * stats.t.sf(t, k - 1), rel=1e-4)
    assert "+0.970*" in next(column.cells for column in paired.columns if column.name == "Δ acc")[1]


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
    options = {"row": ("model",), "metric": ("acc", "loss"), "seed": "env", "paired": True}
    assert any("for loss new has no env b" in note for note in runs_table(path, options).notes)
    (alone,) = (note for note in runs_table(path, options | {"metric": ("loss",)}).notes if "partner" in note)
    assert "missing: new has no env b" in alone


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


@pytest.mark.parametrize(("option", "of"), [("--pairs", "of 6 pairs"), ("--factors", "of 1 interactions")])
@pytest.mark.parametrize("form", ["json", "md"])
def test_pairs_and_factors_say_what_was_left_out(tmp_path, option, of, form):
    """As the usual table does; and in every format what was found."""
    lines = [f"finished,{h},{lr},{h * lr + s / 9}" for h in (1, 2) for lr in (1, 3) for s in (0, 1, 2)]
    path = write(tmp_path, *lines, "crashed,1,1,0", "finished,2,3,", heading="State,h,lr,acc")
    text = printed(path, "--row=h,lr", "--metric=acc", option, f"--format={form}")
    assert all(said in text for said in ("1 crashed", "h=2 lr=3 (line 15)", of))


def test_every_format_has_the_table(tmp_path):
    path = write(tmp_path, *lines_of())
    words = [path, "--row=h", "--metric=acc", "--seed=seed", "--base=1"]
    for form in ("terminal", "md", "tex"):
        text = printed(*words, f"--format={form}")
        assert "0.930" in text and "4" in text and "seeds" in text
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
        if "broken" in str(filters):
            raise ConnectionError("no answer")
        return [
            SimpleNamespace(
                name=f"{h}-{s}",
                state="crashed" if s == 4 else "finished",
                config={"h": h, "seed": s, "lr": 0.1, "model": {"width": 8}},
                summary={"acc": acc, "_step": 9, "lr": 1e-5, "val/acc": {"max": acc}},
            )
            for h, values in SCORES.items()
            for s, acc in enumerate([*values[:3], 0.0], start=1)
        ]


def test_runs_of_a_group_online_make_the_same_table(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "Api", FakeApi)
    words = ["--row=h", "--metric=acc", "--seed=seed", "--base=1", "--format=csv"]
    online, local = printed("wandb://me/project/group", *words), printed(write(tmp_path, *lines_of()), *words)
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
