"""Checks what rows bring in before anything starts, in child processes, because such code may hang, crash or exit.

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
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from pydantic import BaseModel

from transformer_pl.config import Component, Config, custom_components, custom_components_by_key, sizes
from transformer_pl.config.component_sources import by_path
from transformer_pl.config.components import before_options, component_names, is_core, own_parts
from transformer_pl.config.option_files import file_contents
from transformer_pl.laws import schedules
from transformer_pl.laws.law import FAILS, Found, part_names
from transformer_pl.runtime.calls import call_in_child, in_parallel
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.environment import RANKS_OF, project_version
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json, write_json
from transformer_pl.trials.records import ChecksRecord
from transformer_pl.trials.trial_of import code_digests

REVISION = 9  # raised when a law becomes stricter: then every part is checked again
REHEARSAL = "in a rehearsal of 20 steps"


class Checks(NamedTuple):
    """What the laws have seen of the parts of a config."""

    found: tuple[Found, ...] = ()
    passes: float | None = 1.0  # that a batch costs: an optimizer may need two for a step; None: not known beforehand
    mistakes: tuple[str, ...] = ()  # a message for each law that is broken, and each part that could not be checked

    @property
    def notes(self) -> list[str]:
        """What a plan prints of parts around the model that pass."""
        noted = (one for one in self.found if one.is_note)
        return [f"{one.part}: {one.how}" for one in noted if not one.part.startswith("model.")]

    @property
    def exempt(self) -> dict[str, dict[str, str]]:
        """By the path of a component, the laws that it breaks on purpose, each with the reason."""
        exempt = [one for one in self.found if one.state == "exempt"]
        return {part: {one.law: one.how for one in exempt if one.part == part} for part in {one.part for one in exempt}}


class Job(NamedTuple):
    """A check of some parts of a config."""

    kind: str  # the module of this package that has the laws
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
    on_check: Callable[[str], object] = lambda _: None,
    students: Container[int] = range(sys.maxsize),
    rows: Sequence[str] = (),
) -> list[Checks]:
    """What the laws have seen of the parts of each config, on all cores.

    on_check: is told what is checked now.
    students: which configs are to be trained, by default all: the trials that their losses name must be there.
    rows: the names of the configs, which `on_check` is told, too.
    """
    jobs = [_jobs(config) for config in configs]
    names = _first_rows(rows, jobs)
    different = {job.digest: job for of_config in jobs for job in of_config}
    known = {digest: kept for digest in different if (kept := _kept(runs, digest))}
    if parent_process() is None and RANKS_OF not in os.environ:  # else what started this process has checked it
        missing = [job for digest, job in different.items() if digest not in known]
        told = partial(_made, runs=runs, on_check=lambda job: on_check(names.get(job.digest, job.what)))
        made = in_parallel(told, missing)
        known |= {job.digest: one for job, one in zip(missing, made, strict=True)}
    merged = [_together([known.get(job.digest, Checks()) for job in of_config]) for of_config in jobs]
    return [
        checks if checks.mistakes else _together([checks, _each_time(config, runs if i in students else None)])
        for i, (config, checks) in enumerate(zip(configs, merged, strict=True))
    ]


def _first_rows(rows: Sequence[str], jobs: Sequence[Sequence[Job]]) -> dict[str, str]:
    """By the digest of a job, the name of the first row that has it, and what is checked."""
    backwards = [*zip(rows, jobs, strict=False)][::-1]
    return {job.digest: f"{row}: {job.what}" for row, of_row in backwards for job in of_row}


def _together(several: Sequence[Checks]) -> Checks:
    """What several checks have seen, each finding once."""
    findings = dict.fromkeys(one for checks in several for one in checks.found)
    mistakes = dict.fromkeys(mistake for checks in several for mistake in checks.mistakes)
    passes = [checks.passes for checks in several if checks.passes != 1] or [1.0]
    return Checks(tuple(findings), passes[0], tuple(mistakes))


def _jobs(config: Config) -> list[Job]:
    """The checks of a config's parts, each with what it depends on: its parts, and some keys."""
    shape, decode, trainer = sizes(config.model, config.data.vocab_size), config.decode, config.trainer
    by_key, around = custom_components_by_key(config), own_parts(config)
    model = {key: part for key, part in by_key.items() if key.startswith("model.")}
    tried = {key: part for key, part in by_key.items() if key == "decode.intervention"}
    keys = [config.data, config.optim, config.steps, decode.average > 1, decode.select, trainer.accumulate]
    keys += [shape.N_encoder, shape.N_decoder, trainer.precision, trainer.val_sample > 0]
    kinds: dict[str, tuple[dict[str, Component], str, list[Any]]] = {
        "components": (model, component_names(config.model), [shape._replace(p_drop=0.0)]),
        "interventions": (tried and model | tried, part_names(tried), [shape, decode.alpha]),
        "rehearsal": (around, part_names(around), keys),
    }
    return [Job(kind, config, what, _digest(config, parts, on)) for kind, (parts, what, on) in kinds.items() if parts]


