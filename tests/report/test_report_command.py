"""The command on results that are there already: which set, which rows, in what order, beside which base."""

import csv
import io
import json
import shlex
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import tiny_trials
from helpers import a_result, little_text, write_sweep
from made_rows import sweep_table

from transformer_pl.laws.checks import Checks
from transformer_pl.laws.law import Found
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.report.options import RunsReport
from transformer_pl.report.runs import runs_rows
from transformer_pl.runtime.files import write_json
from transformer_pl.sweep import __main__ as sweep_command
from transformer_pl.sweep import grid
from transformer_pl.table.table import make_table
from transformer_pl.tasks.translation import Translation

KEYS = tiny_trials.TINY | {"data.val": "val", "data.test": "test"}
BLEU = Translation.measure


def scored(rng, quality, count=60):
    """The ten numbers of BLEU of each sentence, nats and tokens. quality: the share of n-grams that match."""
    possible = np.array([9, 8, 7, 6])
    matching = rng.binomial(possible, quality, (count, 4))
    rest = np.tile([9, 9, 8, 7, 6, 9, 9], (count, 1))
    return np.column_stack([matching, rest[:, 1:5] + 0, rest[:, 5:7], rng.normal(9, 1, count), np.full(count, 9)])


def finish(path, runs, qualities, seeds=3, **more):
    """Give each trial of a sweep file a result, whose quality depends on its row: (of val, of test)."""
    rng = np.random.default_rng(1)
    sweep = read_sweep(path, seeds=[str(seed) for seed in range(1, seeds + 1)])
    for one in plan_trials(sweep, runs):
        one.make()
        metrics = {}
        for split, quality in zip(("val", "test"), qualities[one.row], strict=True):
            sentences = scored(rng, quality)
            one.save_sentences(split, ["a"] * len(sentences), BLEU, sentences)
            score = float(BLEU.of_sums(sentences[:, :10].sum(0)))
            metrics |= {f"{split}/bleu": score, f"{split}/ppl": 3.0, f"{split}/loss": 1.1, f"{split}/chrf": 50.0}
        write_json(one.folder / "identity.json", one.identity.inputs)
        ids = {"id": one.id, "weights_id": one.identity.weights}
        params = 1000 + len(one.row)
        config = one.config.flat()
        one.finish(a_result(metrics=metrics, params=params, config=config, seed=one.config.seed, **ids, **more))
    return path


def records(*words):
    code, out, err = tiny_trials.ended(report.main, *words, "--format=csv")
    assert code == 0, err
    return list(csv.DictReader(io.StringIO(out)))


