"""The tables of sweeps/README.md and RESULTS.md are those of results/tables.csv, and these are those of the trials."""

import csv
import itertools
import json
import re
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import replication
from helpers import a_trial
from made_rows import sweep_table
from scipy import stats
from shipped_components import marks_of_file
from tables import shipped_pages
from tiny_trials import ended

from transformer_pl.config import KEYS
from transformer_pl.plan.plan import main_metric
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.report.decisions import read_decisions
from transformer_pl.report.published import read_row_names
from transformer_pl.report.sweep_rows import Grid, sweep_rows
from transformer_pl.sweep.sweep_options import read_options
from transformer_pl.task import Corpus
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.runs_folder import RunsFolder, trained_config
from transformer_pl.trials.trial_config import as_trained
from transformer_pl.trials.trial_folder import TrialFolder
from transformer_pl.trials.trial_of import trial_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "sweeps" / "results"
SHIPPED = list(csv.DictReader((RESULTS / "tables.csv").read_text(encoding="utf-8").splitlines()))
COMMAND = re.compile(r"^    python -m transformer_pl.sweep (sweeps/.+)$", re.MULTILINE)
FIXED, OF_FIXED = "sweeps/table3.yaml --seeds 1,2,3,4,5", " with five seeds"  # beside the table with looks
SPELLED = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ELSEWHERE = ("on model 1", "on the test set")  # the headings of numbers of another processor, or of another set


