"""Where a study lies, and with what it is drawn and pruned."""

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from transformer_pl.config import parse_scalar, suggestion
from transformer_pl.runtime import passwords
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.space import SCHEDULED, Search

JOURNAL = "study.journal"
LOST = (StorageInternalError, SQLAlchemyError, OSError)  # what is raised while a storage does not answer
SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "qmc": optuna.samplers.QMCSampler,
    "cma-es": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "nsga-ii": optuna.samplers.NSGAIISampler,
}
NEEDS = {"cma-es": "cmaes"}  # packages that Optuna itself does not ask for
PRUNERS = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}
optuna.logging.set_verbosity(optuna.logging.WARNING)  # what becomes of a trial is told by the sweep


# ---------------------------------------------------------------------------------------------------------------------
# Samplers and pruners


def sampler(search: Search, words: Sequence[str] | None) -> Any:
    """`--sampler`, or what the file's method is to W&B."""
    return construct(SAMPLERS, words or ["random" if search.method == "random" else "tpe"], "--sampler")


def pruner(search: Search, words: Sequence[str] | None) -> Any:
    """`--pruner`, or the file's `early_terminate`. Raises an InputError where no goal is logged on the schedule."""
    if words and words[0] != "none" and not (len(search.goals) == 1 and search.goals.keys() <= set(SCHEDULED)):
        raise InputError(
            f"--pruner {words[0]}: needs one metric that is logged on the schedule ({', '.join(SCHEDULED)}), but "
            f"{search.path} searches for {', '.join(search.goals)}; search for one of these, or leave it out"
        )
    if words or search.early is None:
        return construct(PRUNERS, words or ["none"], "--pruner")
    return PRUNERS["halving"](min_resource=search.early["first"], reduction_factor=search.early["eta"])


def try_out(search: Search, sampler: Any, pruner: Any) -> None:
    """A dozen trials in memory: an option that Optuna refuses when it is first needed is refused here.

    Raises an InputError with Optuna's words.
    """
    study = optuna.create_study(
        sampler=copy.deepcopy(sampler), pruner=copy.deepcopy(pruner), directions=list(search.goals.values())
    )
    try:
        for value in range(1, 13):
            trial = study.ask(search.space)
            trial.set_constraint("laws", 0.0)
            if len(search.goals) == 1:
                for at in (1, 2, 3):
                    trial.report(value / at, at)
                    trial.should_prune()
            study.tell(trial, [float(value)] * len(search.goals))
    except Exception as error:  # whatever it is, it would end the search
        raise InputError(
            f"--sampler or --pruner: must have options that Optuna can draw with, but: {first_line(error)}; mend them"
        ) from None


def construct(kinds: Mapping[str, Any], words: Sequence[str], what: str) -> Any:
    """`tpe n_startup_trials=5`: one of SAMPLERS or PRUNERS, with options of its constructor."""
    name, *options = words
    if name not in kinds:
        raise InputError(f"{what} {name}: no such one{suggestion(name, kinds)}")
    if name in NEEDS and not find_spec(NEEDS[name]):
        raise InputError(
            f"{what} {name}: needs the package {NEEDS[name]}, which is not here; pip install {NEEDS[name]}"
        )
    try:
        told = [option.partition("=") for option in options]
        return kinds[name](**{key: parse_scalar(value) for key, _, value in told})
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} {' '.join(words)}: {error}") from None


# ---------------------------------------------------------------------------------------------------------------------
# The storage


class Unreachable(Exception):
    """It has not answered for too long; says why."""


def display_url(url: str | None, folder: Path) -> str:
    """What optuna-dashboard takes, but for the password."""
    return str(folder / JOURNAL) if url is None else _parsed(url).render_as_string(hide_password=True)