def refused(*words):
    code, out, err = tiny_trials.ended(report.main, *words)
    assert (code, out) == (2, ""), out
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sweep files with the same base. h=4 is better on the validation set, and worse on the test set."""
    folder = tmp_path_factory.mktemp("results")
    keys = KEYS | {"data.path": little_text(folder / "text", val=60, test=60)}
    one = write_sweep(folder / "one.yaml", keys | {"variant": ["base", "model.h=4"], "seed": [1, 2, 3]})
    two = write_sweep(folder / "two.yaml", keys | {"variant": ["base", "model.p_drop=0.2"], "seed": [1, 2, 3]})
    finish(one, folder / "runs", {"base": (0.5, 0.5), "h=4": (0.8, 0.2)})
    finish(two, folder / "runs", {"base": (0.5, 0.5), "p_drop=0.2": (0.3, 0.5)})
    return folder


@pytest.fixture
def words(folder):
    return [folder / "one.yaml", f"--runs={folder / 'runs'}"]


def test_a_piped_table_is_no_wider_than_a_page_and_its_last_line_is_a_command_that_works(folder, monkeypatch):
    """What has no place in it is named."""
    monkeypatch.delenv("COLUMNS")
    settings = "model.h=4 model.d_ff=1024 model.p_drop=0.2 optim.eps_ls=0.2 optim.warmup=500"
    wide = write_sweep(folder / "wide.yaml", KEYS | {"data.path": folder / "text", "variant": ["base", settings]})
    finish(wide, folder / "runs", defaultdict(lambda: (0.5, 0.5)), seeds=1)
    code, out, _ = tiny_trials.ended(report.main, wide, f"--runs={folder / 'runs'}")
    *lines, last = out.splitlines()
    assert code == 0 and max(map(len, lines)) <= 120 and "d_ff" in out.partition("Hidden")[2]
    *_, page = tiny_trials.ended(report.main, *shlex.split(last.partition(": ")[2])[3:])[1].splitlines()
    assert Path(page).name == "report.html" and Path(page).exists()


@pytest.mark.parametrize(("split", "sign"), [("val", 1), ("test", -1)])
def test_differences_are_of_the_set_that_is_named(words, split, sign):
    base, row = records(*words, f"--split={split}")
    key = f"{split}/bleu.difference"
    assert sign * float(row[key]) > 0 and float(row[f"{key}.p"]) < 0.05 and row["name"] == "h=4"
    assert float(row[f"{split}/bleu.mean"]) - float(base[f"{split}/bleu.mean"]) == pytest.approx(float(row[key]))
    assert not row.get(f"{ {'val': 'test', 'test': 'val'}[split] }/bleu.difference.p")


def test_any_row_can_be_the_base(words, folder):
    """Names, folders and ids stay; differences turn round."""
    before, after = records(*words), records(*words, "--base=h=4")
    assert [one["name"] for one in after] == ["base", "h=4"]
    key = "val/bleu.difference"
    assert float(after[0][key]) == -float(before[1][key]) and not after[1][key]
    assert float(after[0][f"{key}.p"]) == pytest.approx(float(before[1][f"{key}.p"]), abs=0.003)
    assert "did you mean h=4" in refused(*words, "--base=h=44")
    assert "(reference)" in tiny_trials.ended(report.main, *words, "--base=h=4", "--format=md")[1]


def test_files_with_the_same_base_make_one_table_with_one_correction(words, folder):
    whole = records(words[0], folder / "two.yaml", words[1], "--together")
    assert [one["name"] for one in whole] == ["base", "h=4", "p_drop=0.2"]
    alone = records(*words)[1]
    assert whole[1]["val/bleu.difference"] == alone["val/bleu.difference"]
    assert float(whole[1]["val/bleu.difference.low"]) < float(alone["val/bleu.difference.low"])
    other = folder / "other.yaml"
    write_sweep(other, KEYS | {"data.path": folder / "text", "variant": ["base", "model.h=2"], "optim.lr_scale": 0.5})
    finish(other, folder / "runs", {"base": (0.5, 0.5), "h=2": (0.5, 0.5)}, seeds=1)
    assert "same base" in refused(words[0], other, words[1], "--together")
    assert "--together" in refused(*words, "--together")


@pytest.mark.parametrize(
    ("sort", "expected"), [("file", ["base", "h=4"]), ("score", ["h=4", "base"]), ("params", ["h=4", "base"])]
)
def test_rows_stand_in_the_order_that_is_asked_for(words, sort, expected):
    assert [one["name"] for one in records(*words, f"--sort={sort}")] == expected


def test_columns_are_chosen_by_their_headings(words):
    _, out, _ = tiny_trials.ended(report.main, *words, "--format=md", "--columns=row,p,BLEU")
    assert next(line for line in out.splitlines() if line.startswith("|")) == "| row | p | BLEU |"
    assert "params, PPL, chrF, BLEU" in refused(*words, "--columns=row,BLUE")


def test_a_table_of_some_rows_of_a_larger_sweep_names_it(words, folder, tmp_path):
    """Its p is corrected for fewer rows. A sweep of the same rows is not named."""
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    for name, variant in (("larger", ["base", "model.h=4", "model.h=2"]), ("equal", ["base", "model.h=4"])):
        keys = KEYS | {"data.path": folder / "text", "variant": variant, "seed": [1, 2, 3]}
        sweep = read_sweep(write_sweep(folder / f"{name}.yaml", keys))
        trials = [{"row": one.row, "id": one.id, "seed": one.config.seed} for one in plan_trials(sweep, runs)]
        (runs / "sweeps" / f"{name}@demo").mkdir(parents=True)
        write_json(runs / "sweeps" / f"{name}@demo" / "plan.json", {"name": name, "scale": "demo", "trials": trials})
    _, out, _ = tiny_trials.ended(report.main, words[0], f"--runs={runs}", "--format=md")
    assert "the 3 of larger@demo" in out and "equal@demo" not in out


def test_a_test_set_whose_sentences_are_not_here_has_no_tests_and_a_note(words, folder, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    for path in (runs / "trials").glob("*/scores.test.jsonl"):
        path.unlink()
    _, out, _ = tiny_trials.ended(report.main, words[0], f"--runs={runs}", "--split=test", "--format=md")
    assert "no tests" in out and "| Δ BLEU |" in out


def test_factors_and_pairs_are_tables_of_their_own(words):
    (pair,) = records(*words, "--pairs")
    assert (pair["row"], pair["other"]) == ("h=4", "base") and float(pair["difference.p"]) < 0.05
    assert "two or three factors" in refused(*words, "--factors")
    assert "--factors: is not for --pairs" in refused(*words, "--factors", "--pairs")
    assert "--base" in refused(*words, "--pairs", "--base=h=4")


@pytest.mark.parametrize("other", [["--pairs"], ["--split=test"], ["--trials", "--format=csv"]])
def test_what_the_page_does_not_have_is_not_sent_to_wandb(words, other):
    assert "--wandb" in refused(*words, "--wandb", *other)


def test_a_margin_is_of_the_metric_that_is_compared(words):
    _, row = records(*words, "--margin=bleu=90")
    assert row["val/bleu.difference.within.90"] == "equal*"
    assert "--margin chrf" in refused(*words, "--margin=chrf=1")


def test_results_can_be_read_without_their_text(words, folder, tmp_path):
    """As on another machine. A row that was added since is not known."""
    before = records(*words)
    shutil.move(folder / "text", tmp_path / "elsewhere")
    try:
        assert records(*words) == before
        longer = folder / "longer.yaml"
        keys = KEYS | {"data.path": folder / "text"}
        write_sweep(longer, keys | {"variant": ["base", "model.h=4", "model.h=1"], "seed": [1, 2, 3]})
        assert [one["done"] for one in records(longer, words[1])] == ["3", "3", "0"]
    finally:
        shutil.move(tmp_path / "elsewhere", folder / "text")


def test_two_texts_of_one_name_are_named(folder, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    one = next(path for path in sorted((runs / "trials").glob("h=4*-s1-*")))
    inputs = json.loads((one / "identity.json").read_text())
    (one / "identity.json").write_text(json.dumps(inputs | {"data": {"files": {"val.en": ["0"]}}}))
    shutil.move(folder / "text", tmp_path / "elsewhere")
    try:
        assert "different ones" in refused(folder / "one.yaml", f"--runs={runs}")
        result = json.loads((one / "result.json").read_text())  # as of a scale with shorter sentences of the same hub
        write_json(one / "result.json", result | {"config": result["config"] | {"data.max_words": 5}})
        assert records(str(folder / "one.yaml"), f"--runs={runs}")[0]["done"] == "3"
    finally:
        shutil.move(tmp_path / "elsewhere", folder / "text")


def test_rows_on_the_same_evaluation_text_are_compared_whatever_the_training_text(tmp_path):
    """As with back-translation, or a filter."""
    first = little_text(tmp_path / "first", val=60, test=60)
    shutil.copytree(first, tmp_path / "second")
    with (tmp_path / "second" / "train.en").open("a") as en, (tmp_path / "second" / "train.de").open("a") as de:
        en.write("more\n")
        de.write("mehr\n")
    path = write_sweep(tmp_path / "texts.yaml", KEYS | {"data.path": [str(first), str(tmp_path / "second")]})
    (names, runs) = ([row.name for row in read_sweep(path).rows], tmp_path / "runs")
    finish(path, runs, {names[0]: (0.5, 0.5), names[1]: (0.8, 0.5)}, vocabulary="x")
    words = [path, f"--runs={runs}", "--seeds=1,2,3", f"--base={names[0]}"]
    assert float(records(*words)[1]["val/bleu.difference.p"]) < 0.05
    (tmp_path / "second" / "val.de").write_text((first / "val.de").read_text().upper())
    finish(path, runs, {names[0]: (0.5, 0.5), names[1]: (0.8, 0.5)})
    assert not records(*words)[1]["val/bleu.difference"]


def test_perplexities_of_other_tokens_are_not_compared(folder, tmp_path):
    """The vocabularies of the trials are known by their digest."""
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    words = [folder / "one.yaml", f"--runs={runs}"]
    assert records(*words)[1]["val/loss.difference.p"]
    for path in (runs / "trials").glob("h=4*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocabulary": "other"}))
    for path in (runs / "trials").glob("base*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocabulary": "one"}))
    _, row = records(*words)
    assert not row["val/loss.difference.p"] and row["val/bleu.difference.p"]


def test_a_csv_of_the_trials_has_the_same_means_and_the_same_part_of_the_seeds(words, folder, tmp_path):
    _, out, _ = tiny_trials.ended(report.main, *words, "--trials", "--format=csv")
    path = tmp_path / "trials.csv"
    path.write_text(out)
    sweep = read_sweep(folder / "one.yaml")
    ours, _ = sweep_table((sweep, plan_trials(sweep, folder / "runs")))
    theirs = make_table(*runs_rows(path, RunsReport(files=(path,), row=("row",), metric=("val/bleu",), seed="seed")))
    for key in ("name", "val/bleu.mean", "val/bleu.sd", "val/bleu.difference", "val/bleu.n"):
        assert [one[key] for one in theirs.records] == [one[key] for one in ours.records]
    for one, other in zip(theirs.contrasts, ours.contrasts, strict=True):
        assert np.array(one.mean.parts) == pytest.approx(np.array(other.mean.parts))
        assert one.mean.variance_by_sentences == 0
    parts = [np.array(contrasts[1].estimate.parts) for contrasts in (theirs.contrasts, ours.contrasts)]
    assert parts[0] == pytest.approx(parts[1])


def test_a_deviation_of_zero_is_named_with_its_metric_where_there_are_several(tmp_path):
    path = tmp_path / "means.csv"
    path.write_text("model,loss,sd,acc,se\nbase,1,0.1,3,0.2\na,2,0,4,0.3\nb,2,0.2,4,0\n")
    both = {"row": ("model",), "metric": ("loss", "acc"), "std": ("sd", "se"), "n": "5"}
    _, about = runs_rows(path, RunsReport(files=(path,), **both))
    assert "no test: a (loss), b (acc)." in " ".join(about.added)
    _, about = runs_rows(path, RunsReport(files=(path,), **both | {"metric": ("loss",), "std": ("sd",)}))
    assert "no test: a." in " ".join(about.added)


# --- Names of one's own


def write_names(folder, text):
    path = folder / "names.yaml"
    path.write_text(text)
    return path


NAMES = """
rows:
  - heading: Heads
  - {row: h=4, name: four heads, published: {bleu: 25.5, source: "a paper"}}
  - {row: base, name: eight heads}