def spelled(number):
    """A number as the pages have it in a sentence."""
    return SPELLED[number] if number < len(SPELLED) else str(number)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs folder of the archives."""
    runs = tmp_path_factory.mktemp("runs")
    for archive in RESULTS.glob("*.tar.xz"):
        with tarfile.open(archive) as files:
            files.extractall(runs, filter="data")
    return runs


@pytest.fixture(scope="module")
def finished(runs):
    """The trials in the archives."""
    return RunsFolder(runs).finished()


def keys_of(keys, start=None):
    """All keys and options of a config that is or was trained, but for those of `trainer` and the folder of the text,
    which may be others.

    start: `keys_of` what it starts from, which a sweep names by its row, and a trial by its id.
    """
    settings = {key: value for key, value in (KEYS | keys).items() if key in KEYS or key.count(".") == 2}
    may_differ = ("trainer.threads", "trainer.compile", "trainer.keep_state", "data.path")
    settings |= dict.fromkeys(may_differ) | {"model.start": start}
    return json.dumps(settings, sort_keys=True, default=str)


def keys_of_row(sweep, row, seed):
    """`keys_of` the config of a row with a seed."""
    (config,) = (config for config in row.configs if config.seed == seed)
    return keys_of(config.flat(), None if row.start is None else keys_of_row(sweep, sweep.planned[row.start], seed))


@pytest.fixture(scope="module")
def trials(finished):
    """Those of the archives by `keys_of` their config. Some keys are younger than a trial."""
    by_id = {result.id: result.config for _, result in finished}

    def all_keys(config):
        start = config.get("model.start")
        return keys_of(config, start and all_keys(by_id[start]))

    return {all_keys(result.config): folder for folder, result in finished}


def tables():
    """Of each table: the words of its command, and the lines that the report prints."""
    for words, lines in itertools.groupby(SHIPPED, key=lambda line: line["sweep"]):
        yield words, list(lines)


def shipped_sweep(words):
    """A shipped sweep file with the options beside it."""
    given = read_options(words.split())
    return read_sweep(ROOT / given.file, given.scale, given.seeds, looks=given.looks, base_seeds=given.base_seeds)


def shipped_grid(trials, runs, words):
    """A shipped sweep with its archived trials, and what was decided of them while they were trained."""
    sweep = shipped_sweep(words)
    planned = []
    for number, row in enumerate(sweep.planned[: len(sweep.rows)]):
        for config in row.configs:
            keys = keys_of_row(sweep, row, config.seed)
            trial = trials.get(keys, TrialFolder(runs / "trials" / "not-trained"))
            identity = Identity(trial.identity())
            planned.append(replace(a_trial(trial.path, config, place=number), folder=trial, identity=identity))
    folder = runs / "sweeps" / f"{sweep.name}@{sweep.scale}"
    decisions = read_decisions(Path(words.split()[0]), sweep, planned, folder)
    return Grid(sweep, decisions.trials, decisions.looked_at()) if decisions else Grid(sweep, planned)


def shipped_table(trials, runs, words):
    """The table of a shipped sweep from its archived trials."""
    grid = shipped_grid(trials, runs, words)
    return sweep_table(grid, names=read_row_names(grid.sweep, ROOT / words.split()[0], None))[0]


@pytest.mark.slow
def test_base_of_multi30k_on_a_cpu_decides_what_the_page_says(runs, tmp_path):
    """Its table is printed as the page says, with this base in the place of that on a GPU."""
    for archive in ("multi30k", "replications/multi30k-base"):
        with tarfile.open(RESULTS / f"{archive}.tar.xz") as files:
            files.extractall(tmp_path, filter="data")
    words = [ROOT / "sweeps" / "table3.yaml", "--scale=multi30k", "--seeds=1,2,3"]
    tables = {}
    for folder in (runs, tmp_path):
        for lines in ([], ["--trials"]):
            code, out, _ = ended(report.main, *words, f"--runs={folder}", "--format=csv", *lines)
            assert code == 0
            tables[folder, bool(lines)] = list(csv.DictReader(out.splitlines()))
    rows = {one["name"]: one for one in tables[tmp_path, False]}

    def number(row, key):
        return float(rows[row][f"val/bleu.{key}"])

    low, high = number("N=2", "difference.low"), number("N=2", "difference.high")
    said = [f"{number('base', 'mean'):.1f} ± {number('base', 'sd'):.1f} BLEU, which cannot be told"]
    said.append(f"N = 2 keeps its star ({number('N=2', 'difference'):.1f}, {low:.1f} to {high:.1f})")
    for row, name in (("N=4", "N = 4"), ("d_ff=1024", "half of d_ff")):
        said.append(f"{name} ({number(row, 'difference'):.1f}, p {number(row, 'difference.p'):.3f})")
    scores = [
        [float(one["val/bleu"]) for one in tables[folder, True] if one["row"] == "base"] for folder in (runs, tmp_path)
    ]
    said.append(f"from the H200's (p {stats.ttest_ind(*scores).pvalue:.2f})")
    page = " ".join((ROOT / "sweeps" / "README.md").read_text(encoding="utf-8").split())
    assert [one for one in said if one not in page] == []


@pytest.mark.parametrize(
    ("words", "printed"),
    [pytest.param(*one, id=one[0], marks=marks_of_file(Path(one[0].split()[0]).stem)) for one in tables()],
)
def test_a_table_is_that_of_the_trials(trials, runs, words, printed):
    """Intervals reach beyond zero exactly where there is no star. The sentence above the table has those of the rows
    that it names, in the direction of the difference."""
    table = shipped_table(trials, runs, words)
    columns = {column.name: column.cells for column in table.columns}
    names = [name for name in printed[0] if any(line[name] for line in printed) and name != "sweep"]
    assert {"p", "p of PPL"} & {*names} and {name: list(columns[name]) for name in names} == {
        name: [line[name] for line in printed] for name in names
    }
    for one in table.contrasts:
        assert not one.estimate or one.is_found == (one.estimate.low >= 0 or one.estimate.high <= 0), one.row.name
    is_by_loss = table.contrasts[0].outcome.key == "val/loss"
    first, _, rest = table.summary.partition(" in PPL with " if is_by_loss else " times the PPL ")
    text = re.sub(r"more than (\d), at most", r"\1 to", first if is_by_loss or not rest else first.rpartition(". ")[0])
    said = [[float(end) for end in ends] for ends in re.findall(r"(-?[\d.]+) to (-?[\d.]+)(?:\)|, with)", text)]
    found = [one for one, contrast in enumerate(table.contrasts) if contrast.is_found]
    cells = [re.sub("above|below", "", columns["PPL / base 95 %" if is_by_loss else "Δ 95 %"][one]) for one in found]
    intervals = [[float(end) for end in cell.split(" to ")] for cell in cells]
    assert all(ends in said or [-end for end in ends[::-1]] in said for ends in intervals) or len(said) < len(found)
    above = sum(sum(ends) > 2 * is_by_loss for ends in intervals)  # of a ratio that is 1 where there is no difference
    assert len(said) == min(3, above) + min(3, len(found) - above)


def test_the_page_shows_base_and_every_row_that_differs_significantly():
    """And no other number than the file has; of rows that are undecided it may have some."""
    _, *parts = COMMAND.split(shipped_pages())
    for words, section in zip(parts[::2], parts[1::2], strict=True):
        table = section.partition("\n|row|")[2].partition("\n\n")[0].splitlines()  # empty where no row is decided
        head, _, *lines = [line.strip("|").split("|") for line in table] or [[], []]
        shown = {name: dict(zip(head, cells, strict=False)) for name, *cells in lines}
        known = {line["row"]: dict(line) for line in SHIPPED if line["sweep"] == words}
        for line in SHIPPED if "--looks" in words else ():
            if line["sweep"] == FIXED and line["row"] in known:
                known[line["row"]] |= {f"{heading}{OF_FIXED}": cell for heading, cell in line.items()}
        assert all(
            cell == known[name][heading]
            for name, line in shown.items()
            for heading, cell in line.items()
            if not heading.endswith(ELSEWHERE)
        ), words
        scores = ["PPL / base"] if main_metric(shipped_sweep(words)) == "val/loss" else ["Δ BLEU", "Δ bits/byte"]
        differences = {name: "".join(line[score] for score in scores) for name, line in known.items()}
        if any("*" in difference for difference in differences.values()):
            assert {name for name, text in differences.items() if not text or "*" in text} <= shown.keys(), words


def test_the_page_says_what_the_loss_decides_at_captions(runs):
    """With how many trainings, beside those by BLEU, at which look, and with how many of the paper's signs."""
    commands, found, trainings = {}, {}, {}
    for words, lines in tables():
        if "--looks" in words and "captions" in words:
            by = "loss" if "loss" in words else "bleu"
            heading = {"loss": "PPL / base", "bleu": "Δ BLEU"}[by]
            found[by] = {line["row"] for line in lines if "*" in line[heading]}
            commands[by], trainings[by] = words.split(), sum(int(line["seeds"]) for line in lines)
    (folder,) = (runs / "sweeps").glob("captions-loss@*")
    first = json.loads((folder / "look_1.json").read_text(encoding="utf-8"))
    of_first = {name for name, verdict in first["verdicts"].items() if verdict == "found"}
    trainings["first"] = sum(map(len, first["results"].values()))
    _, out, _ = ended(report.main, *commands["loss"], f"--runs={runs}", "--format=json")
    _, *rows = json.loads(out)["rows"]
    keys = [f"{key}.difference" for key in ("val/loss", "paper/ppl", "test/loss")]
    ours, theirs, on_test = np.sign(
        [[row[key] for key in keys] for row in rows if row["val/loss.difference.p"] < 0.05]
    ).T
    rho = stats.spearmanr(*([row[key] for row in rows] for key in keys[:2])).statistic
    text = shipped_pages().split("### The same rows by loss\n")[1].split("\n## ")[0]
    page = " ".join(text.split())
    assert {name.split(") ")[1] for name in found["bleu"]} < of_first  # there without the paper's letters
    assert found["bleu"] < found["loss"] and len(ours) == len(found["loss"]) and all(ours == on_test)
    differ = f"With {trainings['loss']} trainings {spelled(len(ours))} rows differ, where BLEU found "
    assert f"{differ}{spelled(len(found['bleu']))} with {trainings['bleu']}." in page
    said = f"The first look has found {spelled(len(of_first))} of them with {trainings['first']} trainings"
    assert f"{said}, the {spelled(len(found['bleu']))} among these." in page
    assert f"perplexities is {rho:+.2f} " in page
    agree = spelled(sum(ours == theirs)).capitalize()
    assert f"{agree} of the {spelled(len(ours))} rows have their sign." in page


