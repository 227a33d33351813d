"""Means with their spread, as papers print them: the table is that of the runs."""

import json
import statistics
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from scipy import stats

from tests.report.csv_runs import printed, refused, runs_table, values, values_of, write
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.published import read_row_names
from transformer_pl.runtime.errors import InputError

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
    words = ["--row=model", "--metric=loss", "--lower-is-better", "--format=json"]
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
        options = {"row": ("model",), "metric": ("loss",), "lower_is_better": True}
        table = runs_table(path, options | {"std": ("sd",), "n": "5"})
        assert values(table, "loss.difference.p") == [None, None] and values(table, "loss.difference") == [None, 1]
        assert any("rounded" in note for note in table.notes)


@pytest.mark.parametrize("option", ["std", "se"])
@pytest.mark.parametrize(
    ("base", "row"),
    [
        (("25.8", "0.1"), ("26.2", "0.1")),
        (("25.80", "0.10"), ("26.20", "0.10")),
        (("25.8", "0.1"), ("25.4", "0.10")),
        (("2.58e1", "1e-1"), ("27", "0.1")),
        (("258", "1"), ("262", "1")),
        (("25.8", "0.01"), ("25.9", "0.01")),
    ],
)
def test_a_star_that_other_numbers_that_print_the_same_would_not_have_is_named(tmp_path, base, row, option):
    """Means may be half a unit of their last digit nearer to each other, and deviations as much larger."""
    path = write(tmp_path, f"base,{base[0]},{base[1]}", f"a,{row[0]},{row[1]}", heading="model,x,spread")
    table = runs_table(path, {"row": ("model",), "metric": ("x",), option: ("spread",), "n": "3"})

    def p_value(by):
        """by: how many half units the numbers are from those that are written."""
        half = [[0.5 * 10 ** Decimal(text).as_tuple().exponent for text in line] for line in (base, row)]
        means = [float(text) for text, _ in (base, row)]
        apart = max(0.0, abs(means[1] - means[0]) - by * (half[0][0] + half[1][0]))
        spreads = [
            (float(text) + by * of[1]) * (3**0.5 if option == "se" else 1)
            for (_, text), of in zip((base, row), half, strict=True)
        ]
        return stats.ttest_ind_from_stats(0, spreads[0], 3, apart, spreads[1], 3, equal_var=False).pvalue

    assert values(table, "x.difference.p")[1] == pytest.approx(p_value(0), abs=0.005)
    named = any("The digits do not carry the * of a:" in note for note in table.notes)
    assert named == (p_value(0) < 0.05 <= p_value(1))


def test_a_note_says_how_many_more_stars_are_false_where_n_has_divided_deviations(tmp_path):
    """With two rows of three runs: how often the t of two equal rows is beyond its limit times sqrt(2 / 3)."""
    path = write(tmp_path, "base,25.8,0.1", "a,26.2,0.1", heading="model,x,sd")
    (note, *_) = runs_table(path, {"row": ("model",), "metric": ("x",), "std": ("sd",), "n": "3"}).notes
    times = 2 * stats.t.sf(stats.t.isf(0.025, 4) * (2 / 3) ** 0.5, 4) / 0.05
    assert f"about {times:.1f} times as frequent" in note


def test_a_row_without_a_test_is_no_part_of_pairs_for_its_own_reason(tmp_path):
    """It has one run, or a deviation that was rounded to 0, and not a lack of sentences."""
    path = write(tmp_path, "base,1,0.1,3", "a,2,0,3", "b,3,-,1", heading="model,loss,sd,n")
    said = refused(path, "--row=model", "--metric=loss", "--lower-is-better", "--std=sd", "--n=n", "--pairs")
    assert "loss of a, b" in said and "deviation above 0" in said and "sentences" not in said
    said = refused(write(tmp_path, "base,1", "base,2", "a,3", heading="h,acc"), "--row=h", "--metric=acc", "--pairs")
    assert "acc of a: must have numbers of two runs" in said and "deviation" not in said


def test_a_file_that_ships_is_named_as_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused("narang2021.csv", "--row=model", "--metric=speed")
    assert said.startswith("error: narang2021.csv: ") and "speed" in said
    with pytest.raises(InputError) as error:  # the names of another sweep
        read_row_names(read_sweep(Path("table3_A")), Path("narang2021"), None)
    assert all(message.startswith("narang2021.rows.yaml: ") for message in error.value.messages)


def test_what_narang_et_al_could_tell_apart(tmp_path, monkeypatch):
    """The numbers that README.md and sweeps/RESULTS.md state, by a name that is found from any folder."""
    monkeypatch.chdir(tmp_path)
    words = ["--row=model", "--metric=early_loss", "--std=std", "--n=n", "--lower-is-better", "--format=json"]
    rows = json.loads(printed("narang2021.csv", *words, "--base=Vanilla Transformer"))["rows"]
    _, text = (ROOT / "sweeps/RESULTS.md").read_text().split("\n## A published table with its spread\n")
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