"""


def test_rows_have_names_of_one_s_own_in_every_format(words, tmp_path):
    path, printed = write_names(tmp_path, NAMES), {}
    for form in ("terminal", "md", "tex"):
        shown = [f"--format={form}", "--columns=row,BLEU,a paper BLEU"]  # LaTeX lacks the room for all columns
        _, printed[form], _ = tiny_trials.ended(report.main, *words, f"--rows={path}", *shown)
        heads, four, eight = (printed[form].rindex(text) for text in ("Heads", "four heads", "eight heads"))
        assert heads < four < eight
        assert "four heads is" in " ".join(printed[form].split()) and "25.5" in printed[form]
    code, out, err = tiny_trials.ended(report.main, *words, f"--rows={path}", "--format=html")
    assert code == 0, err
    page = Path(out.strip()).read_text()
    assert page.index(">Heads<") < page.index("four heads", page.index("<tbody>")) and "four heads" in page
    first, second = records(*words, f"--rows={path}")
    assert (first["name"], second["name"]) == ("h=4", "base") and first["paper/bleu"] == "25.5"
    assert first["val/bleu.difference"] == records(*words)[1]["val/bleu.difference"]


def test_a_file_beside_the_sweep_file_is_read(folder, tmp_path):
    shutil.copy(folder / "one.yaml", tmp_path)
    write_names(tmp_path, NAMES).rename(tmp_path / "one.rows.yaml")
    _, out, _ = tiny_trials.ended(report.main, tmp_path / "one.yaml", f"--runs={folder / 'runs'}", "--format=md")
    assert "| eight heads |" in out


def test_rows_without_a_name_come_last_and_other_orders_have_no_headings(words, tmp_path):
    path = write_names(tmp_path, "rows: [{heading: A}, {row: h=4, name: four}]")
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--format=md")
    assert out.index("**A**") < out.index("| four |") < out.index("**Others**") < out.index("| base |")
    path = write_names(tmp_path, "rows: [{heading: A}, {row: base, name: eight}, {heading: B}, {row: h=4, name: four}]")
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--sort=params", "--format=md")
    assert out.index("| four |") < out.index("| eight |") and "**" not in out


def test_numbers_of_the_test_set_have_differences_beside_ours_of_the_test_set_alone(words, tmp_path):
    text = """
