"""Checks all that the parts of configs are, before anything starts, in child processes: these may hang, crash or exit.

Components of the model are measured (`components.py`), interventions are tried (`interventions.py`), and whatever else
is not in `transformer_pl` is rehearsed (`rehearsal.py`): a callback, a logger, an optimizer, a schedule, a loss, a
tokenizer, a task. What fails there would otherwise fail, or be wrong without a word, after hours. What has passed is
kept in `runs/checks`.
"""

import importlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from transformer_pl.config import Component, Config, custom_components, sizes
from transformer_pl.config.components import before_options, component_names, is_core, own_parts
from transformer_pl.config.option_files import file_contents
from transformer_pl.laws import schedules
from transformer_pl.laws.law import FAILS, Found, found, laws_of
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.environment import RANKS_OF, project_version
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json, write_json
from transformer_pl.runtime.isolated import in_parallel, isolated
from transformer_pl.trials.records import ChecksRecord
from transformer_pl.trials.trial_run import code_digests

REVISION = 5  # raised when a law becomes stricter: then every part is checked again
REHEARSAL = "in a rehearsal of 20 steps"

Findings = tuple[list[Found], float]  # of laws, and the calls of the model for each part of a batch


class Checks(NamedTuple):
    """What the laws have seen of the parts of a config."""

    found: tuple[Found, ...] = ()
    passes: float = 1.0  # calls of the model for each part of a batch: an optimizer may need two for a step
    mistakes: tuple[str, ...] = ()  # a message for each law that is broken, and each part that could not be checked

    @property
    def notes(self) -> list[str]:
        """What a plan prints of parts around the model that pass."""
        noted = (one for one in self.found if one.state == "holds" and one.how)
        return [f"{one.part}: {one.how}" for one in noted if not one.part.startswith("model.")]

    @property
    def exempt(self) -> dict[str, dict[str, str]]:
        """By the path of a component, the laws that it breaks on purpose, each with the reason."""
        exempt = [one for one in self.found if one.state == "exempt"]
        return {part: {one.law: one.how for one in exempt if one.part == part} for part in {one.part for one in exempt}}


class Job(NamedTuple):
    """A check of some parts of a config."""

    function: Callable[[str, Config, Path], Findings]
    config: Config
    what: str  # the parts
    digest: str  # of all that the check depends on


def check_all(configs: Sequence[Config], runs: Path, **options: Any) -> list[Checks]:
    """Check all parts of these configs. Raises one InputError for all that is wrong. Options: as of `checks_of`."""
    checked = checks_of(configs, runs, **options)
    if mistakes := [mistake for checks in checked for mistake in checks.mistakes]:
        raise InputError(*mistakes)
    return checked


def checks_of(
    configs: Sequence[Config],
    runs: Path,
    on_check: Callable[[str], object] = lambda what: None,
    models_alone: bool = False,
    teachers: bool = True,
) -> list[Checks]:
    """What the laws have seen of the parts of each config, on all cores.

    on_check: is told what is checked now.
    models_alone: only the components of models are checked.
    teachers: whether the trials that losses name must be there.
    """
    jobs = [[job for job in _jobs(config) if job.function is _measure or not models_alone] for config in configs]
    different = {job.digest: job for of_config in jobs for job in of_config}
    known = {digest: kept for digest in different if (kept := _kept(runs, digest))}
    missing = [job for digest, job in different.items() if digest not in known]
    if parent_process() is None and RANKS_OF not in os.environ:  # else what started this process has checked it
        made = in_parallel(partial(_made, runs=runs, on_check=on_check), missing)
        known |= {job.digest: one for job, one in zip(missing, made, strict=True)}
    merged = [_together([known.get(job.digest, Checks()) for job in of_config]) for of_config in jobs]
    if models_alone:
        return merged
    teachers_in = runs if teachers else None
    return [
        checks if checks.mistakes else _together([checks, _each_time(config, teachers_in)])
        for config, checks in zip(configs, merged, strict=True)
    ]


def _together(several: Sequence[Checks]) -> Checks:
    """What several checks have seen, each finding once."""
    findings = dict.fromkeys(one for checks in several for one in checks.found)
    mistakes = dict.fromkeys(mistake for checks in several for mistake in checks.mistakes)
    return Checks(tuple(findings), max([1.0, *(checks.passes for checks in several)]), tuple(mistakes))


def _jobs(config: Config) -> list[Job]:
    """The checks of a config's parts, each with what it depends on."""
    model, intervention, parts = custom_components(config.model), config.decode.intervention, own_parts(config)
    shape, trainer = sizes(config.model, config.data.vocab_size), config.trainer
    jobs = list[tuple[Callable, str, dict[str, Component], list[Any]]]()
    if model:
        jobs.append((_measure, component_names(config.model), model, [shape._replace(p_drop=0.0)]))
    if not is_core(intervention.path):
        tried, name = model | {"decode.intervention": intervention}, f"decode.intervention = {intervention.path}"
        jobs.append((_try, name, tried, [shape, config.decode.alpha]))
    if parts:
        keys = [
            config.data.model_dump(),
            config.optim.model_dump(),
            config.steps,
            config.decode.average > 1,
            config.decode.select,
        ]
        keys += [shape.N_encoder, shape.N_decoder, trainer.accumulate, trainer.precision, trainer.val_sample > 0]
        names = ", ".join(f"{key.partition('[')[0]} = {part.path}" for key, part in parts.items())
        jobs.append((_rehearse, names, parts, keys))
    return [Job(function, config, what, _digest(config, of_job, keys)) for function, what, of_job, keys in jobs]


