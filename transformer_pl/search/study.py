"""The study of a search: where Optuna keeps it, and the states of its trials.

It is a journal file beside the table, or a database that several machines share.
"""

import secrets
import warnings
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import distribution_to_json
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import NullPool, make_url
from sqlalchemy.exc import SQLAlchemyError

from transformer_pl.config import without_section
from transformer_pl.plan.shared_options import TableOptions
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import postponed
from transformer_pl.search.space import Search, read_search

JOURNAL = "study.journal"
FOLLOWING = "following"  # the user attribute of a study that names the study that goes on with it

# User attributes of a trial.
BASE = "base"  # True: this is the base, enqueued when the study is created
COMMAND = "command"  # the name of the folder in runs/searching whose lock the command holds that has drawn it
FOLDER = "folder"  # the name of its folder under runs/trials; missing where its config is invalid
INFEASIBLE = "infeasible"  # the error message of an invalid config
DIVERGED = "diverged"  # the step at which the loss was no longer finite


def search_from_options(file: Path, content: dict[str, Any], options: TableOptions) -> Search:
    """The search that a sweep file describes, with the options of the command line. Raises an InputError."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints what becomes of each trial
    if options.storage:
        check_url(options.storage)
    if options.retune:
        raise InputError(f"--retune: is for the rows of a grid, but {file} searches; add the keys to its parameters")
    return read_search(file, content, options.scale, options.seeds, options.set)


# Optuna need not warn of functions that it may still change, nor of uses that are meant here.
warnings.simplefilter("ignore", ExperimentalWarning)
warnings.filterwarnings("ignore", "Clip non-finite|The constraint value|Constraints have been set")

try_again = RetryHeartbeatStaleTrialCallback()  # enqueues a trial of a study with the same values


@contextmanager
def answering_database() -> Iterator[None]:
    """Turn what a database that does not answer raises into an InputError."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError, ImportError) as error:
        cause = error.__cause__ or error
        reason = str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0]
        remedy = "start it, or install its driver (for PostgreSQL: pip install 'psycopg[binary]')"
        raise InputError(
            f"--storage: must be a database that answers, but: {reason}; {remedy}, and run the same command again"
        ) from None


def create_study(search: Search, folder: Path, url: str | None) -> Study:
    """Create the study of a search with base as its first trial, or load it if it is there.

    One process at a time may call it, because several cannot create the tables of a database at once.
    """
    storage, goals, name = _open(url, folder), search.goals, _study_name(search, folder)
    study = optuna.create_study(study_name=name, storage=storage, directions=list(goals.values()), load_if_exists=True)
    if not study.get_trials(deepcopy=False):
        study.enqueue_trial(search.base_draw, user_attrs={BASE: True})
        study.set_metric_names(list(goals))  # for optuna-dashboard
    return _newest(study, storage)


def find_study(search: Search, folder: Path, url: str | None) -> Study | None:
    """Load the study of a search; None where there is none. Raises an InputError."""
    file = folder / JOURNAL if url is None else _file_of(url)
    could_be = url is None or (file is not None and file.parent.is_dir())  # else the URL is wrong
    if file and could_be and not file.exists():  # Optuna would create it
        return None
    storage = _open(url, folder)
    try:
        return _newest(optuna.load_study(study_name=_study_name(search, folder), storage=storage), storage)
    except KeyError:
        return None


def _newest(study: Study, storage: BaseStorage) -> Study:
    """The study that goes on with this one, see `renew`; this one if there is none."""
    while following := study.user_attrs.get(FOLLOWING):
        study = optuna.load_study(study_name=following, storage=storage)
    return study


def renew(study: Study, outdated: Set[int], folder: Path, url: str | None) -> Study:
    """A study that goes on with another one, in which the trials with these numbers have failed.

    So they are drawn again, and their old values guide no sampler: Optuna cannot change a trial that has ended.
    """
    name, storage = f"{study.study_name}-{secrets.token_hex(3)}", _open(url, folder)
    new = optuna.create_study(study_name=name, storage=storage, directions=study.directions)
    new.set_metric_names(study.metric_names or [])
    new.add_trials(without_outdated(study, outdated))
    study.set_user_attr(FOLLOWING, name)  # at last, so that no study goes on without some of its trials
    return new


def without_outdated(study: Study, outdated: Set[int]) -> list[FrozenTrial]:
    """The trials of a study, of which those with these numbers have failed."""

    def failed(trial: FrozenTrial) -> FrozenTrial:
        return optuna.create_trial(
            state=TrialState.FAIL,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={key: value for key, value in trial.user_attrs.items() if key == BASE},
            system_attrs=trial.system_attrs,
        )

    return [failed(trial) if trial.number in outdated else trial for trial in study.get_trials(deepcopy=False)]


class _Journal(JournalFileBackend):
    """A journal that no signal interrupts while it writes.

    Optuna would turn the signal into an error of another kind, or would leave its lock behind.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with postponed():
            super().append_logs(logs)


def _open(url: str | None, folder: Path) -> BaseStorage:
    """Open the journal or the database."""
    if url is None:
        return JournalStorage(_Journal(str(folder / JOURNAL)))
    return RDBStorage(url, engine_kwargs={"poolclass": NullPool})  # no connection stays open while a trial runs


def _file_of(url: str) -> Path | None:
    """The file of a database; None for one that is on a server."""
    parsed = make_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def check_url(url: str) -> None:
    """Raise an InputError for a URL that is malformed or has a password, which plans and scripts would show."""
    with suppress(SQLAlchemyError, ValueError):
        parsed = make_url(url)
        if not (parsed.password or "password" in parsed.query):
            return
    form = "postgresql+psycopg://USER@HOST:PORT/DATABASE, without a password, which others could read"
    raise InputError(f"--storage: must be a URL such as {form}; put that into ~/.pgpass, or into PGPASSWORD")


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