source: a paper
rows:
  - {row: h=4, published: {bleu: 25.5, split: test}}
  - {row: base, published: {bleu: 25.8, split: test}}
"""
    for split, difference in (("val", ""), ("test", "-0.3")):
        four = {row["name"]: row for row in records(*words, f"--rows={write_names(tmp_path, text)}", "--split", split)}
        assert four["h=4"]["paper/test/bleu"] == "25.5"
        assert four["h=4"]["paper/bleu.difference"] == difference


def test_numbers_that_others_printed_stand_beside_their_rows(words, tmp_path):
    """Whatever the order; their differences are to the row that is base, if that is from the same source."""
    text = """
source: a paper
rows:
  - {row: h=4, name: four, published: {bleu: 25.25, ppl: 5}}
  - {row: base, published: {bleu: 25.753}}
"""
    for order in ("file", "score"):
        rows = {row["name"]: row for row in records(*words, f"--rows={write_names(tmp_path, text)}", f"--sort={order}")}
        printed = [[rows[name][f"paper/{key}"] for key in ("bleu", "bleu.difference", "ppl")] for name in rows]
        assert dict(zip(rows, printed, strict=True)) == {"h=4": ["25.25", "-0.503", "5.0"], "base": ["25.753", "", ""]}
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={tmp_path / 'names.yaml'}", "--format=md")
    assert "| -0.503 |" in out and "a paper" in out
    _, page, _ = tiny_trials.ended(report.main, *words, f"--rows={tmp_path / 'names.yaml'}", "--format=html")
    assert "a paper" in Path(page.strip()).read_text()
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={tmp_path / 'names.yaml'}", "--format=md", "--no-paper")
    assert "| four |" in out and "a paper BLEU" not in out
    write_names(tmp_path, text.replace("25.753", "25.753, source: a blog"))
    found = records(*words, f"--rows={tmp_path / 'names.yaml'}")
    assert [row["paper/bleu.difference"] for row in found] == ["", ""]
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={tmp_path / 'names.yaml'}", "--format=md")
    assert "| published BLEU |" in out  # which is of neither alone


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rows: [{row: h=5, name: five}]", "did you mean h=4"),
        ("rows: [{row: h=4, name: a}, {row: h=4, name: b}]", "row = h=4"),
        ("rows: [{row: h=4, name: a}, {row: base, name: a}]", "name = a"),
        ("rows: [{row: h=4, name: base}]", "name = base"),
        ("rows: [{row: h=4, published: {source: a, bleu: 2550}}]", "bleu = 2550"),
        ("rows: [{name: a}]", "heading"),
        ("rows: [{row: h=4, published: {source: a, bleu: abc}}]", "rows.0.published.bleu = abc"),
        ("rows: [{row: h=4, published: {source: a, bleu: .nan}}]", "rows.0.published.bleu"),
        ("rows: [{row: h=4, published: {source: a, bleu: true}}]", "rows.0.published.bleu"),
        ("rows: [{row: h=4, published: {source: a}}]", "bleu: 25.5"),
        ("rows: [{row: h=4, published: {source: a, blue: 3}}]", "did you mean bleu"),
        ("rows: [{row: h=4, published: {bleu: 3}}]", "source"),
        ("rows: [{row: h=4, published: {source: a, bleu: 3, split: dev}}]", "split = dev"),
        ("rows: [{row: h=4, published: 3}]", "rows.0.published = 3"),
        ("rows: [{row: h=4}, {heading: Heads}]", "heading = Heads"),
        ("rows: [{row: h=4, title: a}]", "rows.0.title"),
        ("- {row: h=4}", "names.yaml"),
    ],
)
def test_files_of_names_that_do_not_fit(words, tmp_path, text, named):
    assert named in refused(*words, f"--rows={write_names(tmp_path, text)}")


@pytest.mark.parametrize(
    "other",
    [
        ["--trials", "--format=csv", "--rows=names.yaml"],
        ["--trials", "--format=csv", "--sort=score"],
        ["--trials", "--format=csv", "--margin=bleu=1"],
        ["--pairs", "--sort=score"],
        ["--factors", "--rows=names.yaml"],
    ],
    ids=" ".join,
)
def test_an_option_that_would_do_nothing_is_refused(words, other):
    assert other[-1].partition("=")[0] in refused(*words, *other)


def test_the_summary_names_base_as_the_table_does(words, tmp_path):
    path = write_names(tmp_path, NAMES)
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--format=md")
    assert "than base (eight heads)" in out.splitlines()[0]
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--base=h=4", "--format=md")
    assert "than four heads" in out.splitlines()[0]


def test_a_file_beside_the_sweep_file_is_left_out_where_rows_have_other_names(folder, tmp_path):
    """--set changes base, and so what rows differ in."""
    text = (folder / "one.yaml").read_text()
    (tmp_path / "one.yaml").write_text(text.replace("model.h=4", "model.h=4 optim.beta2=0.9"))
    write_names(tmp_path, NAMES.replace("h=4", "h=4 beta2=0.9")).rename(tmp_path / "one.rows.yaml")
    words = [tmp_path / "one.yaml", f"--runs={tmp_path / 'runs'}", "--plan"]
    for words_of_set, is_left_out in ((["--seeds=1"], False), (["--set", "optim.beta2=0.9"], True)):
        code, _, err = tiny_trials.ended(sweep_command.main, *words, *words_of_set)
        assert code == 0 and ("one.rows.yaml" in err) == is_left_out, err


def test_the_sweep_command_uses_the_names_and_refuses_wrong_ones_before_it_starts(folder, tmp_path):
    shutil.copy(folder / "one.yaml", tmp_path)
    names = write_names(tmp_path, NAMES).rename(tmp_path / "one.rows.yaml")
    words = [tmp_path / "one.yaml", f"--runs={folder / 'runs'}"]
    code, out, err = tiny_trials.ended(sweep_command.main, *words)
    assert code == 0, err
    assert out.index("four heads") < out.index("eight heads")
    names.write_text(NAMES.replace("h=4", "h=5"))
    code, out, err = tiny_trials.ended(sweep_command.main, *words)
    assert code == 2 and "did you mean h=4" in err and "four" not in out


def test_what_a_plan_notes_of_a_part_stands_under_its_table(folder, tmp_path, monkeypatch):
    """In that of the sweep command, and of the report, which makes no plan. It says what a law has seen of a part."""
    found = Found("data.tokenizer = mine.Lower", "its_tokens_become_text", "", "", "holds", "its case is lost")
    monkeypatch.setattr(grid, "checks_of", lambda configs, *_: [Checks((found,)) for _ in configs])
    for file in ("one.yaml", "two.yaml"):
        shutil.copy(folder / file, tmp_path)
    words = [tmp_path / "one.yaml", f"--runs={folder / 'runs'}"]
    code, out, err = tiny_trials.ended(sweep_command.main, *words)
    noted = "mine.Lower: its case is lost."
    assert code == 0 and noted in out, err
    _, out, _ = tiny_trials.ended(report.main, *words, "--format=md")
    _, other, _ = tiny_trials.ended(report.main, tmp_path / "two.yaml", words[1], "--format=md")
    assert noted in out and noted not in other