def _digest(config: Config, parts: dict[str, Component], keys: list[Any]) -> str:
    """What a check depends on, as 12 hexadecimal digits: the parts, their code and files, some keys, the versions."""
    keys_of = {name: name.partition("[")[0] if "." in name else f"model.{name}" for name in parts}
    files = {name: file_contents(parts[name], before_options(key)) for name, key in keys_of.items()}
    code = code_digests(
        tuple({part.path: part for name, part in parts.items() if name != "data.task"}.items()), config.data
    )
    versions = [REVISION, project_version(), *map(importlib.metadata.version, ("torch", "lightning"))]
    return value_digest([parts, files, code, keys, versions], default=Component.model_dump)


def _kept(runs: Path, digest: str) -> Checks | None:
    kept = read_json(runs / "checks" / f"{digest}.json", ChecksRecord)
    return Checks(tuple(Found(*one) for one in kept["found"]), kept["passes"]) if kept else None


def _made(job: Job, runs: Path, on_check: Callable[[str], object]) -> Checks:
    """Check a job's parts, and keep what has passed."""
    on_check(job.what)
    try:
        findings, passes = job.function(job.what, job.config, runs)
    except InputError as error:
        return Checks(mistakes=error.messages)
    checks = _judged(findings, job.config, passes)
    with suppress(OSError):  # it is checked again where nothing can be written
        if not checks.mistakes:
            (runs / "checks").mkdir(parents=True, exist_ok=True)
            write_json(runs / "checks" / f"{job.digest}.json", checks._asdict())
    return checks


def _measure(what: str, config: Config, runs: Path) -> Findings:
    return _in_child(what, "components", "findings", config.model, config.data.vocab_size), 1.0


def _try(what: str, config: Config, runs: Path) -> Findings:
    return _in_child(what, "interventions", "findings", config), 1.0


def _rehearse(what: str, config: Config, runs: Path) -> Findings:
    """The stages of a rehearsal: one trains to the end, a second is stopped half-way, and a third one continues it."""
    parts, parent, stage = own_parts(config), runs / "checks", partial(_in_child, f"{what}, {REHEARSAL}", "rehearsal")
    with suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=parent if parent.exists() else None) as name:
        folder = Path(name)
        begun = stage("begin", config, parts, runs, folder)
        if begun.steps > 1:
            stage("stop", config, folder, begun.layers, 1 + begun.steps // 2)
        ended = stage("end", config, parts, folder, begun.layers) if begun.steps else []
        return begun.found + ended, begun.passes


def _in_child(what: str, module: str, function: str, *arguments: Any) -> Any:
    """Call a function of a module of this package in a child process. what: the parts, for messages that name none."""
    try:
        return isolated(what, _call, module, function, *arguments)
    except InputError as error:
        named = [message if " = " in message.partition(":")[0] else f"{what}: {message}" for message in error.messages]
        raise InputError(*named) from None


def _call(module: str, function: str, *arguments: Any) -> Any:
    loaded = importlib.import_module(f"transformer_pl.laws.{module}")
    if parent_process():
        sys.modules["torch"].set_num_threads(1)  # as many are checked at once as there are cores
    return getattr(loaded, function)(*arguments)


def _each_time(config: Config, runs: Path | None) -> Checks:
    """What is checked each time: the schedule in this very config, as a rehearsal may be another's; the teachers."""
    findings, missing = list[Found](), tuple[str, ...]()
    if not is_core(config.optim.schedule.path):  # which has run in a child process
        part = f"optim.schedule = {config.optim.schedule.path}"
        findings = found(part, laws_of(schedules), schedules.Subject(config))
    if runs and not is_core(config.optim.loss.path):
        from transformer_pl.train.teacher import check_teachers  # imports torch, as the loss does

        try:
            check_teachers([config], runs)
        except InputError as error:
            missing = error.messages
    checks = _judged(findings, config)
    return checks._replace(mistakes=(*checks.mistakes, *missing))


def _judged(findings: Sequence[Found], config: Config, passes: float = 1.0) -> Checks:
    return Checks(tuple(findings), passes, tuple(_message(one, config) for one in findings if one.is_broken))


def _message(one: Found, config: Config) -> str:
    """The error for a broken law, with what usually breaks it and, for a component, the command that measures again."""
    cause = f"; usual cause: {one.cause}" if one.cause and one.state == "BROKEN" else ""
    if not one.part.startswith("model."):
        where = "" if one.part.startswith("decode.") else f" ({REHEARSAL})"
        is_rule = one.state == "FAILS" and not one.how.startswith(FAILS)  # the part's own error says what must be
        law = "" if is_rule else f"must keep the law {one.law} ({one.sentence}), but "
        return f"{one.part}: {law}{one.how}{where}{cause}"
    components = custom_components(config.model)
    slot, flat = next(iter(components)), config.flat()
    words = [f"{key}={flat[key]}" for key in flat if key.startswith("model.") and key.split(".")[1] in components]
    words = [components[slot].path, *(word for word in words if word != f"model.{slot}={components[slot].path}")]
    words += ["--slot", slot, *([] if config.model.N_encoder != 0 else ["--scale", "demo-lm"])]  # of a language model
    return (
        f"{one.part}: must keep the law {one.law}, but {one.how}{cause}; to check it again run `"
        f"{join(['python', '-m', 'transformer_pl.check', *words])}`; to declare an exception write `exempt = "
        f'{{"{one.law}": "the reason"}}` in the class'
    )
