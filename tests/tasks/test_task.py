"""The seam of a task: a third task is one file, its score goes everywhere, and a wrong one is one message."""

import csv
import re

import pytest
import tiny_trials
from copying_task import Copying
from helpers import ROOT, write_sweep

from transformer_pl.config import Config, Data
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.task import Task, checked_scores, open_corpus, task_of
from transformer_pl.tasks.translation import Translation
from transformer_pl.train import __main__ as train
from transformer_pl.trials.trial_folder import TrialFolder

KEYS = tiny_trials.TINY | {"data.task": "copying_task.Copying", "data.vocab_size": 275, "trainer.val_sample": 3}


def trained(runs, keys):
    with tiny_trials.in_a_command():
        assert train.main([f"--runs={runs}", *(f"--{key}={value}" for key, value in keys.items())]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep of the third task, with two rows of two seeds, trained."""
    folder = tmp_path_factory.mktemp("task")
    write_sweep(folder / "copying.yaml", KEYS | {"model.h": [8, 4], "seed": [1, 2]})
    with tiny_trials.unrehearsed():
        for h in (8, 4):
            for seed in (1, 2):
                trained(folder / "runs", KEYS | {"model.h": h, "seed": seed})
    return folder


def test_a_third_task_is_trained_and_scored(folder):
    trials = [TrialFolder(path) for path in (folder / "runs" / "trials").iterdir()]
    assert len(trials) == 4
    for trial in trials:
        result, sentences = trial.result(), trial.sentences("val", Copying.measure)
        names = {f"{split}/{name}" for split in ("val", "test") for name in ("right", "loss", "ppl")}
        assert result.metrics.keys() == names | {"val/right_sample"}
        assert (result.score, result.signature) == ("right", "exact")
        right = pytest.approx(100 * sentences[:, 0].mean())
        assert result.metrics["val/right"] == right and sentences.shape == (60, 4)


def test_the_table_and_the_page_are_of_the_task_s_score(folder, capsys):
    words = [str(folder / "copying.yaml"), f"--runs={folder / 'runs'}", "--format"]
    printed = {}
    for form in ("csv", "md", "html"):
        assert report.main([*words, form]) == 0
        printed[form] = capsys.readouterr().out
    lines = list(csv.DictReader(printed["csv"].splitlines()))
    assert len(lines) == 2
    for line in lines:
        low, mean, high = (line[f"val/right.{name}"] for name in ("low", "mean", "high"))
        # where no output is right with any seed, nothing varies, and there is no interval
        assert float(low) <= float(mean) <= float(high) if low else float(mean) == 0 and not high
        assert not any("bleu" in name for name in line)
    page = next((folder / "runs" / "sweeps").glob("copying*/report.html")).read_text()
    assert "| right |" in printed["md"]
    assert not any("BLEU" in text for text in (printed["md"], page.partition("<h2>Trials")[0]))


LOWER = """
from dataclasses import replace
from transformer_pl.tasks.translation import Translation

class Lower(Translation):
    def corpus(self, data):
        corpus = super().corpus(data)
        return replace(corpus, pairs=lambda split: ((s.lower(), t.lower()) for s, t in corpus.pairs(split)))

class Cased(Translation):
    pass
"""


def test_the_text_of_a_task_of_ones_own_is_named_by_its_path_and_code(module):
    """Whatever its fingerprint says. A comment is no code, and the project's tasks keep their names."""
    file, ids = module(LOWER), []
    for task, code in (
        ("transformer_pl.tasks.translation.Translation", LOWER),
        ("stranger.Cased", LOWER),
        ("stranger.Lower", LOWER),
        ("stranger.Lower", LOWER.replace("s.lower()", "s")),
        ("stranger.Lower", f"{LOWER}# a comment\n"),
    ):
        file.write_text(code)
        data = Data(task=task)
        ids.append(fingerprint_id(data, open_corpus(data)))
    assert len(set(ids[:4])) == 4 and ids[4] == ids[2]


# Mistakes

MISTAKEN = """
from transformer_pl.task import Task
from transformer_pl.tasks.translation import Translation

class Half(Task):
    pass

class NoMeasure(Task):
    corpus = score = Translation.corpus

class Three(Translation):
    measure = 3

class Fails(Translation):
    def __init__(self, level):
        pass
"""


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("nowhere.Task", "nowhere"),
        ("transformer_pl.tasks.translation.Translaton", "Translation"),
        ("collections.Counter", "transformer_pl.task.Task"),
        ("stranger.Half", "corpus"),
        ("stranger.NoMeasure", "measure"),
        ("stranger.Three", "measure"),
        ("stranger.Fails", "level"),
    ],
)
def test_a_path_that_holds_no_task_is_one_message_and_starts_nothing(module, tmp_path, path, named):
    module(MISTAKEN)
    with pytest.raises(InputError) as error:
        train.main([f"--runs={tmp_path / 'runs'}", f"--data.task={path}"])
    (mistake,) = error.value.messages
    assert f"data.task = {path}" in mistake and named in mistake
    assert not (tmp_path / "runs").exists()


