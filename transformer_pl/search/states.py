"""The states of a search's trials, as they follow from what the study has stored."""

import enum
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from transformer_pl.config import without_section
from transformer_pl.runtime.processes import is_dead
from transformer_pl.trials import names

# User attributes of a trial. The stored names stay as they are, so that old studies stay valid.
BASE = "base"  # True: this is the base, enqueued when the study is created
FOLDER = "folder"  # the name of its folder under runs/trials; missing where its config is invalid
HOST = "host"  # the machine that trains it
PROCESS = "process"  # the process that trains it, see runtime/processes.py
HEARTBEAT = "beat"  # a number that this process changes while it lives
INFEASIBLE = "infeasible"  # the error message of an invalid config
DIVERGED = "diverged"  # the step at which the loss was no longer finite
SURPLUS = "surplus"  # True: another process had drawn the last trial (or the base) already
REPEATS = "repeats"  # the number of the earlier trial with the same config
RETRY_OF = "again"  # the number of the trial that this one trains again
FIRST = "first"  # the number of the first of a row of trials that train one another again
DEATHS = "died"  # how many processes have died of this trial and of those that it retries

RETRIES = 1  # of a trial whose process died

# Optuna's constraint of a trial: 0 where its config is valid, 1 where it is not.
VALID_CONFIG = "laws"


class State(enum.Enum):
    """The state of a trial. `states_of` derives it and lists the transitions."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"
    SURPLUS = "surplus"
    REPEATED = "repeated"
    RETRIED = "retried"

    @property
    def counts(self) -> bool:
        """Whether the trial counts against `run_cap`."""
        return self not in (State.WAITING, State.SURPLUS, State.REPEATED, State.RETRIED)


_OF_OPTUNA = {
    TrialState.WAITING: State.WAITING,
    TrialState.RUNNING: State.RUNNING,
    TrialState.COMPLETE: State.DONE,
    TrialState.PRUNED: State.PRUNED,
    TrialState.FAIL: State.FAILED,
}


def states_of(trials: Sequence[FrozenTrial]) -> dict[int, State]:
    """Return the state of every trial by its number; `trials` are all trials of the study.

    (enqueued) -> WAITING    the base, and the successor of a RETRIED trial
    WAITING    -> RUNNING    a process draws it; where none waits, the sampler draws a new RUNNING trial
    RUNNING    -> DONE       it was trained; Optuna is told its values
               -> DIVERGED   its loss was no longer finite; Optuna is told infinity as the worst value of every goal
               -> PRUNED     the pruner ended it
               -> FAILED     its training ended without a result, or too many processes died of it
               -> INFEASIBLE its config is invalid; Optuna is told that it is pruned and breaks a constraint
               -> REPEATED   an earlier trial has the same config; Optuna is told the same outcome
               -> SURPLUS    another process reached `run_cap` first, or drew the base first
               -> RETRIED    its process was stopped or died: Optuna is told that it failed, a successor is enqueued
    FAILED     -> RETRIED    the next command begins
    """
    retried = {trial.user_attrs[RETRY_OF] for trial in trials if RETRY_OF in trial.user_attrs}
    return {trial.number: _state(trial, trial.number in retried) for trial in trials}


def _state(trial: FrozenTrial, is_retried: bool) -> State:
    if trial.state == TrialState.WAITING:
        return State.WAITING
    if is_retried:
        return State.RETRIED
    for attribute, state in ((SURPLUS, State.SURPLUS), (REPEATS, State.REPEATED), (INFEASIBLE, State.INFEASIBLE)):
        if attribute in trial.user_attrs:
            return state
    if trial.state == TrialState.COMPLETE and DIVERGED in trial.user_attrs:
        return State.DIVERGED
    return _OF_OPTUNA[trial.state]


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count against `run_cap`, in the order of their numbers."""
    trials = study.get_trials(deepcopy=False)
    states = states_of(trials)
    return [trial for trial in trials if states[trial.number].counts]


def trials_left(trials: Sequence[FrozenTrial], run_cap: int) -> int:
    """How many trials the next command trains: up to `run_cap`, and what is trained again whatever the cap.

    trials: all of the study.
    """
    known = states_of(trials)
    waiting = sum(RETRY_OF in trial.user_attrs for trial in trials if known[trial.number] == State.WAITING)
    failed = [trial for trial in trials if known[trial.number] == State.FAILED]
    again = sum(trial.user_attrs.get(DEATHS, 0) <= RETRIES for trial in failed)
    running = [trial for trial in trials if known[trial.number] == State.RUNNING]
    orphans = [trial for trial in running if is_dead(trial.user_attrs.get(PROCESS, ""))]
    again += sum(trial.user_attrs.get(DEATHS, 0) < RETRIES for trial in orphans)
    ended = sum(state.counts for state in known.values()) - again
    return max(waiting + again, run_cap - ended)


def trial_id(trial: FrozenTrial) -> str | None:
    """Return the id of what was trained, whatever its folder is called now; None where the config is invalid."""
    folder = trial.user_attrs.get(FOLDER)
    return folder and names.trial_id(folder)


def trial_name(trial: Trial | FrozenTrial) -> str:
    """Return the number and the drawn values of a trial: `#3 h=4 p_drop=0.12`."""
    drawn = [f"{without_section(key)}={short_value(value)}" for key, value in trial.params.items()]
    return " ".join([f"#{shown_number(trial)}", *drawn])


def shown_number(trial: Trial | FrozenTrial) -> int:
    """The number by which people know a trial: one that continues another has that one's."""
    return trial.user_attrs.get(FIRST, trial.number)


def short_value(value: Any) -> str:
    """Return a value for a table: four digits of a float, nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
