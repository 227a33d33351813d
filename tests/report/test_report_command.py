"""The command on results that are there already: which set, which rows, in what order, beside which base."""

import csv
import io
import json
import shlex
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import tiny_trials
from helpers import a_result, little_text, write_sweep
from made_rows import sweep_table

from transformer_pl.config import Data
from transformer_pl.data.prepare import prepare
from transformer_pl.laws.checks import Checks
from transformer_pl.laws.law import Found
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.report.report_options import RunsReport
from transformer_pl.report.runs import runs_rows
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.report.sweep_table import rows_and_about
from transformer_pl.runtime.files import write_json
from transformer_pl.sweep import __main__ as sweep_command
from transformer_pl.sweep import grid
from transformer_pl.table.statistics import estimate
from transformer_pl.table.table import make_table
from transformer_pl.task import Corpus, of_document
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TrialFolder

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
    for one in plan_trials(sweep, RunsFolder(runs)):
        one.folder.make()
        metrics = {}
        for split, quality in zip(one.config.data.evaluated, qualities[one.origin.row], strict=True):
            sentences = scored(rng, quality)
            one.folder.save_sentences(split, ["a"] * len(sentences), BLEU, sentences)
            score = float(BLEU.of_sums(sentences[:, :10].sum(0)))
            metrics |= {f"{split}/bleu": score, f"{split}/ppl": 3.0, f"{split}/loss": 1.1, f"{split}/chrf": 50.0}
        write_json(one.folder.path / "identity.json", one.identity.inputs)
        ids = {"id": one.id, "weights_id": one.identity.weights}
        params = 1000 + len(one.origin.row)
        config = one.config.flat()
        one.folder.finish(a_result(metrics=metrics, params=params, config=config, seed=one.config.seed, **ids, **more))
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


def test_each_further_set_is_a_measure_with_columns_tests_and_a_figure_of_its_own(folder):
    """Behind the main one, of which the table is the same as without them."""
    keys = KEYS | {"data.path": str(folder / "text"), "variant": ["base", "model.h=4"], "seed": [1, 2, 3]}
    sets = [f"{name}={folder / 'text'}" for name in ("news", "old")]
    file = write_sweep(folder / "sets.yaml", keys | {"data.sets": [sets]})
    finish(file, folder / "runs", {"base": (0.5, 0.5, 0.5, 0.5), "h=4": (0.8, 0.2, 0.2, 0.5)})
    words = [file, f"--runs={folder / 'runs'}"]
    _, row = records(*words)
    assert float(row["news/bleu.difference"]) < 0 < float(row["val/bleu.difference"])
    assert all(float(row[f"{name}/bleu.difference.p"]) < 0.05 for name in ("val", "news"))
    assert float(row["old/bleu.difference.p"]) > 0.05
    code, table, _ = tiny_trials.ended(report.main, *words, "--format", "md")
    headings = [cell.strip() for cell in next(line for line in table.splitlines() if line.startswith("|")).split("|")]
    assert code == 0 and headings.index("BLEU") < headings.index("news BLEU") < headings.index("Δ old BLEU")
    *_, page = tiny_trials.ended(report.main, *words, "--format", "html")[1].splitlines()
    assert len([*(Path(page).parent / "figures").glob("differences*.svg")]) == 4  # with perplexity


