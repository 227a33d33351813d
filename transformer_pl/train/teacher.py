"""Teachers: models of finished trials, whose predictions the loss of another trial uses (`optim.loss`)."""

import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.config import Component, Config, Optim, Sizes, sizes
from transformer_pl.config.components import NamedByText, before_options, build, mentions, options_of_class
from transformer_pl.config.types import SEEDS
from transformer_pl.data.prepare import prepared_dataset, with_same_training
from transformer_pl.data.prepared import Prepared
from transformer_pl.model import Transformer
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import open_corpus
from transformer_pl.train.evaluate import trained_model
from transformer_pl.train.random_numbers import same_random_numbers
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import RunsFolder, trained_config
from transformer_pl.trials.trial_folder import TrialFolder
from transformer_pl.trials.trial_of import check_code

KEY = "optim.loss"
UNTRAINED = "untrained"  # in place of an id: an untrained model stands in


class Teacher(NamedByText):
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
        models = [teacher.model for teacher in all_teachers(teachers)]
        _set_apart(loss, {id(one) for model in models for one in chain(model.parameters(), model.buffers())})
    return loss


def all_teachers(by_option: dict[str, Any]) -> list[Teacher]:
    """The teachers that `load_teachers` has loaded."""
    return [one for value in by_option.values() for one in (value if isinstance(value, list) else [value])]


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
    folders = RunsFolder(runs)

    def load(option: str, name: object) -> Teacher:
        if name == UNTRAINED:
            shape = sizes(config.model, len(prepared.tokenizer))
            return Teacher(build(shape.architecture, shape))
        found = _find(option, name, folders, prepared)
        return Teacher(trained_model(trained_config(*found), prepared, found[0]))

    # The student's random numbers do not depend on its teacher's, nor are they the same.
    with same_random_numbers((config.seed + 1) % SEEDS):
        return _replaced(config.optim.loss, load)


def without_teachers(loss: Component) -> Component:
    """The loss with UNTRAINED for each trial that it names."""
    return loss.model_copy(update={"options": loss.options | _replaced(loss, lambda option, name: UNTRAINED)})


def check_teachers(config: Config, runs: Path) -> None:
    """Raise an InputError unless the trials that the loss names can teach.

    They are finished, have the vocabulary of their student, the code that they were trained with, and weights.
    """
    folders, corpus = RunsFolder(runs), open_corpus(config.data)
    prepared = prepared_dataset(config.data, runs, corpus)
    if not prepared.is_counted():
        prepared = with_same_training(prepared.folder.parent, config.data, corpus) or prepared

    def check(option: str, name: object) -> None:
        folder, result = _find(option, name, folders, prepared)
        try:
            check_code(trained_config(folder, result), folder)
            folder.weights()
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


def _find(option: str, name: object, runs: RunsFolder, prepared: Prepared) -> tuple[TrialFolder, Result]:
    """The finished trial with the id `name`, with the tokens of a dataset. Raises an InputError."""
    folder, value = runs.with_id(str(name)), f"{KEY}.{option} = {name}"  # twelve digits may have been read as a number
    if not (folder and (result := folder.result())):
        remedy = "train it first, or take an id that `python -m transformer_pl.sweep --list` shows"
        raise InputError(f"{value}: must be the id of a finished trial in {runs.path}, but none has it; {remedy}")
    if folder.data() != prepared.folder.name and not _has_vocabulary(prepared, result.vocabulary):
        rule = "must be a trial with the tokens of this text, but has another text or vocabulary"
        remedy = "choose one with the same keys of data, or train a row with data.vocabulary_from on this text first"
        raise InputError(f"{value}: {rule}; {remedy}")
    return folder, result


def _has_vocabulary(prepared: Prepared, digest: str | None) -> bool:
    """Whether a dataset is prepared, and has the tokens of a result with this digest of a vocabulary."""
    return prepared.is_counted() and value_digest(prepared.tokenizer.vocabulary()) == digest
