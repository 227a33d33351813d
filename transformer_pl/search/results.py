"""The results of a search: a record of every trial, the best first."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.search import study as studies
from transformer_pl.search.space import Search
from transformer_pl.search.study import counted_trials, shown_number, state_of
from transformer_pl.trials.metrics import exemptions

BEST = "best"  # the state of the best trials in records and tables; that of the others is the value of their State
ORDER = (BEST, "done", "pruned", "diverged")  # of the states in the table, before the others


class SearchResults:
    """The trials of a study: the best first (all that share the best value, or the Pareto front), then the others."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study, self.runs = search, study, runs
        self.metrics = list(dict.fromkeys([*search.goals, "params"]))
        trials = counted_trials(study)
        self.complete = optuna.create_study(directions=list(search.goals.values()))  # a study of these trials alone
        self.complete.add_trials(trial for trial in trials if trial.state == TrialState.COMPLETE)
        front = [trial.values for trial in self.complete.best_trials]
        states = {trial.number: state_of(trial) for trial in trials}
        states |= {one.number: BEST for one in trials if states[one.number] == "done" and one.values in front}
        self.trials = sorted(trials, key=lambda trial: self._rank(trial, states[trial.number]))
        # Of each trial what stands in results.csv and plan.json; None: not measured, or diverged.
        self.records = [self._record(trial, states[trial.number]) for trial in self.trials]

    def _cost(self, trial: FrozenTrial, index: int = 0) -> float:
        """The value of a goal, with the sign that makes less better."""
        return trial.values[index] * (1 if list(self.search.goals.values())[index] == "minimize" else -1)

    def _rank(self, trial: FrozenTrial, state: str) -> tuple[int, float]:
        rank = ORDER.index(state) if state in ORDER else len(ORDER)
        return rank, self._cost(trial) if trial.values else shown_number(trial)

    def _record(self, trial: FrozenTrial, state: str) -> dict[str, Any]:
        on_disk = studies.trained_trial(trial, self.runs)
        result = (on_disk.result() if on_disk else None) or {}
        values = [] if state == "diverged" else trial.values or []  # the infinity of a diverged trial is for Optuna
        known = {"params": result.get("params")} | dict(zip(self.search.goals, values, strict=False))
        return {
            "trial": shown_number(trial),
            "base": studies.BASE in trial.user_attrs,
            "state": state,
            **{key: trial.params.get(key) for key in self.search.space},
            **{metric: known.get(metric) for metric in self.metrics},
            "exempt": exemptions([result]) or None,
            "folder": on_disk.folder.name if on_disk else None,
        }

    def target(self, goal: str) -> Callable[[FrozenTrial], float]:
        """Return what Optuna ranks trials by, less being better. A diverged one is the worst; Optuna would drop it."""
        index = list(self.search.goals).index(goal)
        costs = [self._cost(trial, index) for trial in self.complete.get_trials(deepcopy=False)]
        worst = max((cost for cost in costs if math.isfinite(cost)), default=0.0) + 1
        return lambda trial: min(self._cost(trial, index), worst)
