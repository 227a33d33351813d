"""Losses that see the model: their weights are trained, and a finished trial can be their teacher."""

import hashlib
import os
import shutil

import pytest
import tiny_trials
import torch
from small_trainings import config as training_config

from transformer_pl.data.batches import Batch
from transformer_pl.runtime.digests import file_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.teacher import Teacher
from transformer_pl.trials.trial import Trial

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


def students(runs, teacher):
    return [Trial(path) for path in sorted((runs / "trials").iterdir()) if path != teacher.folder]


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
    assert taught.identity.inputs["optim.loss.teacher"] == trial.result().id


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


def test_an_unfinished_trial_is_no_teacher(teacher, tmp_path):
    runs, trial = teacher
    (tmp_path / "runs" / "trials" / trial.folder.name).mkdir(parents=True)
    (tmp_path / "text").symlink_to(runs.parent / "text")
    code, _, error = train(tmp_path / "runs", DISTILLED | {"optim.loss.teacher": trial.result().id})
    assert code == 2 and trial.result().id in error


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


@pytest.mark.parametrize("given", [{}, {"optim.loss.other": "ID"}, {"optim.loss.teachers": "[ID,ID]"}], ids=str)
def test_teachers_may_be_several_and_may_be_left_out(module, teacher, tmp_path, given):
    """The rehearsal has untrained ones in their place. The id depends on their weights, not on their names alone."""
    module(MAYBE)
    trial, runs = teacher[1], shutil.copytree(teacher[0], tmp_path / "runs")
    (tmp_path / "text").symlink_to(teacher[0].parent / "text")
    keys = {key: value.replace("ID", trial.result().id) for key, value in given.items()}
    code, _, error = train(runs, {"optim.loss": "stranger.Maybe"} | keys)
    assert code == 0, error
    (folder,) = {path for path in (runs / "trials").iterdir() if "stranger" in (path / "config.yaml").read_text()}
    digest = hashlib.sha256(bytes.fromhex(file_digest(trial.folder / "weights.safetensors"))).hexdigest()
    assert Trial(folder).identity.inputs.get("teachers") == ({trial.result().id: digest} if keys else None)


@pytest.mark.parametrize("size", [0, 2000, None], ids=["empty", "cut", "missing"])
def test_a_teacher_without_whole_weights_is_refused(teacher, tmp_path, size):
    runs = shutil.copytree(teacher[0], tmp_path / "runs")
    (tmp_path / "text").symlink_to(teacher[0].parent / "text")
    weights = runs / "trials" / teacher[1].folder.name / "weights.safetensors"
    weights.unlink() if size is None else os.truncate(weights, size)
    code, _, error = train(runs, DISTILLED | {"optim.loss.teacher": teacher[1].result().id, "seed": 9})
    assert code == 2 and error.startswith("error: optim.loss.teacher = ") and "weights.safetensors" in error


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
