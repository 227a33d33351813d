"""Teachers: models of finished trials, whose predictions the loss of another trial uses (`optim.loss`)."""

import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.config import Component, Config, Optim, Sizes, sizes
from transformer_pl.config.components import before_options, build, mentions, options_of_class
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import open_corpus
from transformer_pl.train.evaluate import trained_model
from transformer_pl.train.intervention import seeded
from transformer_pl.trials.runs_folder import finished_trials
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_of import check_code

KEY = "optim.loss"
UNTRAINED = "untrained"  # in place of an id: an untrained model stands in


class Teacher:
    """The model of a finished trial, in evaluation mode. It is not trained, and not saved with the student.

    An option of a loss that is declared as `Teacher` names the trial by its id: `optim.loss.teacher=cdc919164728`. So
    does one that is declared as `Teacher | None`, and `list[Teacher]` takes several ids.
    """

    def __init__(self, model: Transformer):
        self.model = model.eval().requires_grad_(False)
        self.model.register_forward_pre_hook(_follow)  # also where a loss calls the model itself

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """The logits (B, Lt, V) of every next token, without gradients, from source (B, Ls) and target (B, Lt)."""
        with torch.no_grad():
            return self.model(source, target)


def _follow(model: nn.Module, given: tuple[Tensor, ...]) -> None:
    """Move a model to the device of what it is given."""
    model.to(given[0].device)


def build_loss(optim: Optim, config: Sizes, teachers: dict[str, Any]) -> Any:
    """The training loss. teachers: the models that its options name, by option (see `load_teachers`)."""
    loss = build(optim.loss.model_copy(update={"options": optim.loss.options | teachers}), config, optim)
    if isinstance(loss, nn.Module):
        models = [one.model for value in teachers.values() for one in (value if isinstance(value, list) else [value])]
        _set_apart(loss, {id(one) for model in models for one in chain(model.parameters(), model.buffers())})
    return loss


def _set_apart(loss: nn.Module, theirs: set[int]) -> None:
    """Make plain attributes of the parts of a loss that consist of tensors of its teachers alone, by their `id`.

    So they are no part of what is trained, saved, counted, and put into training mode with the student.
    """
    for parts in (loss._modules, loss._parameters, loss._buffers):
        for name, part in list(parts.items()):
            is_module = isinstance(part, nn.Module)
            tensors = [*part.parameters(), *part.buffers()] if is_module else [part]  # type: ignore[union-attr]
            if tensors and all(id(tensor) in theirs for tensor in tensors):
                vars(loss)[name] = parts.pop(name)
            elif is_module:
                _set_apart(part, theirs)  # type: ignore[arg-type]


def load_teachers(config: Config, runs: Path, prepared: Prepared) -> dict[str, Any]:
    """By option, the models of the trials that the options of a loss name, in a list where one names several.

    Raises an InputError for a trial that cannot be used.
    """

    def load(option: str, name: object) -> Teacher:
        if name == UNTRAINED:
            shape = sizes(config.model, len(prepared.tokenizer))
            return Teacher(build(shape.architecture, shape))
        trial = _find(option, name, runs, prepared.folder.name)
        return Teacher(trained_model(trial.config, prepared, trial))

    with seeded(config.seed + 1):  # the student's random numbers do not depend on its teacher's, nor are they the same
        return _replaced(config.optim.loss, load)


def without_teachers(loss: Component) -> Component:
    """The loss with UNTRAINED for each trial that it names."""
    return loss.model_copy(update={"options": loss.options | _replaced(loss, lambda option, name: UNTRAINED)})


def check_teachers(config: Config, runs: Path) -> None:
    """Raise an InputError unless the trials that the loss names can teach.

    They are finished, have the vocabulary of their student, the code that they were trained with, and weights.
    """

    def check(option: str, name: object) -> None:
        found = _find(option, name, runs, fingerprint_id(config.data, open_corpus(config.data)))
        try:
            check_code(found.config, found)
            found.weights()
        except InputError as error:
            raise InputError(*(f"{KEY}.{option} = {name}: {message}" for message in error.messages)) from None

    _replaced(config.optim.loss, check)


def _replaced(loss: Component, replace: Callable[[str, object], Any]) -> dict[str, Any]:
    """The options of a loss that are declared as teachers, with what `replace` makes of each id."""
    declared = options_of_class(loss, before_options(KEY)) if loss.options else {}
    replaced: dict[str, Any] = {}
    for option, value in loss.options.items():
        if value is not None and option in declared and mentions(declared[option].annotation, Teacher):
            several = str(value).startswith(("[", "("))  # also in one text, such as [cdc919164728,0123456789ab]
            ids = re.findall(r"[^][(),'\"\s]+", str(value)) if several else [value]
            found = [replace(option, one) for one in ids]
            replaced[option] = found if several else found[0]
    return replaced


def _find(option: str, name: object, runs: Path, data: str) -> Trial:
    """The finished trial with the id `name`, of the prepared dataset `data`. Raises an InputError."""
    by_id = {result.id: trial for trial, result in finished_trials(runs)}
    value = f"{KEY}.{option} = {name}"
    if str(name) not in by_id:  # twelve digits may have been read as a number
        remedy = "train it first, or take an id that `python -m transformer_pl.sweep --list` shows"
        raise InputError(f"{value}: must be the id of a finished trial in {runs}, but none has it; {remedy}")
    if (teacher := by_id[str(name)]).data() != data:
        rule = "must be a trial on the same text with the same vocabulary, but has another text or vocabulary"
        raise InputError(f"{value}: {rule}; choose a trial with the same keys of data")
    return teacher
