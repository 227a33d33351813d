"""Losses that see the model: their weights are trained, and a finished trial can be their teacher."""

import hashlib
import os
import shutil

import pytest
import tiny_trials
import torch
import yaml
from helpers import little_text
from small_trainings import config as training_config

from transformer_pl.config.levels import Level
from transformer_pl.data.batches import Batch
from transformer_pl.data.prepare import prepare
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.digests import file_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.teacher import Teacher, check_teachers
from transformer_pl.trials.trial_config import trial_config
from transformer_pl.trials.trial_folder import TrialFolder

DISTILLED = {"optim.loss": "ablations.distillation.WordDistillation"}
OWN = """
import torch
import torch.nn.functional as F
from torch import nn

class Temperature(nn.Module):
    def __init__(self, config, optim):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        return F.cross_entropy((logits * self.temperature).transpose(1, 2), target, ignore_index=0, reduction="sum")
"""
KEEPING = (
    OWN
    + """
from transformer_pl.train.teacher import Teacher

class Keeps(Temperature):
    def __init__(self, config, optim, teachers: list[Teacher], other: Teacher | None = None):
        super().__init__(config, optim)
        models = [teacher.model for teacher in teachers]
        self.several, self.plain, self.other = nn.ModuleList(models), models, other
        self.inside, self.part, self.weight = Inside(models[0]), models[0].encoder, models[0].embedding.weight
        self.register_buffer("table", models[0].embedding.weight)
        self.taught = []

    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        for teacher in self.several:
            self.taught.append(not teacher.training)
            logits = logits + teacher(batch.source, batch.target_in)
        if self.other:
            logits = logits + self.other(batch.source, batch.target_in)
        return self(logits, batch.target_out)

class Inside(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.head = model, nn.Linear(1, 1)
"""
)
MAYBE = (
    OWN
    + """
from transformer_pl.train.teacher import Teacher

class Maybe(Temperature):
    def __init__(self, config, optim, teachers: tuple[Teacher, ...] = (), other: Teacher | None = None):
        super().__init__(config, optim)
        self.all = [*teachers, *([other] if other else [])]

    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        return self(logits + sum(one(batch.source, batch.target_in) for one in self.all), batch.target_out)
"""
)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A finished trial, and the runs folder that it is in."""
    runs = tmp_path_factory.mktemp("teacher") / "runs"
    code, trial = tiny_trials.train(runs, {"seed": 7})
    assert code == 0
    return runs, trial


@pytest.fixture
def copied(teacher, tmp_path):
    """The same, to be changed."""
    (tmp_path / "text").symlink_to(teacher[0].parent / "text")
    return shutil.copytree(teacher[0], tmp_path / "runs"), teacher[1]


def students(runs, teacher):
    return [TrialFolder(path) for path in sorted((runs / "trials").iterdir()) if path != teacher.path]


def train(runs, keys):
    """The exit code and the errors of the train command with these keys; see `tiny_trials.train`."""
    from transformer_pl.train.__main__ import main

    printed = tiny_trials.TINY | {"data.path": runs.parent / "text"} | keys
    return tiny_trials.ended(main, f"--runs={runs}", *(f"--{key}={value}" for key, value in printed.items()))


@pytest.mark.usefixtures("unrehearsed")
def test_a_student_learns_from_its_teacher(teacher):
    """Its id depends on the teacher's, its weights on what the teacher says, and the teacher's are not kept with it."""
    runs, trial = teacher
    for weight in (0.0, 0.9):
        code, _, _ = train(runs, DISTILLED | {"optim.loss.teacher": trial.result().id, "optim.loss.weight": weight})
        assert code == 0
    alone, taught = students(runs, trial)
    assert alone.result().id != taught.result().id
    assert alone.weights().keys() == taught.weights().keys() == trial.weights().keys()
    assert any(not torch.equal(value, taught.weights()[name]) for name, value in alone.weights().items())
    assert taught.identity()["optim.loss.teacher"] == trial.result().id


@pytest.mark.parametrize(
    "keys",
    [
        {"optim.loss.teacher": "0123456789ab"},
        {"optim.loss.teacher": "ID", "data.vocab_size": 280},
        {"optim.loss.teacher": "ID", "data.train_pairs": 20},
        {},
    ],
    ids=str,
)
def test_a_teacher_that_cannot_teach_is_refused_before_anything_starts(teacher, keys):
    runs, trial = teacher
    before = {path.name for path in (runs / "trials").iterdir()}
    keys = {key: trial.result().id if value == "ID" else value for key, value in keys.items()}
    code, _, error = train(runs, DISTILLED | keys)
    assert code == 2 and error.startswith("error: optim.loss") and "teacher" in error
    assert {path.name for path in (runs / "trials").iterdir()} == before


@pytest.mark.usefixtures("unrehearsed")
def test_a_teacher_may_have_another_text_with_the_same_tokens(copied, tmp_path):
    runs, trial = copied
    other = little_text(tmp_path / "other", train=50)
    keys = {"data.path": other, "data.vocabulary_from": tmp_path / "text"}
    keys |= DISTILLED | {"optim.loss.teacher": trial.result().id}
    texts = {key: str(value) for key, value in keys.items()}
    config = trial_config([Level("test", tiny_trials.TINY | texts)])
    with pytest.raises(InputError):  # its tokens are not known yet
        check_teachers(config, runs)
    prepare(config.data, runs)
    check_teachers(config, runs)
    code, _, error = train(runs, keys)
    assert code == 0, error


def test_a_student_may_have_another_test_set_than_its_teacher(copied, tmp_path):
    """It has the tokens of its teacher, also before its dataset is prepared."""
    runs, trial = copied
    other = shutil.copytree(tmp_path / "text", tmp_path / "other")
    for side in ("en", "de"):
        shutil.copy(other / f"val.{side}", other / f"test.{side}")
    keys = {"data.path": str(other), "optim.loss.teacher": trial.result().id}
    check_teachers(trial_config([Level("test", tiny_trials.TINY | DISTILLED | keys)]), runs)


SPOILT = {
    "unfinished": lambda trial: [trial.rename(trial.with_name("other")), trial.mkdir()],
    "empty": lambda trial: os.truncate(trial / "weights.safetensors", 0),
    "cut": lambda trial: os.truncate(trial / "weights.safetensors", 2000),
    "missing": lambda trial: (trial / "weights.safetensors").unlink(),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_teacher_without_a_result_or_without_whole_weights_is_refused(copied, how):
    runs, trial = copied
    SPOILT[how](runs / "trials" / trial.name)
    code, _, error = train(runs, DISTILLED | {"optim.loss.teacher": trial.result().id, "seed": 9})
    assert code == 2 and error.startswith("error: optim.loss.teacher = ")
    assert (trial.result().id if how == "unfinished" else "weights.safetensors") in error


def test_a_teacher_answers_without_dropout_or_gradients():
    module = TransformerModule(training_config(), 50)
    source, target = torch.randint(4, 50, (2, 5)), torch.randint(4, 50, (2, 6))
    teacher = Teacher(module.model)
    first, second = teacher(source, target), teacher(source, target)
    assert torch.equal(first, second) and not first.requires_grad and first.shape == (2, 6, 50)
    assert not any(weight.requires_grad for weight in module.model.parameters())


def test_a_teacher_is_no_part_of_the_student_however_its_loss_keeps_it(module):
    module(KEEPING)
    teachers = [Teacher(TransformerModule(training_config(), 50).model) for _ in range(3)]
    config = training_config(optim__loss="stranger.Keeps")
    student = TransformerModule(config, 50, {"teachers": teachers[:2], "other": teachers[2]}).train()
    alone = TransformerModule(training_config(), 50)
    own = {"loss.temperature", "loss.inside.head.weight", "loss.inside.head.bias"}
    names = [set(student.state_dict()), {name for name, _ in student.named_parameters()}]
    assert [one - set(alone.state_dict()) for one in names] == [own, own]
    source = target = torch.randint(4, 50, (2, 5))
    student.loss.of_batch(student.model, Batch(source, target, target, 10)).backward()
    assert student.loss.taught == [True, True] and not teachers[0].model.training
    assert student.loss.weight is teachers[0].model.embedding.weight and student.loss.weight.grad is None


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"optim.loss.other": "ID"}, marks=pytest.mark.slow),
        {"optim.loss.teachers": "[ID,ID]"},
    ],
    ids=str,
)
def test_teachers_may_be_several_and_may_be_left_out(module, copied, given):
    """The rehearsal has untrained ones in their place. The id depends on their weights, not on their names alone."""
    module(MAYBE)
    runs, trial = copied
    keys = {key: value.replace("ID", trial.result().id) for key, value in given.items()}
    code, _, error = train(runs, {"optim.loss": "stranger.Maybe"} | keys)
    assert code == 0, error
    (folder,) = {path for path in (runs / "trials").iterdir() if "stranger" in (path / "config.yaml").read_text()}
    digest = hashlib.sha256(bytes.fromhex(file_digest(trial.path / "weights.safetensors"))).hexdigest()
    assert TrialFolder(folder).identity().get("teachers") == ({trial.result().id: digest} if keys else None)


def test_a_student_stays_in_its_table_when_its_teacher_s_weights_are_moved(copied, tmp_path, capsys):
    """Its own identity.json has their digest. Another seed of its row needs them."""
    runs, teacher = copied
    keys = tiny_trials.TINY | {"data.path": str(tmp_path / "text")} | DISTILLED
    keys |= {"optim.loss.teacher": teacher.result().id}
    parameters = {key: {"value": value} for key, value in keys.items()} | {"seed": {"values": [9]}}
    file = tmp_path / "student.yaml"
    file.write_text(yaml.safe_dump({"name": "student", "method": "grid", "parameters": parameters}))
    words = [str(file), "--runs", str(runs)]
    assert sweep.main(words) == 0
    (runs / "trials" / teacher.name / "weights.safetensors").rename(tmp_path / "moved")
    before = set(runs.glob("trials/*"))
    capsys.readouterr()
    assert sweep.main([*words, "--plan"]) == 0 and "1 done" in capsys.readouterr().out
    assert report.main(words) == 0 and set(runs.glob("trials/*")) == before
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        sweep.main([*words, "--plan", "--seeds", "9,10"])


def test_the_weights_of_a_loss_are_trained(module):
    module(OWN)
    trained = TransformerModule(training_config(optim__loss="stranger.Temperature"), 50)
    optimizer = trained.configure_optimizers()["optimizer"]
    grouped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    assert grouped == {id(weight) for weight in trained.parameters()}
    assert id(trained.loss.temperature) in grouped


@pytest.mark.parametrize(
    ("key", "component"),
    [("optim.loss", "stranger.Temperature"), ("model.architecture", "ablations.shared_layers.SharedLayers")],
)
def test_sharding_refuses_what_it_cannot_shard(module, key, component):
    module(OWN)
    trained = TransformerModule(training_config(model__N=2, **{key.replace(".", "__"): component}), 50)
    trained._device_mesh = {"data_parallel": None}
    with pytest.raises(InputError) as caught:
        trained.configure_model()
    assert caught.value.messages[0].startswith(f"{key} = {component}: ")