def test_the_page_counts_what_later_changes_do():
    """Over all tables of translation at scale demo but the paper's own rows, and tables whose base is another model."""
    others = ("table3", "table4", "heads", "learned_positions", "leave_one_out", "fidelity")
    changes = []
    for words, lines in tables():
        file = re.fullmatch(r"sweeps/(\w+).yaml --seeds 1,2,3", words)
        found = {line["row"]: line["Δ BLEU"] for line in lines if line["Δ BLEU"] and not line["row"].startswith("(")}
        if file and found and not file[1].startswith(others):
            changes.append(found)
    every = {name: cell for found in changes for name, cell in found.items()}
    better, worse = (sum(cell.startswith(sign) and "*" in cell for cell in every.values()) for sign in "+-")
    numbers = re.search(r"Of (\d+) in (\w+) \[tables\].*?, (\w+) are.*? and (\d+) worse", shipped_pages(), re.DOTALL)
    assert numbers.groups() == tuple(map(spelled, (len(every), len(changes), better, worse)))


def test_seeds_of_different_rows_are_no_pairs(trials, runs):
    """So rows of a sweep are not compared within seeds. The number is that of transformer_pl/report/README.md."""
    said = " ".join((ROOT / "transformer_pl" / "report" / "README.md").read_text(encoding="utf-8").split())
    for options, text in (("--seeds 1,2,3,4,5", "synthetic text"), ("--scale multi30k --seeds 1,2,3", "Multi30k")):
        rows = sweep_rows(shipped_grid(trials, runs, f"sweeps/table3.yaml {options}"), Translation.measure)
        by_row = np.corrcoef([row.values["val/bleu"] for row in rows])
        between = by_row[np.triu_indices(len(rows), 1)].mean()
        assert abs(between) < 0.05 and f"{between:+.2f} on {text}" in said


