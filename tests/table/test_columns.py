"""The table of rows: what its cells say, its notes and its formats."""

import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import ROOT
from made_rows import BLEU, column, comparisons, measured, measured_sentences, names, row, said, sampled, table
from markdown_it import MarkdownIt
from rich.console import Console

from transformer_pl.table import cells
from transformer_pl.table import statistics as stats
from transformer_pl.table.html import page_columns
from transformer_pl.table.rows import About, Contrast, Measure, Printed, PrintedTable, Row, Training
from transformer_pl.table.table import make_table
from transformer_pl.trials.convergence import Convergence

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


# --- Notes


def test_the_first_note_says_how_the_rows_were_trained():
    training = Training(2400, 512, "some text", ["N 10"], ["width 0.5"], 3)
    note = table([row("base", 60.0)], training=training).notes[0]
    assert all(word in note for word in ("2,400", "512", "some text", "N 10", "width 0.5", "last 3 checkpoints"))


def test_a_table_that_has_everything_to_say_says_it_in_four_notes():
    """Rows that diverged, lack seeds, had not converged, on another dataset; a component that breaks a property."""
    rows = [
        *ended(measured([0.0, 0.3, 0.0]), FALLING, FLAT, None),
        row("h=2", 60.0),
        row("h=16", None, 61.0, state="diverged"),
        row("path=elsewhere", 61.0, dataset="elsewhere"),
    ]
    rows[1] = replace(rows[1], exempt=["mine.Attention does not keep future_is_hidden: on purpose"])
    made = table(rows, training=Training(2400, 512, "some text"))
    assert len(made.notes) == 4 and all(len(note) < 900 for note in made.notes)
    for word in ("mine.Attention", "future_is_hidden", "1 trial", "trainer.val_every", "4 rows"):
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
    assert made.latex().count(r"$\ddagger$") == made.markdown().count(cells.EXEMPT) == 2
    for base, exempt in (read_csv(made), json.loads(made.json())["rows"]):
        assert not base["exempt"] and "on purpose" in exempt["exempt"]


# --- Statistics


def test_significant_differences_are_marked():
    rows = measured([0.0, 0.3, 0.0])
    made = table(rows)
    base, better, same = zip(column(made, "Δ BLEU"), column(made, "p"), strict=True)
    assert base == ("", "") and better[0].endswith("*") and better[1] == "<0.001"
    assert not same[0].endswith("*") and float(same[1]) > 0.05
    assert [cell.endswith("*") for cell in column(made, "PPL")] == [False, True, False]
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
    ("low", "high", "cell"),
    [
        (-0.02, 0.05, "-0.02 to +0.05"),
        (-6.3, 7.5, "-6.3 to +7.5"),
        (-0.036, -0.004, "-0.036 to -0.004"),
        (0.04, 3.21, "+0.04 to +3.21"),
        (-2e-4, 12.34, "-0.0002 to +12.3400"),
        (0.0, 0.0, "+0.0 to +0.0"),
    ],
)
def test_no_bound_of_an_interval_looks_like_zero_unless_it_is(low, high, cell):
    contrast = Contrast(row("h=1"), BLEU, estimate=estimate((low + high) / 2, low, high))
    assert cells.difference_interval(contrast) == cell


@pytest.mark.parametrize(
    ("difference", "half", "cell", "ends"),
    [
        (-0.036, 0.033, "-0.036*", "-0.069 to -0.003"),
        (0.0004, 0.0003, "+0.0004*", "+0.0001 to +0.0007"),
        (2.04, 0.95, "+2.0*", "+1.1 to +3.0"),
        (-0.036, 1.0, "+0.0", "-1.0 to +1.0"),
    ],
)
def test_a_number_has_the_digits_of_its_interval(difference, half, cell, ends):
    """So no significant difference looks like zero, and none lies outside of its interval."""
    its, mean = estimate(difference, difference - half, difference + half), estimate(1, 0.004, 1.996)
    p = 0.01 if half < abs(difference) else 0.3
    contrast = Contrast(row("h=4", 1 + difference), BLEU, difference, mean, its, p)
    assert cells.difference(contrast) == cell and cells.difference_interval(contrast) == ends
    assert cells.score(contrast) == f"{1 + difference:.3f}"


# --- Rows that have not converged


FALLING, FLAT = Convergence(0.05, 0.004, 9), Convergence(0.003, 0.004, 9)


