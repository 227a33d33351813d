"""The seam of a task: a third task is one file, its score goes everywhere, and a wrong one is one message."""

import csv
import json

import pytest
import tiny_trials
import yaml
from copying_task import Copying
from helpers import ROOT

from transformer_pl import report, sweep, train
from transformer_pl.config import Config, Data
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Task, check_task, checked_scores, task_of
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.schemas import main_score
from transformer_pl.trials.trial import Trial

KEYS = tiny_trials.TINY | {"data.task": "copying_task.Copying", "data.vocab_size": 275, "trainer.bleu_sample": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep of the third task, with two rows of two seeds, trained."""
    folder = tmp_path_factory.mktemp("task")
    parameters = {key: {"value": value} for key, value in KEYS.items()}
    parameters |= {"model.h": {"values": [8, 4]}, "seed": {"values": [1, 2]}}
    content = {"program": "transformer_pl/train.py", "name": "copying", "method": "grid", "parameters": parameters}
    (folder / "copying.yaml").write_text(yaml.safe_dump(content))
    for h in (8, 4):
        for seed in (1, 2):
            keys = KEYS | {"model.h": h, "seed": seed}
            with tiny_trials.in_a_command():
                assert train.main([f"--runs={folder / 'runs'}", *(f"--{k}={v}" for k, v in keys.items())]) == 0
    return folder


def test_a_third_task_is_trained_and_scored(folder):
    trials = [Trial(path) for path in (folder / "runs" / "trials").iterdir()]
    assert len(trials) == 4
    for trial in trials:
        result, sentences = trial.result(), trial.sentences("val", Copying.measure)
        metrics = result["metrics"]
        assert [line["kind"] for line in trial.metrics() if "val/ppl" in line] == ["validation"] * 2 + ["final"]
        names = {f"{split}/{name}" for split in ("val", "test") for name in ("right", "loss", "ppl")}
        assert metrics.keys() == names | {"val/right_sample"} and result["signature"] == "exact"
        assert main_score(result) == ("val/right", metrics["val/right"])
        assert metrics["val/right"] == pytest.approx(100 * sentences[:, 0].mean()) and sentences.shape == (60, 4)


def test_the_table_and_the_page_are_of_the_task_s_score(folder, capsys, monkeypatch):
    words = [str(folder / "copying.yaml"), f"--runs={folder / 'runs'}", "--format"]
    printed = {}
    for form in ("csv", "md", "html"):
        assert report.main([*words, form]) == 0
        printed[form] = capsys.readouterr().out
    lines = list(csv.DictReader(printed["csv"].splitlines()))
    assert len(lines) == 2
    for line in lines:
        assert float(line["val/right.low"]) <= float(line["val/right.mean"]) <= float(line["val/right.high"])
        assert not any("bleu" in name for name in line)
    assert "| right |" in printed["md"] and "right is the share of lines that are right on the" in printed["md"]
    page = next((folder / "runs" / "sweeps").glob("copying*/report.html")).read_text()
    assert "the right of this sentence alone" in page
    assert not any("BLEU" in text for text in (printed["md"], page.partition("<h2>Trials")[0]))


def test_another_code_of_a_task_makes_other_trials(module, tmp_path):
    """What is read and scored is the task's own business, so its source is part of the identity."""
    text = (ROOT / "tests" / "copying_task.py").read_text()
    file, keys = module(text), KEYS | {"data.task": "stranger.Copying"}
    words = [f"--{key}={value}" for key, value in keys.items()]
    ids = []
    for changed in (text, text.replace("* 7 %", "* 11 %"), text + "# a comment\n"):
        file.write_text(changed)
        options, levels = train.read_argv([f"--runs={tmp_path}", *words])
        ids.append(train.TrialRun.of(train.trial_config(levels), options.runs, "demo", "base", made()).identity.trial)
    assert ids[0] == ids[2] != ids[1]


def made():
    return Copying().corpus(Data())


MISTAKEN = """
from transformer_pl.task import Task
from transformer_pl.tasks.translation import Translation

class Half(Task):
    pass

class NoMeasure(Task):
    corpus = score = score_one = Translation.corpus

class Fails(Translation):
    def __init__(self, level):
        pass
"""


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.Task", "data.task = nowhere.Task: no module nowhere; it must be importable from here"),
        ("transformer_pl.tasks.translation.Translaton", "holds no class Translaton; did you mean Translation"),
        ("collections.Counter", "must be a class derived from transformer_pl.task.Task, but is not"),
        ("stranger.NoMeasure", "data.task = stranger.NoMeasure: must have the attribute measure, but has not; add it"),
        ("stranger.Fails", "must be made without arguments, but fails at "),
        ("stranger.Half", "data.task = stranger.Half: must have the method corpus, but has not; add it"),
    ],
)
def test_a_path_that_holds_no_task_is_one_message(module, path, message):
    module(MISTAKEN)
    (mistake,) = check_task(Data(task=path))
    assert message in mistake


