"""The states of a search's trials, as they follow from what the study has stored."""

import enum
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from transformer_pl.config import without_section
from transformer_pl.trials import names

# User attributes of a trial.
BASE = "base"  # True: this is the base, enqueued when the study is created
FOLDER = "folder"  # the name of its folder under runs/trials; missing where its config is invalid
HOST = "host"  # the machine that trains it
INFEASIBLE = "infeasible"  # the error message of an invalid config
DIVERGED = "diverged"  # the step at which the loss was no longer finite
SKIPPED = "skipped"  # why it was neither trained nor counted
FIRST = "first"  # of a trial that is trained again: the number that it had at first, by which people know it

# Optuna's constraint of a trial: 0 where its config is valid, 1 where it is not.
VALID_CONFIG = "laws"


class State(enum.Enum):
    """The state of a trial, which `states_of` derives."""

    WAITING = "waiting"  # enqueued: base, or a trial that is to be trained again
    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"  # Optuna is told infinity as the worst value of every goal
    PRUNED = "pruned"
    FAILED = "failed"  # the next command tries it again
    INFEASIBLE = "infeasible"  # Optuna is told that it is pruned and breaks a constraint
    SKIPPED = "skipped"  # it repeats an earlier trial, or another process has reached `run_cap`
    RETRIED = "retried"  # it was stopped, or failed, or its process died; a later trial takes its place

    @property
    def counts(self) -> bool:
        """Whether the trial counts against `run_cap`."""
        return self not in (State.WAITING, State.SKIPPED, State.RETRIED)

    @property
    def has_ended(self) -> bool:
        """Whether the trial counts, and no command trains it any more."""
        return self.counts and self not in (State.RUNNING, State.FAILED)


_OF_OPTUNA = {
    TrialState.WAITING: State.WAITING,
    TrialState.RUNNING: State.RUNNING,
    TrialState.COMPLETE: State.DONE,
    TrialState.PRUNED: State.PRUNED,
    TrialState.FAIL: State.FAILED,
}
_OF_ATTRIBUTE = {SKIPPED: State.SKIPPED, INFEASIBLE: State.INFEASIBLE, DIVERGED: State.DIVERGED}


def states_of(trials: Sequence[FrozenTrial]) -> dict[int, State]:
    """Return the state of every trial by its number. trials: all trials of the study, in the order of their numbers."""
    latest = {shown_number(trial): trial.number for trial in trials if SKIPPED not in trial.user_attrs}
    states = {}
    for trial in trials:
        of_attributes = (state for name, state in _OF_ATTRIBUTE.items() if name in trial.user_attrs)
        state = next(of_attributes, _OF_OPTUNA[trial.state])
        is_retried = state != State.SKIPPED and latest[shown_number(trial)] != trial.number
        states[trial.number] = State.RETRIED if is_retried else state
    return states


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count against `run_cap`, in the order of their numbers."""
    trials = study.get_trials(deepcopy=False)
    states = states_of(trials)
    return [trial for trial in trials if states[trial.number].counts]


def trials_left(trials: Sequence[FrozenTrial], run_cap: int) -> int:
    """How many trials the next command may train: up to `run_cap`, and what is trained again whatever the cap."""
    states = states_of(trials)
    waiting = sum(FIRST in trial.user_attrs for trial in trials if states[trial.number] == State.WAITING)
    failed = sum(state == State.FAILED for state in states.values())
    return max(waiting + failed, run_cap - sum(state.has_ended for state in states.values()))


def trial_id(trial: FrozenTrial) -> str | None:
    """Return the id of what was trained, whatever its folder is called now; None where the config is invalid."""
    folder = trial.user_attrs.get(FOLDER)
    return folder and names.trial_id(folder)


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