OWN = """
import numpy as np
from transformer_pl.task import Corpus
from transformer_pl.task import Scores
from copying_task import Copying

class Own(Copying):
    {change}
"""


@pytest.mark.parametrize(
    ("name", "returned"),
    [
        ("dict", "{'right': 1.0}"),
        ("measure", "Scores({'wrong': 1.0}, [[1, 1]] * 2, '')"),
        ("nan", "Scores({'right': np.nan}, [[1, 1]] * 2, '')"),
        ("rows", "Scores({'right': 1}, [[1, 1]], '')"),
        ("width", "Scores({'right': 1}, [[1], [1]], '')"),
        ("fraction", "Scores({'right': 1}, [[1, 0.5]] * 2, '')"),
        ("negative", "Scores({'right': 1}, [[1, -1]] * 2, '')"),
    ],
)
def test_scores_that_cannot_be_used_are_one_message(module, name, returned):
    change = f"def score(self, hypotheses, references, config): return {returned}"
    module(OWN.replace("{change}", change), f"stranger_{name}")
    config = Config(data=Data(task=f"stranger_{name}.Own"))
    with pytest.raises(InputError, match=rf"^data\.task = stranger_{name}\.Own: "):
        checked_scores(["a", "b"], ["a", "c"], config)


@pytest.mark.parametrize(
    "body",
    [
        "raise KeyError('nothing there')",
        "return Corpus({'of': {1, 2}}, 'no JSON', lambda split: iter(()))",
        "return None",
        "return Corpus({'a': 1}, 'fails later', lambda split: iter([1 / 0 for _ in range(1)]))",
        "return Corpus({'a': 1}, 'no text', lambda split: iter([(1, 2)]))",
        "return Corpus({'a': 1}, 'not for test', lambda split: iter([(3,)] if split == 'test' else [('a b', 'c')]))",
    ],
)
def test_a_corpus_that_cannot_be_used_is_one_message_that_names_the_task(module, tmp_path, body):
    file = module(
        "from transformer_pl.task import Corpus\nfrom copying_task import Copying\n"
        f"class Own(Copying):\n    def corpus(self, data):\n        {body}\n"
    )
    keys = KEYS | {"data.task": "stranger.Own"}
    path = write_sweep(tmp_path / "own.yaml", keys | {"model.h": [8, 4]})
    with pytest.raises(InputError) as caught, tiny_trials.in_a_command():
        sweep.main([str(path), f"--runs={tmp_path / 'runs'}", "--plan"])
    assert file.exists() and all("data.task = stranger.Own" in message for message in caught.value.messages)


def test_a_sweep_has_one_task(tmp_path):
    tasks = ["transformer_pl.tasks.translation.Translation", "transformer_pl.tasks.parsing.Parsing"]
    path = write_sweep(tmp_path / "two.yaml", {"data.task": tasks})
    with pytest.raises(InputError, match=r"two\.yaml: .*data\.task = \S+Parsing"):
        sweep.main([str(path), "--plan", f"--runs={tmp_path / 'runs'}"])


def test_translation_is_the_default_and_the_readme_shows_the_third_task():
    assert isinstance(task_of(Data()), Translation) and issubclass(Translation, Task)
    readme = (ROOT / "transformer_pl" / "tasks" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(\S[^`]*\(Task\)[^`]*)```", readme)
    assert code in (ROOT / "tests" / "copying_task.py").read_text()
