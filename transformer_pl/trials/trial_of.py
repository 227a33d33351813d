"""Which trial a config is, on a corpus and with the code that is here."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from transformer_pl.config import Component, Config, Data, custom_components_by_key, without_section
from transformer_pl.config.component_sources import Code, by_path, source_digests, task_digest
from transformer_pl.config.option_files import content_digest
from transformer_pl.data.tokenizer import tokenizer_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import Identity, identity, identity_callbacks
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import ALONE, Origin, Trial
from transformer_pl.trials.trial_folder import WEIGHTS, TrialFolder, folder_name


def code_digests(components: tuple[tuple[str, Component], ...], data: Data) -> dict[str, Code]:
    """Digests of code that is not the core's: of components, by name, and of the tokenizer and the task."""
    return source_digests(dict(components)) | tokenizer_digest(data) | task_digest(data)


def check_code(config: Config, folder: TrialFolder) -> None:
    """Raise an InputError unless the code of the model, its intervention and the task is that of the trial there.

    No module is imported, because the config may be a stranger's and name any module.
    """
    trained = folder.identity().get("parts", {})
    parts = {
        key: part for key, part in custom_components_by_key(config).items() if key.startswith(("model.", "decode."))
    }
    parts["data.task"] = Component(path=config.data.task)
    now = source_digests(parts)
    if changed := [f"{key} = {parts[key].path}" for key in now if trained.get(without_section(key)) != now[key]]:
        remedy = f"{folder.sources} keeps the old code: put it back, or train the trial again"
        rule = f"must be the code that {folder.name} was trained with, but has changed since"
        raise InputError(*(f"{part}: {rule}; {remedy}" for part in changed))


def trial_of(
    config: Config,
    corpus: Corpus,
    runs: RunsFolder,
    origin: Origin = ALONE,
    digests: Callable[..., dict[str, Code]] = code_digests,
    trunk: Trial | None = None,
) -> Trial:
    """The trial of a config on a corpus: equal identities share one folder.

    config: what is trained.
    corpus: the text.
    origin: where the trial comes from; its row is also in the name of a new folder.
    digests: `code_digests`, or a cache of it.
    trunk: the trial that `model.start` names; None where it is an id.

    Raises an InputError where `model.start` is no id of a trial in the runs folder.
    """
    components = {without_section(key): component for key, component in custom_components_by_key(config).items()}
    components |= by_path(identity_callbacks(config))
    found = identity(config, corpus.fingerprint, digests(tuple(components.items()), config.data))
    if named := re.findall(r"\b[0-9a-f]{12}\b", str([*config.optim.loss.options.values()])):
        found = _with_teachers(found, named, runs)
    start = None
    if config.model.start:
        start, weights = (
            (trunk.folder, trunk.identity.weights) if trunk else _started_from(config.model.start, found, runs)
        )
        named_by_id = {"model.start": start.id}
        config, origin = config.with_values(named_by_id), replace(origin, keys={**origin.keys, **named_by_id})
        found = Identity({**found.inputs, "model.start": weights})
    folder = runs.trial(folder_name(origin.row, config.seed, found.trial))
    return Trial(folder, config, found, corpus, origin, start, trunk)


def _started_from(name: str, found: Identity, runs: RunsFolder) -> tuple[TrialFolder, str]:
    """The trial with the id that `model.start` names, and the id of its weights.

    found: the identity of the trial that begins with it. Where its folder is no longer there, the id of its weights is
    that of a finished trial which began with them and has the weights that this one would have. Raises an InputError
    where there is none.
    """
    if (folder := runs.with_id(name)) and folder.identity():
        return folder, Identity(folder.identity()).weights
    for other, result in runs.finished() if re.fullmatch("[0-9a-f]{12}", name) else ():
        theirs = Identity(other.identity())
        ours = Identity({**found.inputs, "model.start": theirs.inputs.get("model.start")})
        if result.config.get("model.start") == name and ours.weights == theirs.weights:
            return TrialFolder(runs.path / "trials" / name), ours.inputs["model.start"]
    rule = f"must be the id of a trial in {runs.path}, or in a grid words of the name of a row"
    raise InputError(f"model.start = {name}: {rule}; take an id that `python -m transformer_pl.sweep --list` shows")


def _with_teachers(found: Identity, named: Sequence[str], runs: RunsFolder) -> Identity:
    """An identity with the digests of the weights of the trials that the options of the loss name, by their ids.

    Where weights are no longer there, it is that of a trial that was trained with them.
    """
    files = {id_: folder.path / WEIGHTS if (folder := runs.with_id(id_)) else None for id_ in named}
    there = {id_: content_digest(file) for id_, file in files.items() if file and file.is_file()}
    for other in runs.trials if len(there) < len(files) else ():
        inputs = dict(other.identity())
        teachers = inputs.pop("teachers", None)
        is_of_these = isinstance(teachers, dict) and teachers.keys() == files.keys()
        if is_of_these and there.items() <= teachers.items() and Identity(inputs).trial == found.trial:
            return Identity({**inputs, "teachers": teachers})
    return Identity({**found.inputs, "teachers": there}) if there else found