OWN_TEXT = """
from pathlib import Path
from transformer_pl.data.corpus import Corpus
from copying_task import Copying

class Own(Copying):
    {change}
"""
CORPORA = {
    "none": ("def corpus(self, data): pass", "corpus must return a Corpus, but returns None; fix corpus"),
    "fails": ("def corpus(self, data): return {}['x']", "corpus must return a Corpus, but fails at "),
    "path": ("def corpus(self, data): return Corpus({'at': Path()}, '', iter)", "its fingerprint must be a dict that"),
    "text": ("def corpus(self, data): return Corpus('digits', '', iter)", "its fingerprint must be a dict that"),
    "pairs": ("def corpus(self, data): return Corpus({}, '', lambda split: None)", "the pairs of "),
    "measure": ("measure = 3", "measure must be a transformer_pl.task.Measure, but is 3"),
}


@pytest.mark.parametrize("case", CORPORA)
def test_a_text_that_cannot_be_used_is_one_message(module, tmp_path, case):
    change, message = CORPORA[case]
    module(OWN_TEXT.replace("{change}", change), f"stranger_corpus_{case}")
    path = tmp_path / "own.yaml"
    keys = KEYS | {"data.task": f"stranger_corpus_{case}.Own"}
    parameters = {key: {"value": value} for key, value in keys.items()}
    path.write_text(yaml.safe_dump({"method": "grid", "parameters": parameters}))
    with pytest.raises(InputError) as error:
        sweep.main([str(path), "--plan", f"--runs={tmp_path / 'runs'}"])
    (mistake,) = error.value.messages
    assert f"data.task = stranger_corpus_{case}.Own" in mistake and message in mistake


def test_a_task_may_read_any_key_of_the_data(module, tmp_path):
    """The plan and the training find the same trial, also where the text depends on the size of a batch."""
    change = "def corpus(self, data): return replace(super().corpus(data), fingerprint={'of': data.batch_tokens})"
    module("from dataclasses import replace\n" + OWN_TEXT.replace("{change}", change), "stranger_keys")
    path, runs = tmp_path / "own.yaml", tmp_path / "runs"
    keys = KEYS | {"data.task": "stranger_keys.Own"}
    parameters = {key: {"value": value} for key, value in keys.items()}
    path.write_text(yaml.safe_dump({"method": "grid", "parameters": parameters}))
    (planned,) = plan_trials(read_sweep(path), runs)
    with tiny_trials.in_a_command():
        assert train.main([f"--runs={runs}", *(f"--{key}={value}" for key, value in keys.items())]) == 0
    assert planned.trial.result()


def test_a_task_that_cannot_be_used_starts_nothing(tmp_path):
    with pytest.raises(InputError, match=r"data\.task = nowhere\.Task: no module nowhere"):
        train.main([f"--runs={tmp_path}", "--data.task=nowhere.Task"])
    with pytest.raises(InputError, match=r"data\.task = translation: must be the import path of a class"):
        train.main([f"--runs={tmp_path}", "--data.task=translation"])
    assert not list(tmp_path.iterdir())


