"""The rehearsal: a row's own training, made small, from its text to its score, before anything starts.

A part around the model that is not in `transformer_pl` (a callback, a logger, an optimizer, a schedule, a loss, a
tokenizer, a task) meets everything that it will meet later: training, validation, a checkpoint, another process that
continues, averaging, evaluation, decoding, scoring. What fails here would otherwise fail, or be wrong without a word,
after hours. The stages run in child processes (`stages.py`): one trains to the end, a second one is stopped half-way,
and a third one continues and must come to the same weights and scores.
"""

import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.check.run import check_models
from transformer_pl.config import Component, Config, custom_components_by_key, without_section
from transformer_pl.config.components import before_options, is_core
from transformer_pl.config.option_files import file_contents
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.environment import RANKS_OF, project_version
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.files import read_json, write_json
from transformer_pl.runtime.isolated import isolated
from transformer_pl.trials.identity import identity_callbacks
from transformer_pl.trials.records import RehearsalRecord
from transformer_pl.trials.trial_run import code_digests

INTERVENED = "it changes a model of the row's sizes, which then computes and decodes"
WHOLE = "it is trained, validated, saved, evaluated, decoded and scored"
CONTINUED = "a training that is stopped and continued comes to the same weights and scores"
LAWS = {  # by key, what `stages.py` checks of a part beside that
    "optim.optimizer": (
        "it changes every weight that has a gradient",
        "it reads every key of its groups of parameters",
    ),
    "optim.schedule": ("its rate is finite and not negative throughout the training",),
    "optim.loss": (
        "it returns one finite number, which has a gradient, also by each weight of its own",
        "it leaves out padding",
        "it is a sum over tokens: the loss of a batch is the sum of those of its sentences",
        "it changes nothing of the batch that it is given",
    ),
    "data.tokenizer": (
        "every sentence has tokens, the same alone as among others, and their text is not blank",
        "a long sentence keeps the tokens of its end",
        "it adds nothing to a sentence, such as padding",
        "when it is loaded again it gives the same tokens",
    ),
    "data.task": (
        "its metrics are finite, and its score is that of the sums of the numbers of lines",
        "the last number of a line depends on the reference alone",
    ),
    "trainer.callbacks": ("it leaves the schedule of the rate as it is",),
}
REVISION = 3  # raised when the rehearsal becomes stricter: then every part is rehearsed again


class Rehearsal(NamedTuple):
    """What a rehearsal has found of a row that passed."""

    passes: float = 1.0  # calls of the model for each part of a batch: an optimizer may need two for a step
    notes: Sequence[str] = ()  # what a plan prints about the parts
    laws: Sequence[str] = ()  # what holds of the parts


def own_parts(config: Config) -> dict[str, Component]:
    """The parts around the model that are not in `transformer_pl`, by a name that begins with their key."""
    parts = {
        key: part for key, part in custom_components_by_key(config).items() if not key.startswith(("model.", "decode."))
    }
    parts |= {"data.task": Component(path=config.data.task)}
    parts |= {f"trainer.callbacks[{i}]": part for i, part in enumerate(config.trainer.callbacks)}
    parts |= {f"trainer.loggers[{i}]": part for i, part in enumerate(config.trainer.loggers)}
    return {key: part for key, part in parts.items() if not is_core(part.path)}


def rehearse(configs: Iterable[Config], runs: Path) -> list[Rehearsal]:
    """Rehearse each of these configs that has own parts; those with the same parts share one rehearsal.

    What passed is kept in `runs/checks`. Raises one InputError for all that is wrong.
    """
    digests, first = list[str](), dict[str, Config]()
    for config in configs:
        digests.append(_digest(config) if own_parts(config) else "")
        if digests[-1]:
            first.setdefault(digests[-1], config)
    found = collect_errors(lambda digest: _kept_or_made(first[digest], runs, digest), first)
    return [found.get(digest, Rehearsal()) for digest in digests]


def check_all(configs: Sequence[Config], runs: Path) -> list[Rehearsal]:
    """Check all that the parts of these configs are, and that their teachers are there. Raises one InputError."""
    checks: tuple[Callable[..., Any], ...] = (check_teachers, check_parts)
    return list(collect_errors(lambda check: check(configs, runs), checks).values())[-1]


def check_parts(configs: Sequence[Config], runs: Path) -> list[Rehearsal]:
    """Check the components of these configs and rehearse their other parts. Raises one InputError for all."""
    checks: list[Callable[[], Any]] = [
        lambda: check_models(configs, runs),
        lambda: try_interventions(configs),
        lambda: rehearse(configs, runs),
    ]
    return list(collect_errors(lambda check: check(), checks).values())[-1]


