"""The table of anyone's runs: what a CSV file may look like, and what is said of its rows."""

import csv
import io
import json
import statistics
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_trials
import wandb
from helpers import ROOT
from scipy import stats

from transformer_pl.report import __main__ as report
from transformer_pl.report.options import RunsReport
from transformer_pl.report.reading import read_runs
from transformer_pl.report.runs import runs_rows
from transformer_pl.table.html import page_columns
from transformer_pl.table.table import make_table

HEADING = "Name,State,h,lr,seed,acc"
SCORES = {"1": [0.90, 0.91, 0.89], "4": [0.93, 0.94, 0.92], "8": [0.88, 0.91, 0.90]}
OPTIONS = {"row": ("h",), "metric": ("acc",)}


def runs_table(path, options):
    return make_table(*runs_rows(path, RunsReport(files=(path,), **options)))


def lines_of(scores=SCORES, form="run-{h}-{s},finished,{h},0.1,{s},{acc}"):
    return [form.format(h=h, s=s, acc=acc) for h, values in scores.items() for s, acc in enumerate(values, start=1)]


def write(folder, *lines, heading=HEADING):
    path = folder / "runs.csv"
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


def printed(*words):
    code, out, err = tiny_trials.ended(report.main, *words)
    assert code == 0, err
    return out


def refused(*words):
    code, out, err = tiny_trials.ended(report.main, *words)
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    return err


def values_of(records, key):
    return [record[key] for record in records]


def values(table, key):
    return values_of(table.records, key)


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


# --- Means with their spread


SPREAD_HEADING = "model,loss,spread,runs"


def means_of(scores, is_error=False):
    """A line for each row of runs: its mean, its standard deviation or standard error, and the number of runs."""
    for name, of in scores.items():
        spread = statistics.stdev(of) / (len(of) ** 0.5 if is_error else 1) if len(of) > 1 else ""
        yield f"{name},{statistics.fmean(of)!r},{spread!r},{len(of)}".replace("''", "")


@pytest.mark.parametrize("option", ["std", "se"])
def test_a_table_of_means_is_that_of_the_runs(tmp_path, option):
    """Also where rows are enough to inform each other, and where a row has the mean and the deviation of base."""
    rng = np.random.default_rng(5)
    base = rng.normal(3, 0.2, 5).tolist()
    scores = {"base": base, "same": base[::-1], "one": [2.7]}
    scores |= {f"m{n}": rng.normal(3 + n / 8, 0.2, 2 + n).tolist() for n in (3, 1, 0, 2)}
    lines = [f"{name},{value!r},," for name, of in scores.items() for value in of]
    words = ["--row=model", "--metric=loss", "--format=json"]
    of_runs = json.loads(printed(write(tmp_path, *lines, heading=SPREAD_HEADING), *words))["rows"]
    path = write(tmp_path, *means_of(scores, option == "se"), heading=SPREAD_HEADING)
    of_means = json.loads(printed(path, *words, f"--{option}=spread", "--n=runs"))["rows"]
    assert len(of_means) == len(scores) and of_means[1]["loss.difference.p"] > 0.5
    for key in of_runs[0]:
        by_runs = values_of(of_runs, key)
        if key not in ("name", "loss.one_run"):
            by_runs = [None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9) for value in by_runs]
        assert values_of(of_means, key) == by_runs, key


def test_a_deviation_that_was_rounded_to_zero_has_no_test(tmp_path):
    for base, row in (("0.1", "0"), ("0.000", "0.1")):
        path = write(tmp_path, f"base,1,{base}", f"a,2,{row}", heading="model,loss,sd")
        table = runs_table(path, {"row": ("model",), "metric": ("loss",), "std": ("sd",), "n": "5"})
        assert values(table, "loss.difference.p") == [None, None] and values(table, "loss.difference") == [None, 1]
        assert any("rounded" in note for note in table.notes)


