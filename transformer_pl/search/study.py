"""The study of a search: where Optuna keeps it, and the states of its trials.

It is a journal file beside the table, or a database that several machines share.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from transformer_pl.config import without_section
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.space import Search
from transformer_pl.trials.trial import Trial as TrialFolder
from transformer_pl.trials.trial import trial_id

JOURNAL = "study.journal"
DESCRIPTION = "search"  # user attribute of a study: what all its trials have in common
DATABASE_ERRORS = (StorageInternalError, SQLAlchemyError)
BEAT_S, GRACE_S = 15, 60  # in a database: between two heartbeats of a trial; without one until its process is dead

# User attributes of a trial.
BASE = "base"  # True: this is the base, enqueued when the study is created
FOLDER = "folder"  # the name of its folder under runs/trials; missing where its config is invalid
INFEASIBLE = "infeasible"  # the error message of an invalid config
DIVERGED = "diverged"  # the step at which the loss was no longer finite
FIRST = "first"  # of a trial that is trained again: the number that it had at first, by which people know it

UNCOUNTED = ("waiting", "dropped")  # states of trials that do not count towards `run_cap`

T = TypeVar("T")


# ---------------------------------------------------------------------------------------------------------------------
# Its storage


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
    """Create the study of a search with base as its first trial, or load it if it is there.

    Raises an InputError where the storage cannot be opened, or has a study of this name with other settings.
    """

    def create() -> optuna.Study:
        storage, directions = _open(url, folder), list(search.goals.values())
        options: dict[str, Any] = {"study_name": folder.name, "storage": storage, "sampler": sampler, "pruner": pruner}
        try:
            study = optuna.create_study(**options, directions=directions)
        except DuplicatedStudyError:
            return optuna.load_study(**options)
        study.enqueue_trial(search.base_draw, user_attrs={BASE: True})
        study.set_user_attr(DESCRIPTION, _describe(search))
        study.set_metric_names(list(search.goals))  # for optuna-dashboard
        return study

    study = _connect(url, create)
    _check_search(study, search)
    return study


@without_warnings()
def find_study(search: Search, folder: Path, url: str | None) -> optuna.Study | None:
    """Load the study of a search; None where there is none. Raises an InputError as `create_study` does."""
    if url is None and not (folder / JOURNAL).exists():
        return None
    try:
        study = _connect(url, lambda: optuna.load_study(study_name=folder.name, storage=_open(url, folder)))
    except KeyError:
        return None
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


def _connect(url: str | None, connect: Callable[[], T]) -> T:
    """Call `connect`, again where several processes create the tables of an empty database at once: all but one fail.

    Raises an InputError where the database does not answer.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        try:
            return connect()
        except (SQLAlchemyError, OSError, ImportError) as error:
            reason = first_line(error)
            if not isinstance(error, IntegrityError | ProgrammingError) and "already exists" not in str(error):
                break
            time.sleep(attempts_left / 4)
    raise InputError(
        f"--storage {url}: must be a database that answers, but: {reason}; correct the URL, start the database, or "
        "install its driver (for PostgreSQL: pip install 'psycopg[binary]')"
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, where there is one of its cause or of the database's driver."""
    cause = error.__cause__ or error
    return (str(getattr(cause, "orig", None) or cause).strip() or type(cause).__name__).splitlines()[0]


def _check_search(study: optuna.Study, search: Search) -> None:
    """Raise an InputError where the study was created for another search; a study that was not described is taken."""
    description = _describe(search)
    stored = study.user_attrs.get(DESCRIPTION, description)
    if changed := [f"{key} was {stored.get(key)}" for key, value in description.items() if stored.get(key) != value]:
        raise InputError(
            f"{search.path}: must be the search that its study was created for, but {'; '.join(changed)}; undo the "
            "change, or give the file another `name`"
        )


def _describe(search: Search) -> dict[str, str]:
    """Return what all trials of a study have in common. `run_cap` is left out: it may be raised."""
    space = {f"parameters.{key}": distribution_to_json(distribution) for key, distribution in search.space.items()}
    common = {"metric": search.goals, "scale": search.scale, "seed": search.seed, "--set": sorted(search.sets.items())}
    return space | {key: str(value) for key, value in ({"fixed parameters": search.fixed} | common).items()}


# ---------------------------------------------------------------------------------------------------------------------
# Its trials


def states_of(trials: Sequence[FrozenTrial]) -> dict[int, str]:
    """Return the state of every trial by its number. trials: all trials of the study, in the order of their numbers.

    waiting: enqueued, as base or to be trained again; running; done; pruned; failed: the next command tries it again;
    diverged: Optuna is told infinity as the worst value of every goal; infeasible: Optuna is told that it is pruned and
    breaks a constraint; dropped: `run_cap` was reached when it was drawn, or a later trial takes its place.
    """
    latest = {shown_number(trial): trial.number for trial in trials}
    states = {}
    for trial in trials:
        name = trial.state.name.lower()
        states[trial.number] = {"complete": "done", "fail": "failed"}.get(name, name)
        was_surplus = trial.state == TrialState.FAIL and FOLDER not in trial.user_attrs
        if was_surplus or latest[shown_number(trial)] != trial.number:
            states[trial.number] = "dropped"
        elif INFEASIBLE in trial.user_attrs:
            states[trial.number] = "infeasible"
        elif DIVERGED in trial.user_attrs:
            states[trial.number] = "diverged"
    return states


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count towards `run_cap`, in the order of their numbers."""
    trials = study.get_trials(deepcopy=False)
    states = states_of(trials)
    return [trial for trial in trials if states[trial.number] not in UNCOUNTED]


def enqueue_again(study: optuna.Study, trial: Trial | FrozenTrial) -> None:
    """Enqueue a trial with the same values, under the number of the first time."""
    kept = {BASE: True} if BASE in trial.user_attrs else {}
    study.enqueue_trial(dict(trial.params), user_attrs=kept | {FIRST: shown_number(trial)})


def retry_once(study: optuna.Study, orphan: FrozenTrial) -> None:
    """Enqueue a trial whose process died; not for a second time, as the trial itself may kill its process."""
    if FIRST not in orphan.user_attrs:
        enqueue_again(study, orphan)


def trained_trial(trial: FrozenTrial, runs: Path) -> TrialFolder | None:
    """Return what was trained, whatever its folder is called now; None where the config is invalid."""
    name = trial.user_attrs.get(FOLDER)
    return TrialFolder.at(runs, trial_id(name), lambda: name) if name else None


def trial_name(trial: Trial | FrozenTrial) -> str:
    """Return the number and the drawn values of a trial: `#3 h=4 p_drop=0.12`."""
    drawn = [f"{without_section(key)}={short_value(value)}" for key, value in trial.params.items()]
    return " ".join([f"#{shown_number(trial)}", *drawn])


def shown_number(trial: Trial | FrozenTrial) -> int:
    """The number by which people know a trial: one that is trained again keeps that of the first time."""
    return trial.user_attrs.get(FIRST, trial.number)


def short_value(value: Any) -> str:
    """Return a value for a table: four digits of a float, nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