def check_teachers(configs: Iterable[Config], runs: Path) -> None:
    """Raise one InputError for all trials that losses name as teachers and that cannot be used."""
    if own := [config for config in configs if "optim.loss" in own_parts(config)]:
        from transformer_pl.train import teacher  # imports torch, as the loss does

        teacher.check_teachers(own, runs)


def try_interventions(configs: Iterable[Config]) -> None:
    """Try the interventions of these configs, each on an untrained model of its row's sizes.

    Raises one InputError for all that is wrong.
    """
    own = [config for config in configs if not is_core(config.decode.intervention.path)]
    if own and not _was_tried():
        names = ", ".join(dict.fromkeys(f"decode.intervention = {config.decode.intervention.path}" for config in own))
        _stage(names, "intervened", own)


def _was_tried() -> bool:
    """Whether this process was started by one that has rehearsed whatever it trains."""
    return parent_process() is not None or RANKS_OF in os.environ


def check_match(passes: Iterable[tuple[str, float]]) -> None:
    """Raise an InputError for rows whose FLOPs optim.match=flops cannot match, as it counts one pass for each batch.

    passes: the name of each row, and how many passes it computes for each batch.
    """
    rule = "must compute one pass of the model for each batch with optim.match=flops, which counts no more"
    wrong = [f"row `{name}`: {rule}, but computes {found:g}; leave it out" for name, found in passes if found != 1]
    if wrong:
        raise InputError(*wrong)


def _kept_or_made(config: Config, runs: Path, digest: str) -> Rehearsal:
    path = runs / "checks" / f"{digest}.json"
    if passed := read_json(path, RehearsalRecord):
        return Rehearsal(**passed)
    if _was_tried():
        return Rehearsal()
    made = _rehearse(config, runs)
    with suppress(OSError):  # it is rehearsed again where nothing can be written
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, made._asdict())
    return made


def _rehearse(config: Config, runs: Path) -> Rehearsal:
    names = ", ".join(f"{key.partition('[')[0]} = {part.path}" for key, part in own_parts(config).items())
    parent: Path | None = runs / "checks"
    try:
        runs.joinpath("checks").mkdir(parents=True, exist_ok=True)
    except OSError:
        parent = None  # the system's folder for temporary files
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=parent) as folder:
        laws = [WHOLE, *(law for key in own_parts(config) for law in LAWS.get(key.partition("[")[0], ()))]
        config, found = _stage(names, "whole", config, runs, Path(folder))
        if (steps := found.pop("steps")) > 1:
            _stage(names, "stopped", config, Path(folder), 1 + steps // 2)
            what = f"{names}: a training that is stopped and continues"
            laws += [CONTINUED] if _stage(what, "continued", config, Path(folder)) else []
        if identity_callbacks(config) and _stage(names, "idle", config, Path(folder)):
            remedy = "write in_identity: false beside the options of one that only watches"
            found["notes"] = [*found["notes"], f"{names}: changed nothing in the few steps of the rehearsal; {remedy}"]
        return Rehearsal(**found, laws=laws)


def _stage(what: str, name: str, *arguments: Any) -> Any:
    """Call the function `name` of `stages.py` in a child process. Each message of its InputError names a part.

    what: the parts that are rehearsed, for messages that name none.
    """
    try:
        return isolated(what, _in_child, name, *arguments)
    except InputError as error:
        named = [message if " = " in message.partition(":")[0] else f"{what}: {message}" for message in error.messages]
        raise InputError(*named) from None


def _in_child(name: str, *arguments: Any) -> Any:
    from transformer_pl.train import stages  # imports torch

    return getattr(stages, name)(*arguments)


def _digest(config: Config) -> str:
    """What a rehearsal depends on, as 12 hexadecimal digits: the parts, their code and files, what they meet."""
    parts, trainer = own_parts(config), config.trainer
    components = {without_section(key) if "[" not in key else part.path: part for key, part in parts.items()}
    inputs: dict[str, Any] = {
        "parts": {key: part.model_dump() for key, part in parts.items()},
        "code": code_digests(tuple(components.items()), config.data),
        "files": {key: file_contents(part, before_options(key)) for key, part in parts.items()},
        "data": config.data.model_dump(),
        "average": [config.decode.average > 1, config.decode.select],
        "trainer": [trainer.accumulate, trainer.precision, trainer.val_sample > 0],
        "versions": [REVISION, project_version(), *map(importlib.metadata.version, ("torch", "lightning"))],
    }
    return value_digest(inputs)