@pytest.mark.parametrize("option", ["--pairs", "--factors"])
def test_a_row_without_a_test_is_no_part_of_pairs_and_factors_for_its_own_reason(tmp_path, option):
    """It has one run, or a deviation that was rounded to 0, and not a lack of sentences."""
    path = write(tmp_path, "base,1,0.1,3", "a,2,0,3", "b,3,,1", heading="model,loss,sd,n")
    said = refused(path, "--row=model", "--metric=loss", "--std=sd", "--n=n", option)
    assert "loss of a, b" in said and "deviation above 0" in said and "sentences" not in said
    said = refused(write(tmp_path, "base,1", "base,2", "a,3", heading="h,acc"), "--row=h", "--metric=acc", option)
    assert "acc of a: must have numbers of two runs" in said and "deviation" not in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--std sd --n n", "line 3: sd = -0.1"),
        ("--std sd --n n", "line 4: sd = 0.1: must be empty"),
        ("--std sd --n n", "line 5: sd = : must be a number"),
        ("--std sd --n n", "line 6: n = 2.5"),
        ("--std sd --n n", "line 7: n = :"),
        ("--se se --n 3 --row n", "lines 2 and 5 must differ in row, but"),
        ("--std sd", "--n"),
        ("--n 5", "--n"),
        ("--std sd --n 1", "--n 1"),
        ("--std sd --n 20000", "--n 20000"),
        ("--std sd --n k", "no column k"),
        ("--std sd,se --n n", "--std sd,se"),
        ("--std sd --se se --n n", "--se"),
        ("--std sd --n n --seed n", "--seed"),
    ],
)
def test_what_no_runs_have_is_refused(tmp_path, words, named):
    lines = ["base,1,0.1,0.1,3", "a,1,-0.1,0.1,4", "b,1,0.1,0.1,1", "c,1,,0.1,3", "d,1,0.1,0.1,2.5", "e,1,0.1,0.1,"]
    path = write(tmp_path, *lines, heading="model,loss,sd,se,n")
    code, out, err = tiny_trials.ended(report.main, path, "--row=model", "--metric=loss", *words.split())
    assert (code, out) == (2, "") and named in err


def test_what_narang_et_al_could_tell_apart(tmp_path, monkeypatch):
    """The numbers that README.md and sweeps/README.md state, by a name that is found from any folder."""
    monkeypatch.chdir(tmp_path)
    words = ["--row=model", "--metric=early_loss", "--std=std", "--n=n", "--lower-is-better", "--format=json"]
    rows = json.loads(printed("narang2021.csv", *words, "--base=Vanilla Transformer"))["rows"]
    _, text = (ROOT / "sweeps/README.md").read_text().split("\n## A published table with its spread\n")
    found = {
        row["name"]: ("worse" if row["early_loss.difference"] > 0 else "better")
        if row["early_loss.difference.p"] < 0.05
        else "undecided"
        for row in rows[1:]
    }
    for verdict in ("better", "worse", "undecided"):
        names = sorted(name for name, of in found.items() if of == verdict)
        (line,) = (line for line in text.splitlines() if line.startswith(f"|{verdict}|"))
        _, _, count, listed, _ = line.split("|")
        assert int(count) == len(names) and sorted(listed.split("; ")) == names
    counts = Counter(found.values())
    said = " ".join((ROOT / "README.md").read_text().split())
    assert f"{counts['better']} are better, {counts['worse']} worse and {counts['undecided']} undecided" in said


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


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--seed env --paired", "new: acc: must"),
        ("--seed env --paired --base nameless", "line 6: env"),
        ("--paired", "--seed"),
        ("--seed env --folds", "--paired"),
        ("--seed env --paired --pairs", "--pairs"),
    ],
)
def test_what_makes_no_pairs_is_refused(tmp_path, words, named):
    lines = [*pairs_of({"base": [1.0, 2.0], "new": [1.0]}), "new,x,2.0", *["nameless,,3.0"] * ("nameless" in words)]
    path = write(tmp_path, *lines, heading=PAIRS_HEADING)
    assert named in refused(path, "--row=model", "--metric=acc", *words.split())


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


