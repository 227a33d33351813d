"""The study of a search: where Optuna keeps it, and the states of its trials.

It is a journal file beside the table, or a database that several machines share.
"""

import time
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import distribution_to_json
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import NullPool, make_url
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError, SQLAlchemyError

from transformer_pl.config import without_section
from transformer_pl.plan.shared_options import TableOptions
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_writable
from transformer_pl.runtime.signals import postponed
from transformer_pl.search.space import Search, read_search

JOURNAL = "study.journal"
CONNECT_S = (1, 1, 0)  # the wait after each failed attempt to open a database

AWAY_S, AGAIN_S = 600.0, 2.0  # how long a database may not answer, and the wait before it is asked again

# User attributes of a trial.
BASE = "base"  # True: this is the base, enqueued when the study is created
FOLDER = "folder"  # the name of its folder under runs/trials; missing where its config is invalid
INFEASIBLE = "infeasible"  # the error message of an invalid config
DIVERGED = "diverged"  # the step at which the loss was no longer finite


def search_from_options(file: Path, content: dict[str, Any], options: TableOptions) -> Search:
    """The search that a sweep file describes, with the options of the command line. Raises an InputError."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints what becomes of each trial
    check_url(options.storage)
    if options.retune:
        raise InputError(f"--retune: is for the rows of a grid, but {file} searches; add the keys to its parameters")
    return read_search(file, content, options.scale, options.seeds, options.set)


# Optuna need not warn of functions that it may still change, nor of uses that are meant here.
warnings.simplefilter("ignore", ExperimentalWarning)
warnings.filterwarnings("ignore", "Clip non-finite|The constraint value|Constraints have been set")

try_again = RetryHeartbeatStaleTrialCallback()  # enqueues a trial of a study with the same values
try_once_more = RetryHeartbeatStaleTrialCallback(max_retry=1)  # only once, as the trial may have killed its process


def create_study(search: Search, folder: Path, url: str | None) -> Study:
    """Create the study of a search with base as its first trial, or load it if it is there. Raises an InputError."""
    if url is None:
        check_writable(folder)
    storage, name = _open(url, folder), _study_name(search, folder)
    try:
        study = optuna.create_study(study_name=name, storage=storage, directions=list(search.goals.values()))
    except DuplicatedStudyError:
        return optuna.load_study(study_name=name, storage=storage)
    study.enqueue_trial(search.base_draw, user_attrs={BASE: True})
    study.set_metric_names(list(search.goals))  # for optuna-dashboard
    return study


def find_study(search: Search, folder: Path, url: str | None) -> Study | None:
    """Load the study of a search; None where there is none. Raises an InputError."""
    file = folder / JOURNAL if url is None else _sqlite_file(url)
    if file and not file.exists():  # Optuna would create it
        return None
    try:
        return optuna.load_study(study_name=_study_name(search, folder), storage=_open(url, folder))
    except KeyError:
        return None


class _Journal(JournalFileBackend):
    """A journal that no signal interrupts while it writes.

    Optuna would turn the signal into an error of another kind, or would leave its lock behind.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with postponed():
            super().append_logs(logs)


def _patiently(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a database, with new tries while the database does not answer, such as during its restart."""

    @wraps(method)
    def ask(*arguments: Any, **named: Any) -> Any:
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                return method(*arguments, **named)
            except StorageInternalError as error:
                if not isinstance(error.__cause__, OperationalError | InterfaceError):
                    raise
                if time.monotonic() > deadline:
                    rule = f"must answer, but has not for {AWAY_S:g} s; start it, and run the same command again"
                    raise InputError(f"--storage: {rule}") from None
            warn("--storage: the database does not answer; waiting for it")
            time.sleep(AGAIN_S)

    return ask


class _Database(RDBStorage):
    """A database that may be away for a while: a search waits for it."""


for _name in (*BaseStorage.__abstractmethods__, "_get_trials"):
    setattr(_Database, _name, _patiently(getattr(RDBStorage, _name)))


def _open(url: str | None, folder: Path) -> BaseStorage:
    """Open the journal or the database.

    If several processes create the tables of a database at once, all but one fail at first, and then try again.
    """
    if url is None:
        return JournalStorage(_Journal(str(folder / JOURNAL)))
    for wait_s in CONNECT_S:
        try:
            # No connection stays open while a trial runs: it may break.
            return _Database(url, engine_kwargs={"poolclass": NullPool})
        except (SQLAlchemyError, OSError, ImportError) as error:
            reason = str(getattr(error, "orig", error)).strip().partition("\n")[0]
            time.sleep(wait_s)
    remedy = "start it, or install its driver (for PostgreSQL: pip install 'psycopg[binary]')"
    raise InputError(f"--storage {url}: must be a database that answers, but: {reason}; {remedy}")


def check_url(url: str | None) -> None:
    """Raise an InputError for a URL that is malformed or holds a password, without printing it."""
    try:
        parsed = make_url("sqlite://" if url is None else url)
        is_wrong = parsed.password or any("pass" in key.lower() for key in parsed.query if key != "passfile")
    except (ArgumentError, ValueError):
        is_wrong = True
    file = None if is_wrong or url is None else _sqlite_file(url)
    if file and (not file.name or not file.parent.is_dir()):
        rule = "must name a file in a folder that exists, such as sqlite:///study.db"
        raise InputError(f"--storage {url}: {rule}, which several processes can open; correct it")
    if is_wrong:
        form = "postgresql+psycopg://USER@HOST:PORT/DATABASE, without a password, which others could read"
        raise InputError(f"--storage: must be a URL such as {form}; put that into ~/.pgpass, or into PGPASSWORD")


def _sqlite_file(url: str) -> Path | None:
    """The file that a URL of SQLite names, or a path without a name for one in memory; None for the URL of a server."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    return Path("" if parsed.database in (None, ":memory:") else str(parsed.database))


def _study_name(search: Search, folder: Path) -> str:
    """The name of the folder, and a hash of what all trials have in common: a changed search has a study of its own.

    `run_cap` is left out: it may be raised.
    """
    space = {key: distribution_to_json(distribution) for key, distribution in search.space.items()}
    common = [space, search.goals, search.scale, search.seed, search.sets, search.fixed]
    return f"{folder.name}-{value_digest(common, 6)}"


def state_of(trial: FrozenTrial) -> str:
    """The state of a trial: waiting, running, done, pruned, failed, diverged or infeasible."""
    for state in (INFEASIBLE, DIVERGED):
        if state in trial.user_attrs:
            return state
    return {"complete": "done", "fail": "failed"}.get(name := trial.state.name.lower(), name)


def counted_trials(study: Study) -> list[FrozenTrial]:
    """The trials that count towards `run_cap`: all but those that wait and those that a later trial repeats."""
    latest = {shown_number(trial): trial for trial in study.get_trials(deepcopy=False)}
    return [trial for trial in latest.values() if trial.state != TrialState.WAITING]


def trial_name(trial: FrozenTrial) -> str:
    """The number and the drawn values of a trial: `#3 h=4 p_drop=0.12`."""
    drawn = [f"{without_section(key)}={short_value(value)}" for key, value in trial.params.items()]
    return " ".join([f"#{shown_number(trial)}", *drawn])


def shown_number(trial: FrozenTrial) -> int:
    """The number by which people know a trial: one that is trained again keeps that of the first time."""
    first = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return trial.number if first is None else first


def short_value(value: Any) -> str:
    """A value for a table: four digits of a float, nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
