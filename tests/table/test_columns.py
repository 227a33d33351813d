"""The table of rows: what its cells say, its notes and its formats."""

import csv
import io
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import ROOT
from made_rows import (
    ABOUT,
    BLEU,
    PPL,
    column,
    comparisons,
    measured,
    measured_sentences,
    names,
    open_ended,
    row,
    said,
    sampled,
    table,
)
from markdown_it import MarkdownIt
from rich.console import Console

from transformer_pl.runtime.errors import InputError
from transformer_pl.table import cells
from transformer_pl.table import statistics as stats
from transformer_pl.table.html import page_columns
from transformer_pl.table.row import About, Contrast, Facts, Outcome, Printed, PrintedTable, Row
from transformer_pl.table.table import make_table

pytestmark = pytest.mark.core


def read_csv(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


# --- Settings


def test_a_row_shows_the_settings_in_which_it_differs_from_base():
    """Of a class its name alone. Programs get every setting."""
    base = {"model.N": 6, "model.position": "a.b.Sinus", "decode.beam": 4, "optim.beta1": 0.9}
    changes = [{}, {"decode.beam": 1}, {"model.position": "mine.Learned"}, {"model.N": 2}]
    rows = [row("base" if not keys else str(keys), 60.0, settings=base | keys) for keys in changes]
    shown = ["N", "position", "beam"]
    made = table(rows)
    assert names(made)[1:4] == shown
    first, *others = zip(*(column(made, name) for name in shown), strict=True)
    assert first == ("6", "Sinus", "4") and ["".join(cells) for cells in others] == ["1", "Learned", "2"]
    assert [line["model.N"] for line in read_csv(made)] == ["6", "6", "6", "2"]


def test_without_a_base_row_every_cell_is_filled_and_there_are_no_differences():
    made = table([row(f"h={h}", 60.0 + h, settings={"model.h": h}) for h in (1, 2, 4)])
    assert column(made, "h") == ["1", "2", "4"] and "Δ BLEU" not in names(made)
    assert {line["val/bleu.difference"] for line in read_csv(made)} == {""} and "not a row" in made.summary


# --- Results


def test_cells_of_means_deviations_and_differences():
    made = table([row("base", 60.0, 62.0, 64.0), row("h=1", 61.0, 60.0, 59.0)])
    assert column(made, "BLEU") == ["62.0 ± 2.0", "60.0 ± 1.0"] and column(made, "Δ BLEU") == ["", "-2.0"]
    assert column(made, "seeds") == ["3", "3"] and column(made, "params") == ["1.49M", "1.49M"]
    assert "3 seeds" in said(made)


@pytest.mark.parametrize(
    ("p", "cell"),
    [(0.0004, "<0.001"), (0.001, "0.001"), (0.0494, "0.049"), (0.0496, "<0.050"), (0.05, "0.050"), (None, "")],
)
def test_a_p_value_below_a_limit_looks_so(p, cell):
    assert cells.p_value(Contrast(row("h=1"), BLEU, p_value=p)) == cell


def test_unmeasured_values_are_never_numbers():
    rows = [
        row("base", 60.0, 62.0),
        row("h=1", None, None, state="failed"),
        row("h=4", None, None),
        row("h=16", 61.0, None, state="failed"),
        row("h=32", 61.0, None, 63.0, None, state="diverged"),
        Row(name="h=2", states=["failed", "diverged"]),
    ]
    made = table(rows)
    assert column(made, "BLEU") == ["61.0 ± 1.4", "failed", "-", "61.0", "62.0 ± 1.4", "diverged"]
    assert column(made, "PPL") == ["3.00", "failed", "-", "3.00", "3.00", "diverged"]
    assert column(made, "params")[1:3] == column(made, "Δ BLEU")[1:3] == ["-", "-"]
    assert column(made, "Δ BLEU")[4] == "+1.0"
    counts = ["2", "0/2, 2 failed", "0/2", "1/2, 1 failed", "2/4, 2 diverged", "0/2, 1 failed, 1 diverged"]
    assert column(made, "seeds") == counts and "3 trials diverged" in said(made)
    lines = read_csv(made)
    assert [line["failed"] for line in lines] == ["0", "2", "0", "1", "0", "1"]
    assert [(line["done"], line["diverged"]) for line in lines[3:]] == [("1", "0"), ("2", "2"), ("0", "1")]
    assert {lines[1][name] for name in ("params", "val/bleu.mean", "val/bleu.sd", "val/bleu.difference")} == {""}


def test_rows_whose_seeds_begin_with_one_training_are_compared_with_such_rows_alone():
    """Others have no star, p and verdict beside them, and their spread says nothing of that of these."""
    scores = {
        "base": [50.0, 51.0, 49.0],
        "near": [50.3, 51.5, 49.1],
        "far": [70.0, 71.0, 69.5],
        "own": [60.0, 60.1, 60.2],
    }

    def tested(**trunks):
        rows = [
            Row.of_values(name, {"val/bleu": scores[name]}, is_base=name == "base", trunks=frozenset(of.split()))
            for name, of in trunks.items()
        ]
        made = make_table(rows, About(outcomes=[BLEU], margins={"val/bleu": 2.0}))
        found = {one.row.name: (one.mean, one.estimate, one.p_value) for one in made.contrasts}
        return (
            found,
            {name: cells.verdict(2.0, one) for name, one in zip(trunks, made.contrasts, strict=True)},
            said(made),
        )

    found, verdicts, notes = tested(base="", near="", far="")
    assert found["far"][2] < 0.05 and verdicts["far"] == "better" and "one trial" not in notes
    for of_base, other in (("", "x"), ("x", ""), ("x", "y"), ("x", "x y")):
        beside, words, noted = tested(base=of_base, near=of_base, far=of_base, own=other)
        assert {name: beside[name] for name in found} == found and verdicts.items() <= words.items()
        assert beside["own"][1:] == (None, None) and not words["own"] and "No test of own" in noted
    alike, _, noted = tested(base="x", near="x", far="x")
    assert alike == found and "No test" not in noted and "one trial" in noted


@pytest.mark.parametrize("state", ["diverged", "failed", "without a number"])
@pytest.mark.parametrize("lower_is_better", [False, True])
def test_a_row_is_not_better_because_it_lost_its_worse_seeds(state, lower_is_better):
    """It has no star, no p and no verdict on the better side, whichever of row and base has lost one."""
    outcome, far = BLEU._replace(lower_is_better=lower_is_better), [70.0, 71.0, 69.0]

    def tested(of_row, of_base, row_state="done", base_state="done"):
        rows = [
            Row.of_values("base", {"val/bleu": of_base}, states=["done"] * 3 + [base_state], is_base=True),
            Row.of_values("h=1", {"val/bleu": of_row}, states=["done"] * 3 + [row_state]),
        ]
        made = make_table(rows, About(outcomes=[outcome], margins={"val/bleu": 2.0}))
        contrast, texts = made.contrasts[1], [cell for one in made.columns for cell in one.cells[1:]]
        assert contrast.is_flattered == ("lost seeds" in said(made)) == (contrast.p_value is None)
        assert contrast.difference and ("better" in texts) <= contrast.is_found
        assert contrast.p_value is None or "corrected for 1 row" in said(made)
        return contrast.is_found

    near = [50.0, 51.0, 49.0]
    for first, second in ((far, near), (near, far)):
        first, second = ([*scores, statistics.mean(scores)] for scores in (first, second))
        is_better = (first[0] > second[0]) != lower_is_better
        assert tested(first, second)
        assert tested(first[:3], second, state) == (not is_better)
        assert tested(first, second[:3], "done", state) == is_better
    assert tested([*far, 70.0], near, "done", "new")  # it was not trained yet, whatever it will say


# --- Notes


def test_a_table_that_has_everything_to_say_says_it_in_five_notes():
    """Rows that diverged, lack seeds, on another dataset; a component that breaks a property; and what others say."""
    rows = [
        *measured([0.0, 0.3, 0.0]),
        row("h=2", 60.0),
        row("h=16", None, 61.0, state="diverged"),
        row("path=elsewhere", 61.0, dataset="elsewhere"),
    ]
    rows[1] = replace(rows[1], exempt=["mine.Attention does not keep future_is_hidden: on purpose"])
    made = table(rows, facts=Facts(["Trained long."], ["All converged."], ["On two machines."]))
    assert len(made.notes) == 5 and all(len(note) < 900 for note in made.notes)
    for word in ("mine.Attention", "future_is_hidden", "1 trial", "Trained long.", "All converged.", "two machines"):
        assert word in said(made)


def test_a_row_that_is_exempt_from_a_property_is_marked_in_every_format():
    """By its name, and one note has the property and the reason. In CSV and JSON these stand in the row."""
    rows = [row("base", 60.0), row("h=1", 61.0)]
    assert cells.EXEMPT not in table(rows).markdown() and read_csv(table(rows))[1]["exempt"] == ""
    made = table([rows[0], replace(rows[1], exempt=["mine.Attention: on purpose"])])
    for names_of_rows in (column(made, "row"), page_columns(made)[0].column.cells):
        assert [cells.EXEMPT in name for name in names_of_rows] == [False, True]
    (note,) = [note for note in made.notes if cells.EXEMPT in note]
    assert "mine.Attention: on purpose" in note
    assert made.markdown().count(cells.EXEMPT) == 2
    assert made.latex().count(r"h=1$\ddagger$") == 1 and f"{note.partition(' What')[0]}" in made.latex()  # a comment
    for base, exempt in (read_csv(made), json.loads(made.json())["rows"]):
        assert not base["exempt"] and "on purpose" in exempt["exempt"]


# --- Statistics


def test_significant_differences_are_marked():
    rows = measured([0.0, 0.3, 0.0])
    made = table(rows)
    base, better, same = zip(column(made, "Δ BLEU"), column(made, "p"), strict=True)
    assert base == ("", "") and better[0].endswith("*") and better[1] == "<0.001"
    assert not same[0].endswith("*") and float(same[1]) > 0.05
    assert [cell.endswith("*") for cell in column(made, "PPL / base")] == [False, True, False]
    for line, one in zip(read_csv(made), rows, strict=True):
        assert float(line["val/bleu.low"]) < one.mean("val/bleu") < float(line["val/bleu.high"])
    line, verdict = read_csv(made)[1], comparisons([one.samples["val/bleu"] for one in rows])[1]
    assert float(line["val/bleu.difference.p"]) == pytest.approx(verdict.p_value)
    assert float(line["val/bleu.difference.low"]) == pytest.approx(verdict.estimate.interval()[0])


def test_a_row_that_shares_the_weights_of_base_is_compared_with_it_within_each_seed():
    """A note says so. The same outputs of trainings of its own would say less."""
    base, other = measured_sentences([0.0, 0.0], spread=0.2)
    worse, ids = base.copy(), ["a", "b", "c"]
    worse[:, ::9, 3] = np.maximum(0, worse[:, ::9, 3] - 1)  # a matching 4-gram less
    for own in (ids, ["d", "e", "f"]):
        made = table([sampled("base", base, ids), sampled("h=1", other), sampled("beam=1", worse, own)])
        note = "1 row shares the trained weights of base: it is compared with it within each seed."
        assert (note in said(made)) == (own is ids) == column(made, "Δ BLEU")[2].endswith("*")


def test_nothing_is_compared_with_a_base_that_has_learned_nothing():
    rows = measured([0.0, 0.3])
    bad = {key: [0.9] * 3 if key == "val/bleu" else values for key, values in rows[0].values.items()}
    made = table([replace(rows[0], values=bad), rows[1]])
    assert not {"Δ BLEU", "Δ 95 %", "p"} & set(names(made)) and "*" not in "".join(column(made, "PPL"))
    assert read_csv(made)[1]["val/bleu.difference"] == read_csv(made)[1]["val/bleu.difference.p"] == ""
    assert len(column(made, "BLEU 95 %")) == 2 and "BLEU below 1" in said(made)
    rows = measured([0.3, 0.0])  # a row below 1 is compared with a base above it
    assert column(table([rows[0], replace(rows[1], values=bad)]), "p")[1]


def estimate(value, low, high):
    """An estimate with this interval."""
    half = (high - low) / 2 / 1.959964
    return stats.Estimate(value, (), half**2, float("inf"))


@pytest.mark.parametrize(
    ("difference", "half", "cell", "ends"),
    [
        (-0.036, 0.033, "-0.036*", "-0.069 to -0.003"),
        (0.0004, 0.0003, "+0.0004*", "+0.0001 to +0.0007"),
        (2.04, 0.95, "+2.0*", "+1.1 to +3.0"),
        (-0.036, 1.0, "+0.0", "-1.0 to +1.0"),
        # no bound looks like zero unless it is
        (0.015, 0.035, "+0.01", "-0.02 to +0.05"),
        (0.6, 6.9, "+0.6", "-6.3 to +7.5"),
        (-0.02, 0.016, "-0.020*", "-0.036 to -0.004"),
        (1.625, 1.585, "+1.62*", "+0.04 to +3.21"),
        (6.1699, 6.1701, "+6.1699", "-0.0002 to +12.3400"),
        (0.0, 0.0, "+0.0", "+0.0 to +0.0"),
    ],
)
def test_a_number_has_the_digits_of_its_interval(difference, half, cell, ends):
    """So no significant difference looks like zero, and none lies outside of its interval."""
    its, mean = estimate(difference, difference - half, difference + half), estimate(1, 0.004, 1.996)
    p = 0.01 if half < abs(difference) else 0.3
    contrast = Contrast(row("h=4", 1 + difference), BLEU, difference, mean, its, p)
    assert cells.difference(contrast) == cell and cells.difference_interval(contrast) == ends
    assert cells.score(contrast) == f"{1 + difference:.3f}"


@pytest.mark.parametrize(("sign", "open_end"), [(1, "low"), (-1, "high")])
def test_an_end_that_the_test_sets_to_zero_is_printed_as_open(sign, open_end):
    """A row that a later step finds has an interval of the first one, which alone would reach beyond zero."""
    made = open_ended(sign)
    contrast, cell, line = made.contrasts[2], column(made, "Δ 95 %")[2], read_csv(made)[2]
    assert contrast.is_found and contrast.estimate.half_width(contrast.estimate.level) > abs(contrast.difference)
    most = sign * max(contrast.estimate.interval(), key=abs)
    assert cell == {"low": f"above 0 to +{most:.2f}", "high": f"-{most:.2f} to below 0"}[open_end]
    assert (
        f"(more than 0, at most {most:.2f})" in made.summary
        or f"(95 %: more than 0, at most {most:.2f})" in made.summary
    )
    written = cell.replace("-", "$-$") if sign < 0 else cell
    assert cell in made.markdown() and written in made.latex() and page_columns(made)[2].below.cells[2] == cell
    assert float(line[f"x.difference.{open_end}"]) == 0 and line["x.difference.open"] == open_end
    assert json.loads(made.json())["rows"][2]["x.difference.open"] == open_end
    assert not re.search(r"(?<![\d.])[+-]?0\.0*(?![\d.])", made.summary + made.markdown())
    shut = [record["x.difference.open"] for record in made.records]
    assert shut == [None, None, open_end, None] and "above 0 or below 0" in page_columns(made)[2].below.meaning
    assert {"low": "above 1 to", "high": "to below 1"}[open_end] in cells.ratio_interval(contrast)


def test_an_interval_that_ends_at_a_value_that_is_possible_is_not_open():
    """As that of a BLEU near zero, and that of a row without a star."""
    near = stats.Estimate(0.5, (), 1.0, float("inf"), lowest=0.0)
    alone = Contrast(row("h=4", 0.5), BLEU, 0.5, near, near, 0.3)
    assert cells.row_interval(alone).startswith("0.0 to") and cells.difference_interval(alone).startswith("+0.0 to")


# --- Rows that have not converged


def test_a_row_that_still_falls_is_marked():
    rows = [replace(one, still_falls=place == 1) for place, one in enumerate(measured([0.0, 0.3, 0.3]))]
    made = table(rows)
    for name in ("BLEU", "PPL"):
        assert ["†" in cell for cell in column(made, name)] == [False, True, False]
    assert not any("†" in cell for cell in column(made, "Δ BLEU"))


@pytest.mark.parametrize(("steps", "step_flops"), [(500, 1e9), (520, 1e9), (1000, 1e9), (500, 3e9), (250, 1e9)])
def test_trainings_that_differ_by_more_than_a_twentieth_say_so(steps, step_flops):
    """In FLOPs until the step whose weights are scored."""
    flops, scored = [1e9, step_flops, 1e9], [500, steps, 500]
    rows = [
        replace(one, step_flops=cost, scored_steps=[step] * 3)
        for one, cost, step in zip(measured([0.0, 0.3, 0.0]), flops, scored, strict=True)
    ]
    made, ratio = table(rows), step_flops * steps / 5e11
    differs = not 1 / 1.05 <= ratio <= 1.05
    assert ("FLOPs / base" in names(made)) == (f", with {ratio:.2g} times base's training)" in made.summary) == differs
    assert not differs or column(made, "FLOPs / base") == ["1.00", f"{ratio:.2f}", "1.00"]
    assert "FLOPs / base" not in names(table([replace(one, step_flops=None) for one in rows]))


def test_the_budget_of_a_training_that_goes_on_counts_what_was_before():
    base, *rows = (replace(one, step_flops=1e9, scored_steps=[500] * 3) for one in measured([0.0, 0.3, 0.3]))
    parted = replace(rows[0], flops_before=4e11, steps_before=400)  # its last 100 steps follow 400 of another
    tuned = replace(rows[1], flops_before=4e11)
    assert column(table([base, parted, tuned]), "FLOPs / base") == ["1.00", "1.00", "1.80"]


def test_a_table_of_best_validations_has_their_steps():
    rows = [replace(one, scored_steps=[400, 500, 750]) for one in measured([0.0, 0.3])]
    made = table(rows, has_steps=True)
    assert column(made, "step")[1] == "550" and float(read_csv(made)[1]["scored_step"]) == 550
    assert "step" not in names(table(rows))


# --- The summary


def test_the_summary_says_which_rows_differ_and_what_the_others_could_have_shown():
    made = table(measured([0.0, 0.3, 0.0]))
    line = read_csv(made)[1]
    low, high = float(line["val/bleu.difference.low"]), float(line["val/bleu.difference.high"])
    assert f"h=1 is {low / 2 + high / 2:.1f} BLEU higher than base (95 %: {low:.1f} to {high:.1f})" in made.summary
    found = column(made, "detectable Δ")[2]
    assert f"h=4 cannot be told apart from base in BLEU with 3 seeds; a difference of {found} " in made.summary
    console = Console(width=200, file=io.StringIO())
    console.print(made.terminal(200))
    for text in (made.markdown(), console.file.getvalue()):
        assert text.startswith("Rows that differ significantly: 1 by BLEU, 1 by PPL. h=1 is")
    assert json.loads(made.json())["summary"] == made.summary and "h=1 is" in made.latex()


def test_a_summary_names_three_rows_on_each_side_and_a_caption_holds_its_first_sentence():
    """And what the mark means; whatever else is said of the table stands in comments."""
    means = {"base": 60.0} | {f"row {mean}": mean for mean in (50.0, 52.0, 54.0, 56.0, 58.0, 62.0, 64.0, 60.1)}
    rows = [Row.of_values(name, {"x": [m, m + 0.1, m - 0.1]}, is_base=name == "base") for name, m in means.items()]
    made = make_table(rows, About(outcomes=[Outcome("x", "x")], facts=Facts(["On\n\\input{a} 5 % of it."])))
    first = made.summary.partition(". ")[0]
    named = [name for name in means if name in first and name != "base"]
    assert named == ["row 50.0", "row 52.0", "row 54.0", "row 62.0", "row 64.0"] and "2 more rows are lower" in first
    comments, table, lines = [], made.latex(), []
    for line in table.splitlines():
        (comments if line.startswith("% ") else lines).append(line)
    (caption,) = [line for line in lines if r"\caption" in line]
    assert "more rows are lower. *: p" in caption and "cannot" not in caption and "of it" not in "".join(lines)
    for text in (made.summary, *made.notes):
        assert f"% {' '.join(text.split())}" in comments


def test_perplexity_is_a_measure_whose_ratio_to_base_s_is_tested():
    """The test is that of the difference of losses; the table shows exp of it, and of its interval."""
    rows = measured([0.0, 0.3, 0.0])
    made, line = table(rows), read_csv(table(rows))[1]
    change, low, high = (math.exp(float(line[f"val/loss.difference{end}"])) for end in ("", ".low", ".high"))
    assert column(made, "PPL / base")[:2] == ["", f"{change:.2f}*"]
    assert column(made, "PPL / base 95 %")[1] == f"{low:.2f} to {high:.2f}" and column(made, "p of PPL")[1] == "<0.001"
    assert f"h=1 has {change:.2f} times the PPL of base (95 %: {low:.2f} to {high:.2f})" in made.summary
    alone = make_table(rows, About(outcomes=[PPL]))
    assert [one.p_value for one in alone.contrasts] == [one.p_value for one in made.further[0]]
    first = make_table(rows, replace(ABOUT, outcomes=[PPL, BLEU]))
    assert first.contrasts == made.further[0] and first.summary.startswith(
        "Rows that differ significantly: 1 by PPL, 1 by"
    )
    assert "a test of its own" in said(made) and "a test of its own" not in said(alone)


@pytest.mark.parametrize("other", [{"objective": "smoothed"}, {"token_digests": frozenset({"b"})}])
def test_a_perplexity_that_means_something_else_is_marked(other):
    rows = [replace(one, token_digests=frozenset({"a"})) for one in measured([0.0, 0.3, 0.0])]
    made = table([*rows[:2], replace(rows[2], **other)])
    marks = [[cells.UNLIKE in cell for cell in column(made, name)] for name in ("PPL", "PPL / base")]
    has_ratio = "objective" in other  # other tokens have none
    assert marks == [[False, False, not has_ratio], [False, False, has_ratio]]
    assert "PPL of h=4 means something else" in said(made) and cells.UNLIKE not in said(table(rows))
    assert cells.UNLIKE not in "".join(column(made, "Δ BLEU")) and (column(made, "PPL / base")[2] == "-") != has_ratio


def test_the_summary_says_how_much_rows_of_unlike_spread_could_have_shown():
    made = table([*measured([0.0, 0.0]), measured([0.0] * 3, spread=0.3)[2]])
    least, most = column(made, "detectable Δ")[1:]
    assert float(most) > 2 * float(least) and f" {least} to {most}, " in made.summary


def test_the_summary_says_what_a_row_that_is_set_apart_could_have_shown():
    made = table([*measured([0.0] * 6), measured([0.0] * 7, spread=1.0)[6]])
    *others, wild = map(float, column(made, "detectable Δ")[1:])
    assert wild > 5 * max(others) and f"{max(others)} would" in made.summary and f" {wild} in " in made.summary


def test_differing_text_or_vocabulary_has_a_note():
    base, other = measured([0.0, 0.3])
    made = table([base, replace(other, dataset="elsewhere")])  # the references may be the same
    assert not {"Δ BLEU", "Δ 95 %", "p"} & {*names(made)} and "*" not in made.markdown()
    assert "different datasets" in said(made) and read_csv(made)[1]["val/bleu.difference.low"] == ""
    made = table([base, replace(other, vocabulary=900)])
    assert "different vocabularies" in said(made) and column(made, "Δ BLEU")[1].endswith("*")


# --- Beside printed numbers


PAPER = PrintedTable("a paper", Printed("base", 25.8, 4.92, 65_000_000))


def printed_rows():
    """Rows with everything that a column may show."""
    rows = [row("base", 60.0, 61.0, 63.0, printed=PAPER.base, settings={"model.h": 8, "model.d_k": 64})]
    for place in range(1, 16):
        printed, keys = Printed("A", 25.8 - place / 10, 5.0, None, 3e18), {"model.h": 2**place, "model.d_k": place}
        name = f"h={2**place} d_k={place}"
        rows.append(row(name, 60 + place / 3, 61.0, 63.0, ppl=3.1, printed=printed, settings=keys))
    return rows


def test_printed_numbers_and_their_differences_stand_beside_ours():
    made = table(printed_rows(), printed=PAPER)
    assert column(made, "paper BLEU")[:2] == ["25.8", "25.7"] and column(made, "paper Δ BLEU")[:2] == ["", "-0.1"]
    assert column(made, "paper params")[:2] == ["65M", ""] and column(made, "row")[:2] == ["base", "(A) h=2 d_k=1"]
    assert column(made, "paper PPL / base")[:2] == ["", f"{5 / 4.92:.2f}"]
    others = table(printed_rows(), printed=PAPER._replace(source="Them 2020, Table 1", is_paper=False))
    assert column(others, "Them 2020 BLEU") == column(made, "paper BLEU") and "paper BLEU" not in names(others)


@pytest.mark.parametrize(("main", "kept"), [(0, "paper Δ BLEU"), (1, "paper PPL / base")])
def test_what_is_printed_of_the_main_metric_is_on_the_page_and_is_dropped_last(main, kept):
    made = table(printed_rows(), printed=PAPER, outcomes=[[BLEU, PPL], [PPL, BLEU]][main])
    ranks = {column.name: (column.page is not None, column.drop_rank) for column in made.columns}
    both = ["paper Δ BLEU", "paper PPL / base"]
    assert max(both, key=ranks.__getitem__) == kept and sum(ranks[name][0] for name in both) == 1


@pytest.mark.parametrize("is_by_loss", [False, True])
def test_a_terminal_drops_the_interval_of_the_main_metric_after_that_of_a_row_alone(is_by_loss):
    outcomes = [PPL, BLEU] if is_by_loss else [BLEU, PPL]
    ranks = {one.name: one.drop_rank for one in table(measured([0.0, 0.3, 0.0, 0.1]), outcomes=outcomes).columns}
    assert (ranks["PPL / base 95 %"] > ranks["BLEU 95 %"]) == is_by_loss
    assert ranks["p of PPL"] < ranks["PPL / base 95 %"]


# --- Output formats


def test_csv_has_full_precision_and_json_is_equal():
    rows = printed_rows()
    rows[3] = replace(rows[3], values=rows[3].values | {"val/ppl": [math.inf], "val/loss": [math.inf]})
    made = table(rows, printed=PAPER)
    lines, base = read_csv(made), statistics.mean(rows[0].values["val/bleu"])
    for line, one in zip(lines, rows, strict=True):
        scores = one.values["val/bleu"]
        assert float(line["val/bleu.mean"]) == pytest.approx(statistics.mean(scores), abs=1e-12)
        assert float(line["val/bleu.sd"]) == pytest.approx(statistics.stdev(scores), abs=1e-12)
        assert (int(line["val/bleu.n"]), int(line["seeds"]), float(line["flops"])) == (3, 3, 1e15)
        assert (float(line["paper/ppl"]), float(line["paper/bleu"])) == (one.printed.ppl, one.printed.score)
        if not one.is_base:
            difference = statistics.mean(scores) - base
            assert float(line["val/bleu.difference"]) == pytest.approx(difference, abs=1e-12)
    content = json.loads(made.json(), parse_constant=lambda name: pytest.fail(name))
    assert content["notes"] == made.notes and content["columns"]["BLEU"]
    assert content["rows"][3]["val/ppl.mean"] is None and column(made, "PPL")[3] == "inf"
    for line, record in zip(lines, content["rows"], strict=True):
        assert line.keys() == record.keys() and line["val/bleu.mean"] == str(record["val/bleu.mean"])


ODD = ["a_b&c%d#e~f^g\\h|i{j}", "[64, 64]", "*star", "two\nlines", "<b>", "`x` 'y' \"z\"", "--a -1"]
ODD += ["größer ∞ λσω ≥ – → 日本 ệ ơ ư"]


def test_markdown_shows_every_name_as_it_is():
    """Each on one line, whatever signs of Markdown and of HTML it has."""
    odd = [*ODD, "freeze=encoder.*,embedding.*", "x*y*z"]
    odd += ["*x* **y** _z_ __init__", "~~a~~ $b$ `c`", "[a](b) ![c](d) <i>e</i> &amp;"]
    made = table([row("base", 60.0), *(row(name, 60.0) for name in odd)])
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(made.markdown())
    lines = [i for i, token in enumerate(tokens) if token.type == "tr_open"]
    names = [tokens[i + 2].children for i in lines[2:]]
    assert all(part.type.startswith("text") for parts in names for part in parts)
    assert ["".join(part.content for part in parts) for parts in names] == [" ".join(o.split("\n")) for o in odd]


ABOUT_PPL = About(outcomes=[Outcome("ppl", "ppl", lower_is_better=True)])


def test_values_are_numbers_and_each_is_of_a_seed_that_is_done():
    row = Row.of_values("base", {"ppl": np.array([1.0, 2.0])}, is_base=True)
    made = make_table([row], ABOUT_PPL)
    assert not any("/" in cell for one in made.columns for cell in one.cells)
    for odd in (math.nan, math.inf):
        with pytest.raises(InputError, match="wide"):
            Row.of_values("wide", {"ppl": [1.0, odd]})


def test_a_table_without_notes_fits_a_narrow_terminal():
    made = make_table([Row(name="base", is_base=True), Row(name="a much longer name of a row")], ABOUT_PPL)
    assert made._replace(notes=[]).terminal(20)


def test_numbers_of_every_size_can_be_read():
    values = {"tiny": [1.25e-8, 1.5e-8], "huge": [1e28, 2e28]}
    rows = [Row.of_values(name, {name: of_row}) for name, of_row in values.items()]
    for one, digits in zip(rows, (9, 1), strict=True):
        made = make_table([one], About(outcomes=[Outcome(one.name, one.name, digits)]))
        text = column(made, one.name)[0]
        assert float(text.split()[0]) == pytest.approx(statistics.mean(values[one.name]), rel=0.1) and len(text) < 30
    huge = {"base": [1e28, 1.1e28, 1.2e28], "worse": [3e28, 3.1e28, 3.2e28]}
    made = make_table(
        [Row.of_values(name, {"ppl": of}, is_base=name == "base") for name, of in huge.items()], ABOUT_PPL
    )
    assert "is 2e+28 ppl higher" in made.summary and column(made, "Δ ppl")[1] == "+2e+28*"


def test_the_control_characters_of_a_name_cut_nothing_off_in_a_terminal():
    console = Console(width=80, file=io.StringIO())
    console.print(make_table([Row.of_values("\x1b[31mred\x1b[0m", {"ppl": [1.0, 2.0]})], ABOUT_PPL).terminal(80))
    assert r"\x1b[31mred\x1b[0m" in console.file.getvalue()


def test_a_caption_replaces_the_summary_and_a_narrow_table_fits_a_column():
    made = table([*measured([0.0, 0.3]), *(row(f"{'a long name ' * 5}{i}", 60.0) for i in range(15))])
    text = made.chosen(["row", "Δ BLEU"]).latex("Mine.")
    assert r"\caption{Mine.}" in text and made.summary[:20] not in text and r"\begin{table}[" in text
    assert r"\begin{table*}[" in made.latex()


def test_latex_compiles(tmp_path):
    """With every special character, and names of rows in other scripts."""
    if not shutil.which("pdflatex"):
        pytest.skip("no pdflatex: apt-get install texlive-latex-base")
    rows = [*measured([0.0, 0.3, 0.0]), *printed_rows()[1:], *(row(name, 60.0) for name in ODD)]
    (tmp_path / "table.tex").write_text(table(rows, printed=PAPER).latex())
    rules = r"\let\toprule\hline\let\midrule\hline\let\bottomrule\hline"  # where there is no booktabs
    page = rf"\documentclass{{article}}\IfFileExists{{booktabs.sty}}{{\usepackage{{booktabs}}}}{{{rules}}}"
    page += r"\begin{document}\input{table.tex}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 10_000 and "Missing character" not in done.stdout


@pytest.mark.parametrize("width", [80, 200])
def test_terminal_output_fits_the_width_with_all_rows(width):
    made = table(printed_rows(), printed=PAPER)
    console = Console(width=width, file=io.StringIO())
    console.print(made.terminal(width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    kept, words = [one for one in made.columns if one.drop_rank is None], text.split()
    assert {one.name for one in kept} >= {"row", "BLEU", "Δ BLEU"}
    assert all(word in words for one in kept for cell in one.cells for word in cell.split())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 250])
def test_what_a_terminal_hides_is_named_and_the_paper_goes_first(width):
    rows = [replace(one, printed=Printed("A", 25.0, 5.0)) for one in measured([0.0, 0.3, 0.0, 0.1, 0.2])]
    made = table(rows, printed=PAPER)
    lines = made.terminal(width).renderable.renderables
    (place,) = [place for place, one in enumerate(lines) if hasattr(one, "columns")]
    grid, texts = lines[place], lines[place + 1 :]
    shown, notes = [str(one.header).replace("\n", " ") for one in grid.columns], [one.plain for one in texts]
    hidden = [one.name for one in made.columns if one.name not in shown]
    assert all(name in notes[-1] for name in hidden) and len(notes) == len(made.notes)
    papers = [name for name in shown if name.startswith("paper")]
    assert not papers or all(name.startswith("paper") or name == "h" for name in hidden)


# --- Anyone's arrays


def test_the_example_of_the_module_makes_a_table():
    from transformer_pl.table import table as module

    code = "\n".join(line[4:] for line in module.__doc__.splitlines() if line.startswith("    "))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "| wide |" in done.stdout, done.stderr


def test_tables_need_numpy_and_scipy_alone():
    code = "import sys, transformer_pl.table.table; "
    code += "sys.exit(bool({'torch', 'lightning', 'sacrebleu', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_rows_of_anyone_have_one_table_for_several_measures():
    measures = [Outcome("acc", "accuracy", 3), Outcome("loss", "loss", 2, lower_is_better=True)]
    values = {"base": [[0.91, 0.92, 0.90], [1.0, 1.1, 0.9]], "wide": [[0.96, 0.97, 0.95], [1.0, 1.1, 0.95]]}
    rows = [
        Row.of_values(name, {"acc": acc, "loss": loss}, is_base=name == "base") for name, (acc, loss) in values.items()
    ]
    made = make_table(rows, About(outcomes=measures))
    assert column(made, "Δ accuracy")[1].endswith("*") and not column(made, "Δ loss")[1].endswith("*")
    assert "wide is" in made.summary and re.search(r"wide cannot be told apart from base in loss", made.summary)
