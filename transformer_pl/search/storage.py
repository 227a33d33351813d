"""The storage of a study: a journal file beside the table, or a database that several machines share."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from transformer_pl.runtime.errors import InputError
from transformer_pl.search.space import Search
from transformer_pl.search.states import BASE, FIRST, shown_number

JOURNAL = "study.journal"
DESCRIPTION = "search"  # user attribute of a study: what all its trials have in common
DATABASE_ERRORS = (StorageInternalError, SQLAlchemyError)
BEAT_S, GRACE_S = 15, 60  # in a database: between two heartbeats of a trial; without one until its process is dead

T = TypeVar("T")


class NotSearched(InputError):
    """There is no study of a search yet."""


@contextmanager
def without_warnings() -> Iterator[None]:
    """In it Optuna warns neither of functions that it may still change, nor of uses that are meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage|Clip non-finite|PedAnovaImportanceEvaluator")
        yield


@without_warnings()
def create_study(
    search: Search, folder: Path, url: str | None, sampler: BaseSampler | None, pruner: BasePruner | None
) -> optuna.Study:
    """Create the study of a search, or load it if it is there.

    Raises an InputError where the storage cannot be opened, or has a study of this name with other settings.
    """

    def create() -> optuna.Study:
        return optuna.create_study(
            study_name=folder.name,
            storage=_open(url, folder),
            sampler=sampler,
            pruner=pruner,
            directions=list(search.goals.values()),
            load_if_exists=True,
        )

    study = _connect(url, create)
    if DESCRIPTION not in study.user_attrs:
        study.set_user_attr(DESCRIPTION, _describe(search))
        study.set_metric_names(list(search.goals))  # for optuna-dashboard
    _check_search(study, search)
    return study


@without_warnings()
def find_study(search: Search, folder: Path, url: str | None) -> optuna.Study:
    """Load the study of a search.

    Raises NotSearched where there is none, and an InputError where it cannot be read, or has other settings.
    """
    missing = NotSearched(f"{search.path}: must have been searched in {url or folder / JOURNAL}; run it first")
    if url is None and not (folder / JOURNAL).exists():
        raise missing
    try:
        study = _connect(url, lambda: optuna.load_study(study_name=folder.name, storage=_open(url, folder)))
    except KeyError:
        raise missing from None
    _check_search(study, search)
    return study


def _open(url: str | None, folder: Path) -> BaseStorage:
    if url is None:
        path = folder / JOURNAL
        try:
            return JournalStorage(JournalFileBackend(str(path)))
        except Exception as error:  # Optuna raises any error for a journal that it cannot replay
            raise InputError(
                f"{path}: must be a journal that Optuna can replay, but: {type(error).__name__}: {first_line(error)}; "
                "rename the file, and the search begins anew: trials that have finished are not trained again"
            ) from None
    return RDBStorage(
        url,
        engine_kwargs={"pool_pre_ping": True},  # a connection may break while a trial runs
        heartbeat_interval=BEAT_S,
        grace_period=GRACE_S,
        heartbeat_stale_trial_callback=retry_once,
    )


def check_url(url: str | None) -> None:
    """Raise an InputError for a URL that is malformed or holds a password, without printing it."""
    try:
        parsed = url and make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(
            "--storage: must be a URL that Optuna takes, such as postgresql://USER@HOST:PORT/DATABASE or "
            "sqlite:///FILE; correct it"
        ) from None
    if parsed and (parsed.password or any("pass" in key.lower() for key in parsed.query.keys() - {"passfile"})):
        raise InputError(
            "--storage: must hold no password, which others could read on the command line; take it out, and give it "
            "to the database's driver: of PostgreSQL in the file ~/.pgpass, or in the environment as PGPASSWORD"
        )


def _connect(url: str | None, connect: Callable[[], T]) -> T:
    """Call `connect`, again where several processes create the tables of an empty database at once: all but one fail.

    Raises an InputError where the database does not answer.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        try:
            return connect()
        except (SQLAlchemyError, OSError, ImportError) as error:
            reason = first_line(error)
            if isinstance(error, IntegrityError | ProgrammingError) or "already exists" in str(error):
                time.sleep(attempts_left / 4)
                continue
        break
    raise InputError(
        f"--storage {url}: must be a database that answers, but: {reason}; correct the URL, start the database, or "
        "install its driver (for PostgreSQL: pip install 'psycopg[binary]')"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, where there is one of its cause or of the database's driver."""
    cause = error.__cause__ or error
    return (str(getattr(cause, "orig", None) or cause).strip() or type(cause).__name__).splitlines()[0]


def _check_search(study: optuna.Study, search: Search) -> None:
    """Raise an InputError where the study was created for another search; a study that was not described is taken."""
    description = _describe(search)
    stored = study.user_attrs.get(DESCRIPTION, description)
    keys = [key for key in stored | description if stored.get(key) != description.get(key)]
    if changes := [f"{key} was {stored.get(key)}, is {description.get(key)}" for key in keys]:
        raise InputError(
            f"{search.path}: must be the search that its study was created for, but {'; '.join(changes)}; undo that, "
            "or give the file another `name`"
        )


def enqueue_again(study: optuna.Study, trial: Trial | FrozenTrial) -> None:
    """Enqueue a trial with the same values, under the number of the first time."""
    kept = {BASE: True} if BASE in trial.user_attrs else {}
    study.enqueue_trial(dict(trial.params), user_attrs=kept | {FIRST: shown_number(trial)})


def retry_once(study: optuna.Study, orphan: FrozenTrial) -> None:
    """Enqueue a trial whose process died; not for a second time, as the trial itself may kill its process."""
    if FIRST not in orphan.user_attrs:
        enqueue_again(study, orphan)


def _describe(search: Search) -> dict[str, str]:
    """Return what all trials of a study have in common. `run_cap` is left out: it may be raised."""
    space = {key: distribution_to_json(distribution) for key, distribution in search.space.items()}
    parameters = {f"parameters.{key}": str(value) for key, value in (search.fixed | space).items()}
    goals = " and ".join(f"{direction} {metric}" for metric, direction in search.goals.items())
    sets = str(sorted(search.sets.items()))
    return parameters | {"metric": goals, "scale": search.scale, "seed": str(search.seed), "--set": sets}