def ended(rows, *endings):
    return [replace(one, ending=ending) for one, ending in zip(rows, endings, strict=True)]


def test_a_row_that_still_falls_is_marked():
    made = table(ended(measured([0.0, 0.3, 0.3, 0.0]), FLAT, FALLING, FLAT, None))
    for name in ("BLEU", "PPL"):
        assert ["†" in cell for cell in column(made, name)] == [False, True, False, False]
    assert not any("†" in cell for cell in column(made, "Δ BLEU"))
    assert "4.9%" in said(made) and "trainer.val_every" in said(made)
    lines = read_csv(made)
    assert (float(lines[1]["val/loss.fall"]), float(lines[1]["val/loss.fall.noise"])) == (0.05, 0.004)
    assert lines[3]["val/loss.fall"] == ""


def test_a_table_of_best_validations_has_their_steps_and_names_the_test_set():
    """One such row is enough. The mark is gone where the best validation, as the mean of seeds, lies early."""
    rows = ended(measured([0.0, 0.3, 0.3]), FLAT, FALLING._replace(scored=0.5), FALLING)
    assert "--split test" not in said(table(rows))
    rows[1] = replace(rows[1], is_selected=True, scored_steps=[400, 500, 750])
    made = table(rows)
    assert "--split test" in said(made)
    assert column(made, "step")[1] == "550" and float(read_csv(made)[1]["scored_step"]) == 550
    assert ["†" in cell for cell in column(made, "BLEU")] == [False, False, True]


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
        assert text.startswith("h=1 is")
    assert json.loads(made.json())["summary"] == made.summary and "h=1 is" in made.latex()


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
    assert column(made, "paper Δ PPL")[:2] == ["", "+0.08"]
    others = table(printed_rows(), printed=PAPER._replace(source="Them 2020, Table 1", is_paper=False))
    assert column(others, "Them 2020 BLEU") == column(made, "paper BLEU") and "paper BLEU" not in names(others)


# --- Output formats


def test_csv_has_full_precision_and_json_is_equal():
    rows = printed_rows()
    rows[3] = replace(rows[3], values=rows[3].values | {"val/ppl": [float("inf")]})
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


ODD = [
    "a_b&c%d#e~f^g\\h|i{j}",
    "[64, 64]",
    "*star",
    "two\nlines",
    "<b>",
    "größer ∞ λσω ≥ – → 日本",
    "`x` 'y' \"z\"",
    "--a -1",
]


def test_markdown_shows_every_name_as_it_is():
    """Each on one line, whatever signs of Markdown and of HTML it has."""
    odd = [*ODD, "*x* **y** _z_ __init__", "~~a~~ $b$ `c`", "[a](b) ![c](d) <i>e</i> &amp;"]
    made = table([row("base", 60.0), *(row(name, 60.0) for name in odd)])
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(made.markdown())
    lines = [i for i, token in enumerate(tokens) if token.type == "tr_open"]
    names = [tokens[i + 2].children for i in lines[2:]]
    assert all(part.type.startswith("text") for parts in names for part in parts)
    assert ["".join(part.content for part in parts) for parts in names] == [" ".join(o.split("\n")) for o in odd]


ABOUT_PPL = About(measures=[Measure("ppl", "ppl", lower_is_better=True)])


def test_numbers_of_every_size_can_be_read():
    values = {"tiny": [1.25e-8, 1.5e-8], "huge": [1e28, 2e28]}
    rows = [Row.of_values(name, {name: of_row}) for name, of_row in values.items()]
    for one, digits in zip(rows, (9, 1), strict=True):
        made = make_table([one], About(measures=[Measure(one.name, one.name, digits)]))
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
    text = made.chosen(["row", "Δ BLEU"]).latex("x", "Mine.")
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
    measures = [Measure("acc", "accuracy", 3), Measure("loss", "loss", 2, lower_is_better=True)]
    values = {"base": [[0.91, 0.92, 0.90], [1.0, 1.1, 0.9]], "wide": [[0.96, 0.97, 0.95], [1.0, 1.1, 0.95]]}
    rows = [
        Row.of_values(name, {"acc": acc, "loss": loss}, is_base=name == "base") for name, (acc, loss) in values.items()
    ]
    made = make_table(rows, About(measures=measures))
    assert column(made, "Δ accuracy")[1].endswith("*") and not column(made, "Δ loss")[1].endswith("*")
    assert "wide is" in made.summary and re.search(r"wide cannot be told apart from base in loss", made.summary)
