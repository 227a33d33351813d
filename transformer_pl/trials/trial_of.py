"""Which trial a config is, on a corpus and with the code that is here."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_pl.config import (
    COMPONENTS,
    Component,
    Config,
    Data,
    custom_components,
    custom_components_by_key,
    without_section,
)
from transformer_pl.config.component_sources import source_digests, task_digest
from transformer_pl.config.option_files import content_digest
from transformer_pl.data.tokenizer import tokenizer_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import Identity, identity, identity_callbacks
from transformer_pl.trials.trial import WEIGHTS, Trial, trial_folder


def code_digests(components: tuple[tuple[str, Component], ...], data: Data) -> dict[str, str]:
    """Digests of code that is not the core's: of components, by name, and of the tokenizer and the task."""
    return source_digests(dict(components)) | tokenizer_digest(data) | task_digest(data)


def check_code(config: Config, trial: Trial) -> None:
    """Raise an InputError unless the code of the model, its intervention and the task is that of the trial.

    No module is imported, because the config may be a stranger's and name any module.
    """
    trained = trial.identity.inputs.get("parts", {})
    components = custom_components(config.model) | custom_components(config.decode)
    keys = {without_section(key): key for key in (*COMPONENTS, "data.task")}
    now = source_digests(components) | task_digest(config.data)
    if changed := [f"{keys[slot]} = {config.flat()[keys[slot]]}" for slot in now if trained.get(slot) != now[slot]]:
        remedy = f"{trial.sources} keeps the old code: put it back, or train the trial again"
        rule = f"must be the code that {trial.folder.name} was trained with, but has changed since"
        raise InputError(*(f"{part}: {rule}; {remedy}" for part in changed))


def trial_of(
    config: Config,
    corpus: Corpus,
    runs: Path,
    row: str = "base",
    digests: Callable[..., dict[str, str]] = code_digests,
    **more: Any,
) -> Trial:
    """The trial of a config on a corpus: equal identities share one folder.

    config: what is trained.
    corpus: the text.
    runs: the runs folder.
    row: what differs from base, also for the name of a new folder.
    digests: `code_digests`, or a cache of it.
    more: what else `Trial` takes, such as its scale.
    """
    components = {without_section(key): component for key, component in custom_components_by_key(config).items()}
    components |= {callback.path: callback for callback in identity_callbacks(config)}
    found = identity(config, corpus.fingerprint, digests(tuple(components.items()), config.data))
    if teachers := _weights_of_teachers(config, runs):
        found = Identity({**found.inputs, "teachers": teachers})
    name = trial_folder(row, config.seed, found.trial)
    return Trial.at(runs, name, config=config, identity=found, corpus=corpus, row=row, **more)


def _weights_of_teachers(config: Config, runs: Path) -> dict[str, str]:
    """By id, the digests of the weights of the trials that the options of the loss name."""
    named = re.findall(r"\b[0-9a-f]{12}\b", str([*config.optim.loss.options.values()]))
    files = {name: Trial.at(runs, f"-{name}").folder / WEIGHTS for name in named}
    return {name: content_digest(file) for name, file in files.items() if file.is_file()}