def create_study(search: Search, folder: Path, url: str | None, sampler: Any, pruner: Any) -> optuna.Study:
    """The study of a search, made where there is none.

    Raises an InputError where the storage does not answer, or has a study of this name that searches something else.
    """

    whole = _whole(url)

    def made() -> optuna.Study:
        return optuna.create_study(
            study_name=folder.name,
            storage=_storage(whole, folder),
            sampler=sampler,
            pruner=pruner,
            directions=list(search.goals.values()),
            load_if_exists=True,
        )

    study = _answered(url, made)
    said = _what(search)
    before = study.user_attrs.get("search")
    if before is None:
        study.set_user_attr("search", said)
        with warnings.catch_warnings():  # that Optuna may change this
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(search.goals))  # for optuna-dashboard
    elif before != said:
        keys = [key for key in dict.fromkeys([*before, *said]) if before.get(key) != said.get(key)]
        differing = [f"{key} was {before.get(key)}, is {said.get(key)}" for key in keys]
        raise InputError(
            f"{search.path}: a study is of one search, but {'; '.join(differing)}; undo that, or give the file another "
            f"`name`"
        )
    return study


def find_study(search: Search, folder: Path, url: str | None) -> optuna.Study:
    """The study of a search that was begun. Raises an InputError where none was."""
    missing = InputError(
        f"{search.path}: must have been searched in {display_url(url, folder)}, but was not; run it first"
    )
    if url is None and not (folder / JOURNAL).exists():
        raise missing
    whole = _whole(url)
    try:
        return _answered(url, lambda: optuna.load_study(study_name=folder.name, storage=_storage(whole, folder)))
    except KeyError:
        raise missing from None


def _whole(url: str | None) -> str | None:
    """With the password that was taken from the command line, or is in the environment."""
    if url is None:
        return None
    parsed = _parsed(url)
    if parsed.host or parsed.username is not None:  # a file has none
        parsed = parsed.set(password=parsed.password or passwords.password())
    return parsed.render_as_string(hide_password=False)


def _storage(whole: str | None, folder: Path) -> BaseStorage:
    if whole is None:
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return RDBStorage(whole, engine_kwargs={"pool_pre_ping": True})  # a connection may have died while a trial ran


def _parsed(url: str) -> URL:
    try:
        if passwords.HIDDEN in url:
            raise ValueError
        return make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(
            "--storage: must be a URL that Optuna takes, such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE or "
            "sqlite:///FILE; correct it. A password stands there and nowhere else, with %40 for each @ in it, or it is "
            f"left out and set in the environment, as {passwords.PASSWORD}"
        ) from None


def _answered(url: str | None, ask: Any) -> Any:
    """Several workers may make the tables of an empty database at once, and all but one of them fail: then again."""
    for again in (True, True, True, True, False):
        try:
            return ask()
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            if again and (not isinstance(error, OperationalError) or "already exists" in str(error)):
                time.sleep(0.5)
                continue
            why = first_line(error)
        except (SQLAlchemyError, OSError) as error:
            why = first_line(error)
        except ImportError as error:
            raise InputError(f"--storage {display_url(url, Path())}: {_needs(error)}") from None
        raise InputError(f"--storage {display_url(url, Path())}: must be a database that answers, but: {why}; mend it")


def first_line(error: BaseException) -> str:
    """What is wrong, in the words of whoever noticed first."""
    why = error.__cause__ or error
    return (str(getattr(why, "orig", None) or why).strip() or type(why).__name__).splitlines()[0]


def _needs(error: ImportError) -> str:
    why = error.__cause__ or error
    return f"needs a package that is not here: {why}; pip install it (for PostgreSQL: psycopg[binary])"


def _what(search: Search) -> dict[str, str]:
    """What all trials of a study have in common; how many there are is left out."""
    space = {key: distribution_to_json(where) for key, where in search.space.items()}
    parameters = {f"parameters.{key}": str(value) for key, value in (search.fixed | space).items()}
    goals = " and ".join(f"{goal} {name}" for name, goal in search.goals.items())
    sets = str(sorted(search.sets.items()))
    return parameters | {"metric": goals, "scale": search.scale, "seed": str(search.seed), "--set": sets}
