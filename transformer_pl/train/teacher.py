"""Teachers: models of finished trials, whose predictions the loss of another trial uses (`optim.loss`)."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_pl.config import Component, Config, Optim, Sizes, sizes
from transformer_pl.config.components import before_options, build, declared_types
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import open_corpus
from transformer_pl.train.evaluate import trained_model
from transformer_pl.trials.runs_folder import FinishedTrial, finished_trials

KEY = "optim.loss"


class Teacher:
    """The model of a finished trial, in evaluation mode. It is not trained, and not saved with the student.

    An option of a loss that is declared as `Teacher` names the trial by its id:
    `optim.loss.teacher=cdc919164728`.
    """

    def __init__(self, model: Transformer):
        self.model = model.eval().requires_grad_(False)

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """The logits (B, Lt, V) of every next token, without gradients, from source (B, Ls) and target (B, Lt)."""
        with torch.no_grad():
            return self.model.to(source.device)(source, target)


def build_loss(optim: Optim, config: Sizes, teachers: dict[str, Teacher]) -> Any:
    """The training loss. teachers: the models that its options name, by option (see `load_teachers`)."""
    others = {name: value for name, value in optim.loss.options.items() if name not in teachers}
    return build(optim.loss.model_copy(update={"options": others}), config, optim, **teachers)


def load_teachers(config: Config, runs: Path, prepared: Prepared) -> dict[str, Teacher]:
    """The models of the trials that the options of a loss name. For None, an untrained model stands in.

    Raises an InputError for a trial that cannot be used.
    """
    teachers = {}
    for option, name in _named(config.optim.loss).items():
        with torch.random.fork_rng(devices=[]):  # the student's random numbers do not depend on its teacher's
            if name is None:
                shape = sizes(config.model, len(prepared.tokenizer))
                teachers[option] = Teacher(build(shape.architecture, shape))
            else:
                trial = _find(option, name, runs, prepared.folder.name)
                teachers[option] = Teacher(trained_model(trial.config(), prepared, trial.trial))
    return teachers


def without_teachers(loss: Component) -> Component:
    """The loss with None for each trial that it names, so that an untrained model stands in for it."""
    return loss.model_copy(update={"options": loss.options | dict.fromkeys(_named(loss))})


def check_teachers(configs: Iterable[Config], runs: Path) -> None:
    """Raise an InputError unless the trials that losses name are finished and have the vocabulary of their students."""
    for config in configs:
        for option, name in _named(config.optim.loss).items():
            _find(option, name, runs, fingerprint_id(config.data, open_corpus(config.data)))


def _named(loss: Component) -> dict[str, Any]:
    """By option, the ids of the trials that a loss names as its teachers."""
    declared = declared_types(loss, before_options(KEY)) if loss.options else {}
    types = {name: kind for name, kind in declared.items() if inspect.isclass(kind) and issubclass(kind, Teacher)}
    return {name: value for name, value in loss.options.items() if name in types}


def _find(option: str, name: object, runs: Path, data: str) -> FinishedTrial:
    """The finished trial with the id `name`, of the prepared dataset `data`. Raises an InputError."""
    by_id = {finished.result.id: finished for finished in finished_trials(runs)}
    value = f"{KEY}.{option} = {name}"
    if name not in by_id:
        remedy = "train it first, or take an id that `python -m transformer_pl.sweep --list` shows"
        raise InputError(f"{value}: must be the id of a finished trial in {runs}, but none has it; {remedy}")
    if (teacher := by_id[str(name)]).trial.data() != data:
        rule = "must be a trial on the same text with the same vocabulary, but has another text or vocabulary"
        raise InputError(f"{value}: {rule}; choose a trial with the same keys of data")
    return teacher
