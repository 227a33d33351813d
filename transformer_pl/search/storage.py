"""The storage of a study: a journal file beside the table, or a database that several machines share."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from transformer_pl.runtime import passwords
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_regular, set_aside
from transformer_pl.search.space import Search

JOURNAL = "study.journal"
DESCRIPTION = "search"  # user attribute of a study, as stored: what all its trials have in common
DATABASE_ERRORS = (StorageInternalError, SQLAlchemyError)
UNANSWERED = (*DATABASE_ERRORS, OSError)  # raised while a storage does not answer
PATIENCE_S = 60.0  # for a storage that does not answer
optuna.logging.set_verbosity(optuna.logging.WARNING)  # the sweep prints what becomes of each trial

T = TypeVar("T")


class NotSearched(InputError):
    """There is no study of a search yet."""


class Unreachable(Exception):
    """The storage has not answered for PATIENCE_S; the message says why."""


class Patience:
    """How long a storage has not answered. clock: seconds that only increase."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._since: float | None = None

    def answered(self) -> None:
        """The storage has answered: count anew from the next error."""
        self._since = None

    def unanswered(self, error: Exception) -> None:
        """Note that one of UNANSWERED was caught. Raises Unreachable PATIENCE_S after the first in a row."""
        if self._since is None:
            self._since = self._clock()
        if self._clock() > self._since + PATIENCE_S:
            raise Unreachable(first_line(error)) from error


def display_url(url: str | None, folder: Path) -> str:
    """Return what optuna-dashboard takes, without the password. url: None for a journal in `folder`."""
    return str(folder / JOURNAL) if url is None else _parsed(url).render_as_string(hide_password=True)


def create_study(
    search: Search, folder: Path, url: str | None, sampler: BaseSampler | None, pruner: BasePruner | None
) -> optuna.Study:
    """Create the study of a search, or load it if it is there.

    A damaged journal is set aside: the study begins anew, and trials that it draws again are not trained again.
    Raises an InputError where the storage does not answer, or has a study of this name with other settings.
    """
    full_url = _with_password(url)
    journal = folder / JOURNAL
    if full_url is None and (damage := _damage(folder)):
        warn(f"{damage}; it is set aside as {set_aside(journal).name}, and the study begins anew")
    elif full_url is None and journal.exists() and not journal.stat().st_size:
        warn(f"{journal}: is empty; the study begins anew")

    def create() -> optuna.Study:
        return optuna.create_study(
            study_name=folder.name,
            storage=_open(full_url, folder),
            sampler=sampler,
            pruner=pruner,
            directions=list(search.goals.values()),
            load_if_exists=True,
        )

    study = _retry_while_created(url, create)
    if DESCRIPTION not in study.user_attrs:
        study.set_user_attr(DESCRIPTION, _describe(search))
        with warnings.catch_warnings():  # Optuna warns that this function may change
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(search.goals))  # for optuna-dashboard
    _check_search(study, search)
    return study


def find_study(search: Search, folder: Path, url: str | None) -> optuna.Study:
    """Load the study of a search.

    Raises NotSearched where there is none, and an InputError where it cannot be read, or has other settings.
    """
    missing = NotSearched(
        f"{search.path}: must have been searched in {display_url(url, folder)}, but was not; run it first"
    )
    if url is None and not (folder / JOURNAL).exists():
        raise missing
    full_url = _with_password(url)
    if full_url is None and (damage := _damage(folder)):
        raise InputError(f"{damage}; the sweep command sets it aside and begins the study anew")
    try:
        study = _retry_while_created(
            url, lambda: optuna.load_study(study_name=folder.name, storage=_open(full_url, folder))
        )
    except KeyError:
        raise missing from None
    _check_search(study, search)
    return study


def _with_password(url: str | None) -> str | None:
    """Add the password that was taken from the command line, or is in the environment."""
    if url is None:
        return None
    parsed = _parsed(url)
    if parsed.host or parsed.username is not None:  # a file has no password
        parsed = parsed.set(password=parsed.password or passwords.password())
    return parsed.render_as_string(hide_password=False)


def _open(full_url: str | None, folder: Path) -> BaseStorage:
    if full_url is None:
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return RDBStorage(full_url, engine_kwargs={"pool_pre_ping": True})  # a connection may break while a trial runs


def _damage(folder: Path) -> str | None:
    """What is wrong with the journal, if anything. Optuna raises any error for one that it cannot replay."""
    path = folder / JOURNAL
    try:
        if path.exists():
            check_regular(path)
            JournalStorage(JournalFileBackend(str(path)))
    except Exception as error:
        return f"{path}: cannot be read: {type(error).__name__}: {first_line(error)}"
    return None


def _parsed(url: str) -> URL:
    """Raises an InputError for a malformed URL, without printing it: it may hold a password anywhere."""
    try:
        if passwords.HIDDEN in url:
            raise ValueError
        return make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(
            "--storage: must be a URL that Optuna takes, such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE or "
            "sqlite:///FILE; correct it. Write a password nowhere else in it, with %40 for each @; or leave it out "
            f"and set {passwords.PASSWORD} in the environment"
        ) from None


def _retry_while_created(url: str | None, connect: Callable[[], T]) -> T:
    """Call `connect`, again where several processes create the tables of an empty database at once: all but one fail.

    Raises an InputError where the database does not answer.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        try:
            return connect()
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            if attempts_left and (not isinstance(error, OperationalError) or "already exists" in str(error)):
                time.sleep(0.5)
                continue
            reason = first_line(error)
        except (SQLAlchemyError, OSError) as error:
            reason = first_line(error)
        except ImportError as error:
            raise InputError(
                f"--storage {display_url(url, Path())}: needs a package that is not here: {error.__cause__ or error}; "
                "pip install it (for PostgreSQL: psycopg[binary])"
            ) from None
        break
    raise InputError(
        f"--storage {display_url(url, Path())}: must be a database that answers, but: {reason}; correct the URL, or "
        "start the database"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, where there is one of its cause or of the database's driver."""
    cause = error.__cause__ or error
    return (str(getattr(cause, "orig", None) or cause).strip() or type(cause).__name__).splitlines()[0]


def _check_search(study: optuna.Study, search: Search) -> None:
    """Raise an InputError where the study was created for another search; a study that was not described is taken."""
    description = _describe(search)
    stored = study.user_attrs.get(DESCRIPTION, description)
    keys = [key for key in dict.fromkeys([*stored, *description]) if stored.get(key) != description.get(key)]
    if changes := [f"{key} was {stored.get(key)}, is {description.get(key)}" for key in keys]:
        raise InputError(
            f"{search.path}: must be the search that its study was created for, but {'; '.join(changes)}; undo that, "
            "or give the file another `name`"
        )


def _describe(search: Search) -> dict[str, str]:
    """Return what all trials of a study have in common. `run_cap` is left out: it may be raised."""
    space = {key: distribution_to_json(distribution) for key, distribution in search.space.items()}
    parameters = {f"parameters.{key}": str(value) for key, value in (search.fixed | space).items()}
    goals = " and ".join(f"{direction} {metric}" for metric, direction in search.goals.items())
    sets = str(sorted(search.sets.items()))
    return parameters | {"metric": goals, "scale": search.scale, "seed": str(search.seed), "--set": sets}