# --- Files


def of_text(tmp_path, text, **options):
    """The runs of a file with this text."""
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode())
    return read_runs(path, ["h"], ["acc"], **options)[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "text",
    [
        "\ufeffh,acc|1,0.5|1,-2",
        "h;acc; note|1;0.5;|1;-2;a, b",
        "h\tacc|1\t+.5|1\t-2e0",
        "sep=;|h;acc|1;0.5|1;-2",
        '"SEP=,"|h,acc||1, 0.5 ||1, -2',
        'note, acc,h,"a ""quoted""; heading"|"x, y",0.50,1,|"two|lines",-20E-1,1,\u2028',
    ],
)
def test_files_as_programs_write_them(tmp_path, text, end):
    runs = of_text(tmp_path, text.replace("|", end))
    assert [(run.row, run.values["acc"]) for run in runs] == [("1", 0.5), ("1", -2.0)]


MISSING = ["", "NaN", "-nan", "+Infinity", "-INF", "1e400", "-1.#IND", "nan(ind)", "None", "N/A"]


@pytest.mark.parametrize("missing", MISSING)
def test_what_is_not_finite_is_a_run_without_a_number(tmp_path, missing):
    assert [run.values["acc"] for run in of_text(tmp_path, f"h,acc\n1,{missing}\n1,3\n")] == [None, 3.0]


@pytest.mark.parametrize("text", ["1e308", "-1e308", "2e60", "-9e-61", "1e-300"])
def test_numbers_whose_powers_overflow_are_refused(tmp_path, text):
    path = write(tmp_path, "base,1", "base,2", "a,3", f"a,{text}", heading="h,acc")
    assert f"line 5: acc = {text}: must be 0, or from 1e-60 to 1e+60" in refused(path, "--row=h", "--metric=acc")


@pytest.mark.parametrize("unit", [1e60, 1e-59])
def test_the_p_of_numbers_does_not_depend_on_their_unit(tmp_path, unit):
    shares, p = {"base": [0.1, 0.12, 0.11], "a": [0.4, 0.43, 0.39]}, []
    for size in (1.0, unit):
        lines = lines_of({h: [score * size for score in scores] for h, scores in shares.items()})
        p.append(values(runs_table(write(tmp_path, *lines), OPTIONS), "acc.difference.p")[1])
    assert p[1] == pytest.approx(p[0], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0,5", 0.5), ("1.234,5", 1234.5), ("-1.300", -1300), (",25", 0.25), ("12", 12), ("1,5e-3", 0.0015)],
)
def test_decimal_commas_are_read_where_the_option_says_so(tmp_path, text, value):
    (run,) = of_text(tmp_path, f'h;acc\n1;"{text}"\n', decimal_comma=True)
    assert run.values["acc"] == value


NO_NUMBERS = ["0,5", "1,234.5", "12,000", "85%", "1_000", "0x10", "5ms", "1e", ".", "٣", "five"]


@pytest.mark.parametrize(
    ("text", "option"),
    [
        *((text, False) for text in NO_NUMBERS),
        *((text, True) for text in ("0.5", "1.23", "1,234.5", "1.2345", "1,2,3")),
    ],
)
def test_what_is_no_number_is_refused_with_its_place_and_a_remedy(tmp_path, text, option):
    path = write(tmp_path, "1,7", f'1,"{text}"', heading="h,acc")
    said = refused(path, "--row=h", "--metric=acc", *["--decimal-comma"] * option)
    assert f"line 3: acc = {text}: must be" in said and ("--decimal-comma" in said) == ("," in text or option)