def test_what_demo_says_of_multi30k_is_written(finished):
    """The numbers of sweeps/RESULTS.md are those that the command prints, and a plain loop over rows finds the same.

    Fewer than 16 of 18 intervals that hold would be no prediction.
    """
    words = ["table3", "--seeds=1,2,3,4,5", f"--runs={finished[0][0].runs}", "--against=multi30k"]
    code, out, error = ended(report.main, *words, "--format=json")
    assert code == 0, error
    table = json.loads(out)
    said = " ".join([table["summary"], *table["notes"]])
    assert "test set" not in said and "test set" in ended(report.main, *words, "--split=test", "--format=json")[1]
    keys = [f"{scale}/val/bleu.difference" for scale in ("demo", "multi30k")]
    points = np.array([[one[key] for key in keys] for one in table["rows"] if one["label"] != "big"]).T
    held, errors = 0, []
    for i, (x, y) in enumerate(points.T):
        others = np.delete(points, i, 1)
        line = stats.linregress(*others)
        rest, spread = others[1] - line.slope * others[0] - line.intercept, np.var(others[0]) * 17
        errors.append(y - line.slope * x - line.intercept)
        se = np.sqrt(rest @ rest / 15 * (1 + 1 / 17 + (x - others[0].mean()) ** 2 / spread))
        held += abs(errors[-1]) <= stats.t.ppf(0.975, 15) * se
    assert held >= 16 and f"{held} of 18" in said and all(one["predicted"] is not None for one in table["rows"][:-1])
    x, y = points
    kept = sum((x[i] - x[j]) * (y[i] - y[j]) > 0 for i in range(18) for j in range(i))
    sizes = [f"{np.sqrt(np.mean(np.square(one))):.1f}" for one in (y - x, y, errors)]
    found = [f"{kept} of 153", f"{sum(x * y > 0)} of 18", *(f"{size} " for size in sizes), f"{held} of 18"]
    written = shipped_pages().split("## From demo to multi30k\n")[1]
    paragraph = " ".join(written.split("\n## ")[0].split())
    assert all(number in paragraph and number in said for number in found)


def test_the_report_reads_what_ships_and_writes_nothing(tmp_path, monkeypatch):
    """In a folder without results, for a sweep by its name; a sweep that does not ship is refused."""
    monkeypatch.chdir(tmp_path)
    _, out, error = ended(report.main, "table3_A", "--shipped")
    assert "next, " in error and "next, " not in out  # as the output is no terminal
    _, out, _ = ended(report.main, "table3_A", "--shipped", "--format=json")
    shown = [line["BLEU"].split(" ±")[0] for line in SHIPPED if line["sweep"] == "sweeps/table3_A.yaml"]
    assert [one["val/bleu.mean"] for one in json.loads(out)["rows"]] == pytest.approx([*map(float, shown)], abs=0.051)
    code, _, error = ended(report.main, "table2", "--shipped")
    assert code == 2 and str(tempfile.gettempdir()) not in error and not any(tmp_path.iterdir())


