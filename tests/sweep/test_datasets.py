"""What a plan says of a dataset before it is prepared, and what a sweep says when it is."""

import io
import re

import pytest
from helpers import ROOT, little_text
from rich.console import Console

from transformer_pl.config import Data
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.facts import facts_of
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep.datasets import prepare_datasets, survey_datasets
from transformer_pl.task import open_corpus
from transformer_pl.trials.runs_folder import RunsFolder


@pytest.fixture
def folder(tmp_path):
    return little_text(tmp_path / "text")


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def lines(folder, console, runs, **keys):
    data = Data(**{"path": str(folder), "vocab_size": 300} | keys)
    return survey_datasets([(data, Prepared(runs / "data" / fingerprint_id(data, open_corpus(data))))], console)


def test_a_preparation_says_what_it_does_and_what_it_has_made(folder, console, tmp_path):
    data = Data(path=str(folder), vocab_size=300)
    prepare_datasets([data, data.model_copy(update={"max_length": 99})], tmp_path, console)
    *stages, dataset = console.file.getvalue().splitlines()
    assert len(stages) == 3
    assert "60 training pairs, 8 for validation, 6 for test" in dataset
    assert lines(folder, console, tmp_path) == [dataset]  # a plan says the same from now on


def test_a_plan_knows_the_largest_vocabulary_of_a_small_text(folder, console, tmp_path):
    with pytest.raises(InputError) as raised:
        lines(folder, console, tmp_path, vocab_size=5000)
    (most,) = map(int, re.findall(r"at most (\d+)", str(raised.value)))
    assert lines(folder, console, tmp_path, vocab_size=most)
    with pytest.raises(InputError):
        lines(folder, console, tmp_path, vocab_size=most + 1)


def test_pairs_that_are_too_long_to_be_trained_on_are_counted(folder, console, tmp_path):
    data = Data(path=str(folder), vocab_size=300)
    prepare_datasets([data], tmp_path, console)
    split = Prepared(tmp_path / "data" / fingerprint_id(data, open_corpus(data))).split("train")
    longest = [max(pair) for pair in zip(*(side.lengths_with_special.tolist() for side in split), strict=True)]
    most = sorted(longest)[40]
    (line,) = lines(folder, console, tmp_path, max_length=most)
    assert f"; {sum(length > most for length in longest)} training pairs are longer than data.max_length" in line
    assert "longer" not in lines(folder, console, tmp_path, max_length=max(longest))[0]


def test_evaluation_pairs_that_a_model_may_know_are_told(folder, console, tmp_path):
    """By a plan, a preparation and the table: those of the used training text, and those that need only copying."""
    for language in ("en", "de"):
        of_train = (folder / f"train.{language}").read_text().splitlines()
        pairs = [of_train[2], of_train[2], of_train[59], "mixed" + language, "same", of_train[3] + language]
        (folder / f"val.{language}").write_text("".join(f"{line}\n" for line in pairs))
    told = ("3 of the 6 val pairs are also training pairs", "1 of the 6 val pairs are the same text on both sides")
    (planned,) = lines(folder, console, tmp_path)
    assert all(one in planned for one in told) and "test pairs are" not in planned
    assert "2 of the 6 val pairs" in lines(folder, console, tmp_path, train_pairs=59)[0]
    sweep = read_sweep(ROOT / "sweeps" / "smoke.yaml", sets={"data.path": str(folder), "data.vocab_size": "300"})
    trials = plan_trials(sweep, RunsFolder(tmp_path))
    assert not any(
        one in note for note in facts_of(Grid(sweep, trials)).others for one in told
    )  # it is not read for that
    prepare_datasets([trials[0].config.data], tmp_path, console)
    assert lines(folder, console, tmp_path) == [planned]
    notes = " ".join(facts_of(Grid(sweep, plan_trials(sweep, RunsFolder(tmp_path)))).others)
    assert all(one in notes for one in told)