def _digest(config: Config, parts: dict[str, Component], keys: list[Any]) -> str:
    """What a check depends on, as 12 hexadecimal digits: the parts, their code and files, some keys, the versions."""
    files = {name: file_contents(part, before_options(name)) for name, part in parts.items()}
    own = by_path(part for name, part in parts.items() if name != "data.task")
    code = code_digests(tuple(own.items()), config.data)
    versions = [REVISION, project_version(), *map(importlib.metadata.version, ("torch", "lightning"))]
    return value_digest([parts, files, code, keys, versions], default=BaseModel.model_dump)


def _kept(runs: Path, digest: str) -> Checks | None:
    kept = read_json(runs / "checks" / f"{digest}.json", ChecksRecord)
    return Checks(tuple(Found(*one) for one in kept["found"]), kept["passes"]) if kept else None


def _made(job: Job, runs: Path, on_check: Callable[[Job], object]) -> Checks:
    """Check a job's parts, and keep what has passed."""
    on_check(job)
    try:
        findings, passes = _rehearse(job, runs) if job.kind == "rehearsal" else (_in_child(job, "findings"), 1.0)
    except InputError as error:
        return Checks(mistakes=error.messages)
    checks = _judged(findings, job.config, passes)
    with suppress(OSError):  # it is checked again where nothing can be written
        if not checks.mistakes:
            (runs / "checks").mkdir(parents=True, exist_ok=True)
            write_json(runs / "checks" / f"{job.digest}.json", {"found": checks.found, "passes": passes})
    return checks


def _rehearse(job: Job, runs: Path) -> tuple[list[Found], float | None]:
    """The stages of a rehearsal: one trains to the end, a second is stopped half-way, and a third one continues it."""
    parent = runs / "checks"
    with suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=parent if parent.exists() else None) as name:
        folder = Path(name)
        findings, steps, passes = _in_child(job, "begin", runs, folder)
        if steps > 1:
            _in_child(job, "stop", folder, 1 + steps // 2)
        return findings + (_in_child(job, "end", folder) if steps else []), passes


def _in_child(job: Job, function: str, *arguments: Any) -> Any:
    """Call a function of the module of a job's kind with its config in a child process."""
    what = f"{job.what}, {REHEARSAL}" if job.kind == "rehearsal" else job.what
    try:
        return call_in_child(what, _call, job.kind, function, job.config, *arguments)
    except InputError as error:
        named = [message if " = " in message.partition(":")[0] else f"{what}: {message}" for message in error.messages]
        raise InputError(*named) from None


def _call(module: str, function: str, *arguments: Any) -> Any:
    loaded = importlib.import_module(f"transformer_pl.laws.{module}")
    if parent_process():
        sys.modules["torch"].set_num_threads(1)  # as many are checked at once as there are cores
    return getattr(loaded, function)(*arguments)


def _each_time(config: Config, teachers_in: Path | None) -> Checks:
    """What is checked each time: the schedule in this very config, what is frozen, and the teachers."""
    checks = _judged(schedules.findings(config), config)
    try:
        if config.optim.freeze:
            from transformer_pl.train.start import check_freeze  # imports torch

            check_freeze(config)
        if teachers_in and not is_core(config.optim.loss.path):
            from transformer_pl.train.teacher import check_teachers  # imports torch, as the loss does

            check_teachers(config, teachers_in)
    except InputError as error:
        return checks._replace(mistakes=(*checks.mistakes, *error.messages))
    return checks


def _judged(findings: Sequence[Found], config: Config, passes: float | None = 1.0) -> Checks:
    return Checks(tuple(findings), passes, tuple(_message(one, config) for one in findings if one.is_broken))


def _message(one: Found, config: Config) -> str:
    """The error for a broken law, with what usually breaks it and, for a component, the command that measures again."""
    if not one.part.startswith("model."):
        is_rule = one.state == "FAILS" and not one.how.startswith(FAILS)  # the part's own error says what must be
        law = "" if is_rule else f"must keep the law {one.law} ({one.sentence}), but "
        where = "" if one.part.startswith("decode.") else f" ({REHEARSAL})"
        return f"{one.part}: {law}{one.how}{where}{one.cause}"
    components, flat = custom_components(config.model), config.flat()
    slot = next(iter(components))
    words = [f"{key}={flat[key]}" for key in flat if key.startswith("model.") and key.split(".")[1] in components]
    words += ["--slot", slot, *([] if config.model.N_encoder != 0 else ["--scale", "demo-lm"])]  # of a language model
    return (
        f"{one.part}: must keep the law {one.law}, but {one.how}{one.cause}; to check it again run `"
        f"{join(['python', '-m', 'transformer_pl.check', components[slot].path, *words])}`; to declare an exception "
        f'write `exempt = {{"{one.law}": "the reason"}}` in the class'
    )