@pytest.mark.parametrize(
    "names",
    [
        "0.1 1e-1 .1",
        "1.1 1.10",
        "1_2 12",
        "7e12345 31e9876",
        "007 7",
        "True TRUE",
        "nan NaN inf",
        f"{2**63} {2**63 + 1}",
    ],
)
def test_a_name_is_the_text_that_stands_in_the_file(tmp_path, names):
    lines = [f"{name},1" for name in names.split()]
    assert [run.row for run in of_text(tmp_path, "\n".join(["h,acc", *lines]))] == names.split()


@pytest.mark.parametrize(
    ("seeds", "are_one"),
    [("1 01", True), ("1 1.0", True), ("1 -1", False), ("a A", False), (f"{2**63} {2**63 + 1}", False)],
)
def test_whole_seeds_are_numbers(tmp_path, seeds, are_one):
    path = write(tmp_path, *(f"a,{seed},1" for seed in seeds.split()), heading="h,seed,acc")
    words = [path, "--row=h", "--metric=acc", "--seed=seed"]
    assert "lines 2 and 3" in refused(*words) if are_one else printed(*words)


def test_a_run_without_a_number_is_counted_and_named(tmp_path):
    table = runs_table(write(tmp_path, *lines_of(), "x,finished,8,0.1,9,"), OPTIONS)
    assert values(table, "acc.n") == [3, 3, 3]
    assert next(column.cells for column in table.columns if column.name == "runs") == ["3", "3", "3/4"]
    assert any("8 (line 11)" in note for note in table.notes)


@pytest.mark.parametrize("heading", ["State", "status"])
def test_runs_that_did_not_finish_or_have_no_name_are_left_out_and_counted(tmp_path, heading):
    left = ["crashed,8,no number", "Failed,8,9", "KILLED,8,9", "running,8,9", "PRUNED,8,9", "finished,,9"]
    path = write(tmp_path, "FINISHED,8,1", *left, "finished,8,3", heading=f"{heading},h,acc")
    table = runs_table(path, OPTIONS)
    assert values(table, "acc.mean") == [2.0]
    (note,) = (note for note in table.notes if "6 runs" in note)
    assert all(f"1 {why}" in note for why in ("crashed", "failed", "killed", "running", "pruned", "without a name"))
    path = write(tmp_path, *["crashed,8,1"] * 5, heading="State,h,acc")
    assert "5 crashed" in refused(path, "--row=h", "--metric=acc")


def test_a_heading_with_a_comma_can_be_named_as_the_message_says(tmp_path):
    path = write(tmp_path, "base,1", "base,2", heading='h,"acc ""a"" (val, top-1)"')
    said = refused(path, "--row=h", '--metric=acc "a" (val')
    assert (quoted := '"acc ""a"" (val, top-1)"') in said
    assert "1.5" in printed(path, "--row=h", f"--metric={quoted}", "--format=csv")


