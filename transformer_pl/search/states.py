"""The states of a search's trials, as they follow from what the study has stored."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from transformer_pl.config import without_section
from transformer_pl.trials import trial as trials_on_disk

# User attributes of a trial.
BASE = "base"  # True: this is the base, enqueued when the study is created
FOLDER = "folder"  # the name of its folder under runs/trials; missing where its config is invalid
INFEASIBLE = "infeasible"  # the error message of an invalid config
DIVERGED = "diverged"  # the step at which the loss was no longer finite
SKIPPED = "skipped"  # why it was neither trained nor counted
FIRST = "first"  # of a trial that is trained again: the number that it had at first, by which people know it

# Optuna's constraint of a trial: 0 where its config is valid, 1 where it is not.
VALID_CONFIG = "valid config"

# waiting: enqueued, as base or to be trained again. diverged: Optuna is told infinity as the worst value of every goal.
# failed: the next command tries it again. infeasible: Optuna is told that it is pruned and breaks a constraint.
# skipped: it repeats an earlier trial, or `run_cap` is reached. retried: a later trial takes its place.
State = Literal["waiting", "running", "done", "diverged", "pruned", "failed", "infeasible", "skipped", "retried"]
UNCOUNTED = ("waiting", "skipped", "retried")  # states of trials that do not count against `run_cap`
_OF_OPTUNA: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_OF_ATTRIBUTE: dict[str, State] = {SKIPPED: "skipped", INFEASIBLE: "infeasible", DIVERGED: "diverged"}


def states_of(trials: Sequence[FrozenTrial]) -> dict[int, State]:
    """Return the state of every trial by its number. trials: all trials of the study, in the order of their numbers."""
    latest = {shown_number(trial): trial.number for trial in trials if SKIPPED not in trial.user_attrs}
    states: dict[int, State] = {}
    for trial in trials:
        of_attributes = (state for name, state in _OF_ATTRIBUTE.items() if name in trial.user_attrs)
        state = next(of_attributes, _OF_OPTUNA[trial.state])
        is_retried = state != "skipped" and latest[shown_number(trial)] != trial.number
        states[trial.number] = "retried" if is_retried else state
    return states


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count against `run_cap`, in the order of their numbers."""
    trials = study.get_trials(deepcopy=False)
    states = states_of(trials)
    return [trial for trial in trials if states[trial.number] not in UNCOUNTED]


def trials_left(trials: Sequence[FrozenTrial], run_cap: int) -> int:
    """How many trials the next command may train: up to `run_cap`, and what is trained again whatever the cap."""
    states = states_of(trials)
    waiting = sum(FIRST in trial.user_attrs for trial in trials if states[trial.number] == "waiting")
    count = Counter(states.values())
    ended = count["done"] + count["diverged"] + count["pruned"] + count["infeasible"]
    return max(waiting + count["failed"], run_cap - ended)


def trial_id(trial: FrozenTrial) -> str | None:
    """Return the id of what was trained, whatever its folder is called now; None where the config is invalid."""
    folder = trial.user_attrs.get(FOLDER)
    return folder and trials_on_disk.trial_id(folder)


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
