"""One trial that a command trains: its config, its identity, and where it lies on disk."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_pl.config import (
    COMPONENTS,
    Component,
    Config,
    Data,
    custom_components,
    custom_components_by_key,
    effective_sizes,
    without_section,
)
from transformer_pl.config.component_sources import source_digests, task_digest
from transformer_pl.config.option_files import content_digest
from transformer_pl.data.tokenizer import tokenizer_digest
from transformer_pl.runtime.environment import SWEEP
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import Identity, identity, identity_callbacks
from transformer_pl.trials.trial import WEIGHTS, Trial, run_name, trial_folder


def code_digests(components: tuple[tuple[str, Component], ...], data: Data) -> dict[str, str]:
    """Digests of code that is not the core's: of components, by name, and of the tokenizer and the task."""
    return source_digests(dict(components)) | tokenizer_digest(data) | task_digest(data)


def check_code(config: Config, trial: Trial) -> None:
    """Raise an InputError unless the code of the model, its intervention and the task is that of the trial.

    No module is imported, because the config may be a stranger's and name any module.
    """
    trained = trial.identity_inputs().get("parts", {})
    components = custom_components(config.model) | custom_components(config.decode)
    keys = {without_section(key): key for key in (*COMPONENTS, "data.task")}
    now = source_digests(components) | task_digest(config.data)
    if changed := [f"{keys[slot]} = {config.flat()[keys[slot]]}" for slot in now if trained.get(slot) != now[slot]]:
        remedy = f"{trial.sources} keeps the old code: put it back, or train the trial again"
        rule = f"must be the code that {trial.folder.name} was trained with, but has changed since"
        raise InputError(*(f"{part}: {rule}; {remedy}" for part in changed))


def identify(
    config: Config, corpus: Corpus, runs: Path, row: str, digests: Callable[..., dict[str, str]] = code_digests
) -> tuple[Identity, Trial]:
    """The identity of a config on a corpus, and its trial: equal identities share one folder.

    config: what is trained.
    corpus: the text.
    runs: the runs folder.
    row: what differs from base, for the name of a new folder.
    digests: `code_digests`, or a cache of it.
    """
    components = {without_section(key): component for key, component in custom_components_by_key(config).items()}
    components |= {callback.path: callback for callback in identity_callbacks(config)}
    found = identity(config, corpus.fingerprint, digests(tuple(components.items()), config.data))
    if teachers := _weights_of_teachers(config, runs):
        found = Identity({**found.inputs, "teachers": teachers})
    return found, Trial.at(runs, trial_folder(row, config.seed, found.trial))


def _weights_of_teachers(config: Config, runs: Path) -> dict[str, str]:
    """By id, the digests of the weights of the trials that the options of the loss name."""
    named = re.findall(r"\b[0-9a-f]{12}\b", str([*config.optim.loss.options.values()]))
    files = {name: Trial.at(runs, f"-{name}").folder / WEIGHTS for name in named}
    return {name: content_digest(file) for name, file in files.items() if file.is_file()}


@dataclass(frozen=True)
class TrialRun:
    """A trial as the train command works on it."""

    config: Config
    runs: Path  # the runs folder
    scale: str  # the name of the scale
    row: str  # the sweep's name of the row, or how the config differs from the scale: `base`, or such as `h=4`
    corpus: Corpus
    identity: Identity
    trial: Trial
    rerun: bool = False  # whether it is trained again if it has ended

    # What the checks before a training have found
    exempt: dict[str, dict[str, str]] = field(default_factory=dict)  # by a component's path: what it breaks, and why
    passes: float = 1.0  # calls of the model for each part of a batch: an optimizer may need two for a step

    @property
    def name(self) -> str:
        return run_name(self.row, self.config.seed)

    @property
    def tags(self) -> list[str]:
        return [self.scale, self.row]

    @property
    def settings(self) -> dict[str, Any]:
        """The config by dotted keys, with the sizes that its multipliers give."""
        return self.config.flat() | effective_sizes(self.config)

    def labels(self) -> dict[str, Any]:
        """The folder of the W&B run, and what it shows from its start."""
        config = self.settings | {"sweep": os.environ.get(SWEEP, "none"), "row": self.row}
        return {"folder": str(self.trial.folder), "name": self.name, "tags": self.tags, "config": config}