def test_what_the_searches_found_is_written():
    """Of the archived studies, which the report prints as those that a user has."""
    written = shipped_pages().split("## Searches at scale demo\n")[1].split("\n## ")[0]
    for file in ("search_size", "search_regularisation"):
        code, out, error = ended(report.main, file, "--shipped", "--format=json")
        assert code == 0, error
        found = json.loads(out)["rows"]
        (cells,) = re.findall(rf"\|`{file}.yaml`\|(\d+).*?\|(.*)\|", written)
        (base,) = (one for one in found if one["base"])
        chosen = [one for one in found if one["state"] in ("front", "best") and not one["base"]]
        numbers = (
            [f"{one['val/ppl']:.3f}" for one in (base, *chosen)]
            if file == "search_regularisation"
            else [
                number
                for one in chosen
                for number in (f"{one['val/bleu']:.1f} BLEU", f"{one['flops'] / base['flops']:.0%}")
            ]
        )
        assert int(cells[0]) == len(found) and all(number.replace("%", " %") in cells[1] for number in numbers), numbers


def test_a_scale_that_was_looked_at_is_compared_by_its_own_looks(runs):
    of_demo, of_captions = (words for words, _ in tables() if "without_big" in words and "--looks" in words)
    _, out, error = ended(report.main, *of_captions.split(), f"--runs={runs}", "--against=demo", "--format=json")
    for words, scale in ((of_demo, "demo"), (of_captions, "captions")):
        shown = [line["Δ BLEU"].rstrip("*") for line in SHIPPED if line["sweep"] == words and line["Δ BLEU"]]
        found = [one[f"{scale}/val/bleu.difference"] for one in json.loads(out)["rows"]]
        assert found == pytest.approx([float(one) for one in shown], abs=0.051), error


def test_the_differences_with_other_training_texts_are_those_of_their_trials():
    words = re.search(r"replication.py (sweeps/training_texts.yaml) (.*)", shipped_pages())
    scores = replication.observations(ROOT / words[1], words[2].split(), "val/bleu")
    means = scores.groupby(["row", "set"])["score"].mean().unstack()
    lines = re.search(r"\n\|trained\|(.*?)\n\n", shipped_pages(), re.DOTALL)[0].strip().splitlines()
    head, _, *rows = (line.strip("|").split("|") for line in lines)
    for row, *cells in rows:
        expected = means.loc[row] - (0 if row == "base" else means.loc["base"])
        assert [float(cell) for cell in cells] == pytest.approx([*expected[head[1:]]], abs=0.051)
    assert {row for row, *_ in rows} == {*means.index}


def test_each_trial_is_of_a_table_or_a_search(finished, trials, runs):
    sweeps = [shipped_sweep(words) for words, _ in tables()]
    sweeps += [read_sweep(best) for best in runs.glob("sweeps/*/best.yaml")]
    of_tables = {keys_of_row(s, row, config.seed) for s in sweeps for row in s.planned for config in row.configs}
    studies = [study.read_text(encoding="utf-8") for study in runs.glob("sweeps/*/study.journal")]
    others = [folder.path.name for keys, folder in trials.items() if keys not in of_tables]
    assert all(any(f'"{name}"' in study for study in studies) for name in others) and len(trials) == len(finished)


def test_the_trials_keep_their_ids(finished):
    """Of the core, and of every component that is in a table: its code, too. A new id would train them again."""
    for folder, result in finished:
        corpus = Corpus(folder.identity()["data"], "", lambda split: iter(()))
        again = trial_of(as_trained(trained_config(folder, result)), corpus, RunsFolder(folder.runs))
        assert again.identity.trial == result.id, folder.path


def test_the_trials_say_nothing_of_the_machine_but_its_kind(finished):
    """No path of a home or of a runs folder elsewhere."""
    for folder, _ in finished:
        for file in filter(Path.is_file, folder.path.rglob("*")):
            assert not re.search(r"/(home|root|tmp|work|Users)/", file.read_text(encoding="utf-8")), file