@pytest.mark.parametrize("stored", [True, False], ids=["scores", "text"])
def test_sentences_are_summed_by_document_as_scores_or_else_the_text_say(tmp_path, stored):
    """The error is that of means with clusters. What knows no documents says that sentences count as independent."""
    text, documents = little_text(tmp_path / "text", val=60, test=60), [number // 2 for number in range(60)]
    runs, keys = tmp_path / "runs", KEYS | {"data.path": str(text)}
    file = write_sweep(tmp_path / "one.yaml", keys | {"variant": ["base"], "seed": [1]})
    finish(file, runs, {"base": (0.5, 0.5)}, seeds=1)
    (trial,) = (TrialFolder(path) for path in (runs / "trials").iterdir())
    sentences = trial.sentences("val", BLEU)
    sentences[:, -2] = np.repeat(sentences[::2, -2], 2) + sentences[:, -2] / 10  # a document's are alike

    def half_width(documents, text_has):
        trial.save_sentences("val", ["a"] * 60, BLEU, sentences, documents)
        corpus = Corpus({}, "", lambda split: (of_document(("a", "b"), n) for n in text_has or [None] * 60))
        (row,), about = rows_and_about(Grid(sweep, [replace(planned, corpus=corpus)]))
        low, high = estimate(row.samples["val/loss"]).interval()
        return (high - low) / 2, about.unit

    sweep = read_sweep(file)
    (planned,) = plan_trials(sweep, RunsFolder(runs))
    alone, items = half_width(None, None)
    together, unit = half_width(documents if stored else None, None if stored else documents)
    residuals = (sentences[:, -2] - sentences[:, -2].mean()).reshape(30, 2).sum(1) / sentences[:, -1].sum()
    clustered = np.sqrt(30 / 29 * (residuals**2).sum())
    assert together == pytest.approx(scipy.stats.t(29).ppf(0.975) * clustered, rel=1e-6) and together > 1.2 * alone
    assert (unit, "independent" in items) == ("documents", True)


@pytest.fixture
def words(folder):
    return [folder / "one.yaml", f"--runs={folder / 'runs'}"]


def test_a_piped_table_is_no_wider_than_a_page_and_what_comes_next_is_a_command_that_works(folder, monkeypatch):
    """What has no place in it is named. The command is no part of the output."""
    monkeypatch.delenv("COLUMNS")
    settings = "model.h=4 model.d_ff=1024 model.p_drop=0.2 optim.eps_ls=0.2 optim.warmup=500"
    wide = write_sweep(folder / "wide.yaml", KEYS | {"data.path": folder / "text", "variant": ["base", settings]})
    finish(wide, folder / "runs", defaultdict(lambda: (0.5, 0.5)), seeds=1)
    code, out, error = tiny_trials.ended(report.main, wide, f"--runs={folder / 'runs'}")
    last = error.splitlines()[-1]
    assert code == 0 and max(map(len, out.splitlines())) <= 120 and "d_ff" in out.partition("Hidden")[2]
    assert last not in out
    *_, page = tiny_trials.ended(report.main, *shlex.split(last.partition(": ")[2])[3:])[1].splitlines()
    assert Path(page).name == "report.html" and Path(page).exists()


@pytest.mark.parametrize("other", ["--scale=other.yaml", "--seeds=4,5,6", "--set=optim.max_steps=3", "--runs=empty"])
def test_options_say_which_trials_are_meant(folder, tmp_path, monkeypatch, other):
    """By the sweep command and by the report: here all are finished, and of the others none is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text("decode.average: 2\n")
    (tmp_path / "empty").mkdir()
    here = [folder / "one.yaml", f"--runs={folder / 'runs'}"]
    elsewhere = [*here[: 1 if "--runs" in other else 2], other]
    for words, missing, done in ((here, 0, ["3", "3"]), (elsewhere, 6, [])):
        assert f"6 trials, {missing} to train" in tiny_trials.ended(sweep_command.main, *words, "--plan")[1]
        code, out, err = tiny_trials.ended(report.main, *words, "--format=csv")
        assert [row["done"] for row in csv.DictReader(io.StringIO(out))] == done, err
        assert (code, "has none yet" in err) == ((0, False) if done else (2, True))


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
    assert "(reference)" in tiny_trials.ended(report.main, *words, "--base=h=4", "--format=md")[1]


def test_columns_are_chosen_by_their_headings(words):
    _, out, _ = tiny_trials.ended(report.main, *words, "--format=md", "--columns=row,p,BLEU")
    assert next(line for line in out.splitlines() if line.startswith("|")) == "| row | p | BLEU |"


def test_a_test_set_whose_sentences_are_not_here_has_no_tests_and_a_note(words, folder, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    for path in (runs / "trials").glob("*/scores.test.jsonl"):
        path.unlink()
    _, out, _ = tiny_trials.ended(report.main, words[0], f"--runs={runs}", "--split=test", "--format=md")
    assert "no tests" in out and "| Δ BLEU |" in out


def test_pairs_are_a_table_of_their_own(words):
    (pair,) = records(*words, "--pairs")
    assert (pair["row"], pair["other"]) == ("h=4", "base") and float(pair["difference.p"]) < 0.05


def test_a_margin_is_of_the_metric_that_is_compared(words):
    _, row = records(*words, "--margin=bleu=90")
    assert row["val/bleu.difference.within.90"] == "equal*"


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
    ours, _ = sweep_table((sweep, plan_trials(sweep, RunsFolder(folder / "runs"))))
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
    path.write_text("model,bleu,sd,acc,se\nbase,1,0.1,3,0.2\na,2,0,4,0.3\nb,2,0.2,4,0\n")
    both = {"row": ("model",), "metric": ("bleu", "acc"), "std": ("sd", "se"), "n": "5"}
    _, about = runs_rows(path, RunsReport(files=(path,), **both))
    assert "no test: a (bleu), b (acc)." in " ".join(about.facts.others)
    _, about = runs_rows(path, RunsReport(files=(path,), **both | {"metric": ("bleu",), "std": ("sd",)}))
    assert "no test: a." in " ".join(about.facts.others)


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


def test_rows_without_a_name_come_last(words, tmp_path):
    path = write_names(tmp_path, "rows: [{heading: A}, {row: h=4, name: four}]")
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--format=md")
    assert out.index("**A**") < out.index("| four |") < out.index("**Others**") < out.index("| base |")


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
    """Their differences are to the row that is base, if that is from the same source."""
    text = """
source: a paper
rows:
  - {row: h=4, name: four, published: {bleu: 25.25, ppl: 5}}
  - {row: base, published: {bleu: 25.753}}
"""
    rows = records(*words, f"--rows={write_names(tmp_path, text)}")
    printed = {row["name"]: [row[f"paper/{key}"] for key in ("bleu", "bleu.difference", "ppl")] for row in rows}
    assert printed == {"h=4": ["25.25", "-0.503", "5.0"], "base": ["25.753", "", ""]}
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


def test_a_row_may_be_named_by_the_keys_that_differ_and_a_system_by_its_label(words, tmp_path):
    """As the tables of report/published do: such a file names no sweep."""
    text = """
source: a paper
rows:
  - heading: Heads
  - {differs: {model.h: 4}, label: A, name: four, published: {bleu: 25.5, params: 60}}
  - {differs: {model.h: 2}, label: A, name: two, published: {bleu: 24}}
  - {differs: {}, label: base, name: eight, published: {bleu: 25.8}}
  - {label: ConvS2S, published: {bleu: 23.75}}
"""
    path = write_names(tmp_path, text)
    by_keys = records(*words, f"--rows={path}")
    assert [(row["name"], row["paper/bleu"], row["paper/params"]) for row in by_keys] == [
        ("h=4", "25.5", "60000000"),
        ("base", "25.8", ""),
    ]
    assert by_keys[0]["paper/bleu.difference"] == "-0.3"
    _, out, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--format=md")
    assert out.index("**Heads**") < out.index("| four |") < out.index("| eight |") and "| two |" not in out
    _, page, _ = tiny_trials.ended(report.main, *words, f"--rows={path}", "--format=html")
    assert "ConvS2S 23.75" in Path(page.strip()).read_text()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rows: [{row: h=4, differs: {model.h: 4}}]", "differs"),
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
    ("options", "named"),
    [
        ("--base=h=44", "did you mean h=4"),
        ("--columns=row,BLUE", "params, chrF, BLEU"),
        ("--pairs --base=h=4", "--base"),
        ("--margin=chrf=1", "--margin chrf"),
        # what would do nothing
        ("--trials --format=csv --rows=names.yaml", "--rows"),
        ("--trials --format=csv --margin=bleu=1", "--margin"),
        *((f"--format={form} --columns=row", "--columns") for form in ("csv", "json")),
        ("--pairs --rows=names.yaml", "--rows"),
        # what the page does not have is not sent to W&B
        *((f"--wandb {other}", "--wandb") for other in ("--pairs", "--split=test", "--trials --format=csv")),
    ],
)
def test_options_that_do_not_fit_are_refused(words, options, named):
    assert named in refused(*words, *options.split())


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


@pytest.mark.parametrize("main", [sweep_command.main, report.main])
def test_a_file_beside_the_sweep_file_is_used_and_wrong_names_are_refused(folder, tmp_path, main):
    """By the sweep command before it starts."""
    shutil.copy(folder / "one.yaml", tmp_path)
    names = write_names(tmp_path, NAMES).rename(tmp_path / "one.rows.yaml")
    words = [tmp_path / "one.yaml", f"--runs={folder / 'runs'}"]
    code, out, err = tiny_trials.ended(main, *words)
    assert code == 0 and out.index("four heads") < out.index("eight heads"), err
    names.write_text(NAMES.replace("h=4", "h=5"))
    code, out, err = tiny_trials.ended(main, *words)
    assert code == 2 and "did you mean h=4" in err and "four" not in out


def test_what_a_plan_notes_of_a_part_stands_under_its_table(folder, tmp_path, monkeypatch):
    """In that of the sweep command, and of the report, which makes no plan. It says what a law has seen of a part."""
    found = Found("data.tokenizer = mine.Lower", "its_tokens_become_text", "", "", "holds", "its case is lost")
    monkeypatch.setattr(grid, "checks_of", lambda configs, *_, **__: [Checks((found,)) for _ in configs])
    for file in ("one.yaml", "two.yaml"):
        shutil.copy(folder / file, tmp_path)
    words = [tmp_path / "one.yaml", f"--runs={folder / 'runs'}"]
    code, out, err = tiny_trials.ended(sweep_command.main, *words)
    noted = "mine.Lower: its case is lost."
    assert code == 0 and noted in " ".join(out.split()), err
    _, out, _ = tiny_trials.ended(report.main, *words, "--format=md")
    _, other, _ = tiny_trials.ended(report.main, tmp_path / "two.yaml", words[1], "--format=md")
    assert noted in out and noted not in other


@pytest.mark.parametrize("form", ["text", "tsv"])
def test_rows_are_compared_where_their_references_are_equal(tmp_path, form):
    """Whatever the sources and the training text are, as with back-translation. Of one file with both sides that is
    known where the text is prepared."""
    first = little_text(tmp_path / "first", val=60, test=60)
    names = ("longer", "context", "others")
    folders = {"first": first} | {name: shutil.copytree(first, tmp_path / name) for name in names}
    for language in ("en", "de"):
        with (folders["longer"] / f"train.{language}").open("a") as file:
            file.write("more\n")
    for split in ("train", "val", "test"):
        source, target = ((first / f"{split}.{language}").read_text() for language in ("en", "de"))
        (folders["context"] / f"{split}.en").write_text(source.replace("\n", " of before\n"))
        (folders["others"] / f"{split}.de").write_text(target.upper())
        for folder in folders.values() if form == "tsv" else ():
            sides = [(folder / f"{split}.{language}") for language in ("en", "de")]
            rows = zip(*(side.read_text().splitlines() for side in sides), strict=True)
            (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
            for side in sides:
                side.unlink()
    variants = ["base", *(f"data.path={folders[name]}" for name in names)]
    file = write_sweep(tmp_path / "texts.yaml", tiny_trials.TINY | {"data.path": first, "variant": variants})
    finish(file, tmp_path / "runs", {"base": (0.3, 0.3)} | {f"data={name}": (0.6, 0.6) for name in names})
    if form == "tsv":
        for folder in folders.values():
            prepare(Data(path=str(folder), vocab_size=300), tmp_path / "runs")
    words = [file, f"--runs={tmp_path / 'runs'}", "--seeds=1,2,3"]
    found = [row["val/bleu.difference.p"] for row in records(*words)]
    assert [p != "" and float(p) < 0.05 for p in found] == [False, True, True, False] and found[-1] == ""
    assert "not compared: data=others" in tiny_trials.ended(report.main, *words, "--format=md")[1]