SCORED = """
import numpy as np
from copying_task import Copying
from transformer_pl.task import Scores

class Scored(Copying):
    def score(self, hypotheses, references, config):
        return {returned}
"""
SCORES = {
    "no-scores": (
        "{'right': 1.0}",
        "score must return Scores with a dict of metrics, but returns {'right': 1.0}; fix",
    ),
    "measure": (
        "Scores({'wrong': 1.0}, [[1, 1]] * 2, '')",
        "the metric right, its measure, but returns {'wrong': 1.0};",
    ),
    "nan": ("Scores({'right': np.nan}, [[1, 1]] * 2, '')", "metrics that are finite numbers by name, but returns {'ri"),
    "text": ("Scores({'right': 1, 'b': '2'}, [[1, 1]] * 2, '')", "by name, but returns {'b': '2'}; fix score"),
    "rows": (
        "Scores({'right': 1}, [[1, 1]], '')",
        "of 2 whole numbers from 0 for each of 2 lines, but returns [[1, 1]];",
    ),
    "width": (
        "Scores({'right': 1}, [[1], [1]], '')",
        "for each of 2 lines, but returns [[1], [1]]; fix score or meas",
    ),
    "fraction": ("Scores({'right': 1}, [[1, 0.5]] * 2, '')", "but returns [[1, 0.5], [1, 0.5]]; fix"),
    "negative": ("Scores({'right': 1}, [[1, -1]] * 2, '')", "but returns [[1, -1], [1, -1]]; fix"),
    "no-rows": ("Scores({'right': 1}, None, '')", "but returns None; fix"),
    "signature": ("Scores({'right': 1}, [[1, 1]] * 2, None)", "a signature that is text, but returns None; fix score"),
}


@pytest.mark.parametrize("case", SCORES)
def test_scores_that_cannot_be_used_are_one_message(module, case):
    returned, message = SCORES[case]
    name = f"stranger_{case}".replace("-", "_")  # tasks are imported once
    module(SCORED.replace("{returned}", returned), name)
    with pytest.raises(InputError) as error:
        checked_scores(["a", "b"], ["a", "c"], Config(data=Data(task=f"{name}.Scored")))
    (mistake,) = error.value.messages
    assert mistake.startswith(f"data.task = {name}.Scored: score must return ") and message in mistake


def test_scores_become_pythons_own_numbers(module):
    returned = "Scores({'right': np.float32(0.5)}, np.ones((2, 2), np.int32), 'exact')"
    module(SCORED.replace("{returned}", returned), "stranger_numpy")
    scores = checked_scores(["a", "b"], ["a", "c"], Config(data=Data(task="stranger_numpy.Scored")))
    assert json.loads(json.dumps(scores)) == [{"right": 0.5}, [[1, 1], [1, 1]], "exact"]


def test_a_task_whose_scores_cannot_be_used_is_not_trained(module, tmp_path):
    module(SCORED.replace("{returned}", "Scores({}, [[1, 1]] * len(references), '')"), "stranger_untrained")
    keys = KEYS | {"data.task": "stranger_untrained.Scored"}
    with tiny_trials.in_a_command(), pytest.raises(InputError, match="score must return the metric right, its measure"):
        train.main([f"--runs={tmp_path / 'runs'}", *(f"--{key}={value}" for key, value in keys.items())])
    (trial,) = (tmp_path / "runs" / "trials").iterdir()
    assert not (trial / "checkpoints").exists() and not Trial(trial).metrics()


def test_the_task_of_the_readme_is_this_one():
    readme = (ROOT / "transformer_pl" / "tasks" / "README.md").read_text()
    code = readme.partition("```python\n")[2].partition("```")[0]
    assert code in (ROOT / "tests" / "copying_task.py").read_text()


def test_a_sweep_has_one_task(tmp_path):
    path = tmp_path / "two.yaml"
    tasks = ["transformer_pl.tasks.translation.Translation", "transformer_pl.tasks.parsing.Parsing"]
    path.write_text(yaml.safe_dump({"method": "grid", "parameters": {"data.task": {"values": tasks}}}))
    with pytest.raises(InputError, match=r"two\.yaml: data\.task = \S+Parsing: must be the same in all rows"):
        sweep.main([str(path), "--plan", f"--runs={tmp_path / 'runs'}"])


def test_a_task_of_somebody_else_is_named_and_can_be_refused(folder, capsys):
    words = [str(folder / "copying.yaml"), "--plan", f"--runs={folder / 'runs'}"]
    assert sweep.main(words) == 0
    assert "imported from outside of the project: copying_task" in " ".join(capsys.readouterr().out.split())


def test_translation_is_the_default():
    assert isinstance(task_of(Data()), Translation) and issubclass(Translation, Task)
    assert json.dumps(Data().task) == '"transformer_pl.tasks.translation.Translation"'