def test_many_runs_are_read_in_a_moment(tmp_path):
    rng = np.random.default_rng(1)
    path = write(tmp_path, *lines_of({f"h{i}": rng.normal(i, 1, 1250).round(4) for i in range(8)}))
    table = runs_table(path, OPTIONS | {"base": "h0"})
    assert values(table, "acc.n") == [1250] * 8 and all(p < 0.05 for p in values(table, "acc.difference.p")[1:])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--row=hh", "--metric=acc"], "hh; did you mean h?"),
        (["--row=h", "--metric=Acc"], "did you mean acc?"),
        (["--row=h", "--metric=State"], "line 2: State"),
        (["--row=h", "--metric=empty"], "must have numbers"),
        (["--row=h", "--metric=acc", "--seed=lr"], "lines 2 and 3"),
        (["--row=h", "--metric=acc", "--base=5"], "--base 5"),
        (["--row=h"], "--metric"),
        (["--row=h", "--metric=acc", "--scale=demo"], "--scale"),
        (["--row=h", "--metric=acc", "--trials", "--format=csv"], "--trials"),
        (["--row=h", "--metric=acc", "--margin=bleu=1"], "--margin bleu"),
        (["--row=h", "--metric=acc", "--margin=acc=-1"], "--margin"),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, named):
    path = write(tmp_path, *(f"{line}," for line in lines_of()), heading=f"{HEADING},empty")
    assert named in refused(path, *words)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "a line for each run"),
        ("\n \n", "a line for each run"),
        ("h,acc\n", "a line for each run"),
        ("h,acc\n1,2\n1,2,3\n", "line 3"),
        ("h,acc\n1\n", "line 2"),
        ('h,acc,n\n1,2,"two\nlines"\n1,2\n', "line 4"),
        ('h,acc\n1,"2\n1,3\n', "line 2"),
        (f"h,acc\n1,{'2' * 200_000}\n", "line 2"),
        ("h,acc\n1,2\n\xff,2", "line 3"),
        ("h,acc\n1,2\0", "line 2"),
        ("acc,h,acc\n1,2,3\n", "columns 1 and 3"),
        ("h,acc\nbase,1\nBaseline,2\n", "--base"),
        ("Step,h,acc,acc__MIN,acc__MAX\n1,2,3,3,3\n", "each step"),
        ("h,epoch,acc\na,0,1\na,1,2\na,0,1\na,1,2\na,2,2\nb,0,1\nb,1,2\n", "each step"),
        ("Step,h,acc\n1,a,3\n1,b,3\n2,a,3\n2,b,3\n", "each step"),
        ("Relative Time (Wall),h,acc\n1,a,3\n2,a,3\n", "each step"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_files_that_are_no_table_of_runs(tmp_path, text, named):
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode("latin-1"))
    assert named in refused(path, "--row=h", "--metric=acc")


def test_what_is_no_file_is_refused(tmp_path):
    """Nothing is read from a device, which may have no end."""
    (tmp_path / "endless.csv").symlink_to("/dev/zero")
    (tmp_path / "folder.csv").mkdir()
    for name in ("endless.csv", "folder.csv", "missing.csv", "/dev/zero"):
        assert name in refused(tmp_path / name, "--row=h", "--metric=acc")


def test_a_file_of_runs_may_have_any_name(tmp_path):
    path = write(tmp_path, *lines_of()).rename(tmp_path / "runs.txt")
    assert "0.93" in printed(path, "--row=h", "--metric=acc", "--format=csv")


def test_one_wild_row_takes_no_digits_from_the_others(tmp_path):
    lines = lines_of({"base": [10.1, 10.2, 10.3], "8": [3e28, 3.1e28, 12.0]})
    table = runs_table(write(tmp_path, *lines), OPTIONS)
    assert next(column.cells for column in table.columns if column.name == "acc")[0] == "10.20 ± 0.10"


def test_steps_of_finished_runs_are_no_chart(tmp_path):
    """Trainings that stopped early ended at different steps."""
    path = write(tmp_path, "a,10,1", "a,12,2", "b,8,1", "b,11,2", heading="h,_step,acc")
    assert values(runs_table(path, OPTIONS), "acc.n") == [2, 2]
    path = write(tmp_path, *(f"{step},{step}" for step in (10, 20) for _ in range(3)), heading="step,acc")
    assert values(runs_table(path, {"row": ("step",), "metric": ("acc",)}), "acc.n") == [3, 3]


def test_two_rows_of_one_name_are_refused(tmp_path):
    path = write(tmp_path, "x b=y,z,1", "x,y b=z,2", heading="a,b,acc")
    assert "line 3" in refused(path, "--row=a,b", "--metric=acc")


def test_each_run_as_a_row_is_refused(tmp_path):
    path = write(tmp_path, *lines_of({f"h{i}": [1.0] for i in range(600)}))
    assert "at most 500" in refused(path, "--row=Name", "--metric=acc")


def test_options_of_runs_are_for_runs():
    assert "--row" in refused(ROOT / "sweeps/table3_A.yaml", "--row=h")


# --- The command


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
