"""The results of a search: a record of every trial, the table of them, and what its notes say."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.config import without_section
from transformer_pl.experiments.cost import short_number
from transformer_pl.reporting import stats
from transformer_pl.reporting.render import Column, Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.search import study as studies
from transformer_pl.search.space import OF_MODEL, Search
from transformer_pl.search.study import UNCOUNTED, short_value, shown_number, states_of
from transformer_pl.task import task_of
from transformer_pl.trials.metrics import perplexity
from transformer_pl.trials.trial import Trial

BEST = "best"  # the state of the best trials in records and tables; that of the others is the value of their State
ORDER = ("done", "pruned", "diverged")  # of the states in the table, after the best and before the others
FEWEST_FOR_IMPORTANCES = 8  # finished trials, below which importances are mostly noise
BY_RANK = PedAnovaImportanceEvaluator(target_quantile=0.25)  # arXiv:2304.10255: the best quarter against all trials


class SearchResults:
    """The trials of a study: the best first (with several goals, the Pareto front), then the other states."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study, self.runs = search, study, runs
        self.metrics = list(dict.fromkeys([*search.goals, "params"]))
        self.measure = task_of(search.base.data).measure
        # Of the goals that have an interval: how it follows from the scores of sentences.
        scores: dict[str, tuple[stats.Metric, Callable[[float], float]]] = {
            f"val/{self.measure.name}": (stats.of_measure(self.measure), float),
            "val/loss": (stats.LOSS, float),
            "val/ppl": (stats.LOSS, perplexity),
        }
        self.scores = {goal: scores[goal] for goal in search.goals if goal in scores}
        known = study.get_trials(deepcopy=False)
        self._states = states_of(known)
        trials = [trial for trial in known if self._states[trial.number] not in UNCOUNTED]
        self.complete = optuna.create_study(directions=list(search.goals.values()))  # a study of these trials alone
        self.complete.add_trials(trial for trial in trials if trial.state == TrialState.COMPLETE)
        best = self._best(trials)
        self.trials = sorted(trials, key=lambda trial: self._rank(trial, best))
        # Of each trial what stands in results.csv and plan.json; None: not measured, or diverged.
        self.records = [self._record(trial, best) for trial in self.trials]

    def _best(self, trials: list[FrozenTrial]) -> set[int]:
        """Return the numbers of the best trials: one, or with several goals the Pareto front."""
        done = [trial for trial in trials if self._states[trial.number] == "done"]
        if len(self.search.goals) > 1:
            front = [trial.values for trial in self.complete.best_trials]
            return {trial.number for trial in done if trial.values in front}
        return {min(done, key=self._cost).number} if done else set()

    def _cost(self, trial: FrozenTrial, index: int = 0) -> float:
        """The value of a goal, with the sign that makes less better."""
        return trial.values[index] * (1 if list(self.search.goals.values())[index] == "minimize" else -1)

    def _rank(self, trial: FrozenTrial, best: set[int]) -> tuple[bool, int, float]:
        state = self._states[trial.number]
        rank = ORDER.index(state) if state in ORDER else len(ORDER)
        return trial.number not in best, rank, self._cost(trial) if trial.values else shown_number(trial)

    def _record(self, trial: FrozenTrial, best: set[int]) -> dict[str, Any]:
        state, on_disk = self._states[trial.number], studies.trained_trial(trial, self.runs)
        result = (on_disk.result() if on_disk else None) or {}
        values = [] if state == "diverged" else trial.values or []  # the infinity of a diverged trial is for Optuna
        known = {"params": result.get("params")} | dict(zip(self.search.goals, values, strict=False))
        record = {
            "trial": shown_number(trial),
            "base": studies.BASE in trial.user_attrs,
            "state": BEST if trial.number in best else state,
            **{key: trial.params.get(key) for key in self.search.space},
        }
        for metric in self.metrics:
            record[metric] = known.get(metric)
            if metric in self.scores:
                record[f"{metric}.low"], record[f"{metric}.high"] = self._interval(metric, on_disk if result else None)
        return record | {"folder": on_disk.folder.name if on_disk else None}

    def _interval(self, name: str, trial: Trial | None) -> tuple[float, float] | tuple[None, None]:
        """Return the 95 % interval of a metric for other sentences and the same seed."""
        metric, transform = self.scores[name]
        with suppress(InputError):  # the scores of the sentences cannot be read
            if trial and len(sentences := trial.sentences("val", self.measure)) > 1:  # (n, k + 2)
                estimate = stats.estimate(stats.sample(sentences[None, :, metric.columns], metric.score))
                low, high = estimate.within(metric.lowest, metric.highest).interval()
                return transform(low), transform(high)
        return None, None

    def table(self) -> Table:
        """Return the table: the drawn values, the goals, the parameters and the state of every trial, with notes."""
        rows = self.records
        columns = [Column("trial", [f"#{row['trial']}" + (" base" if row["base"] else "") for row in rows])]
        for key in self.search.space:
            columns.append(Column(without_section(key), [_cell(key, row[key]) for row in rows], setting=True))
        for metric in self.metrics:
            cells = [_cell(metric, row[metric]) for row in rows]
            columns.append(Column(metric, cells, drop_rank=None if metric in self.search.goals else 1))
            if metric in self.scores:
                ends = [(row[f"{metric}.low"], row[f"{metric}.high"]) for row in rows]
                cells = ["" if low is None else f"{short_value(low)} to {short_value(high)}" for low, high in ends]
                columns.append(Column(f"{metric} 95 %", cells))
        columns.append(Column("state", [row["state"] for row in rows]))
        return Table([column for column in columns if any(column.cells)], rows, self._notes())

    def _notes(self) -> list[str]:
        counts = Counter(record["state"] for record in self.records)
        described = ", ".join(f"{count} {state}" for state, count in counts.items())
        total, cap = len(self.records), self.search.run_cap
        notes = [f"{total} of {cap} trials: {described}. Scale {self.search.scale}."]
        if self.scores:
            notes.append(
                f"95 %: the interval for other sentences and the same seed ({self.search.seed}). The best of many "
                "trials looks better than it is, because it was chosen: train it with other seeds to confirm it."
            )
        shares = [
            f"by {goal} " + ", ".join(f"{key} {share:.0%}" for key, share in shares_by_key.items())
            for goal, shares_by_key in self.importances().items()
        ]
        if shares:
            notes.append(f"Importance of each key for being in the best quarter (PED-ANOVA): {'; '.join(shares)}.")
        return notes

    def target(self, goal: str) -> Callable[[FrozenTrial], float]:
        """Return what Optuna ranks trials by, less being better. A diverged one is the worst; Optuna would drop it."""
        index = list(self.search.goals).index(goal)
        costs = [self._cost(trial, index) for trial in self.complete.get_trials(deepcopy=False)]
        worst = max((cost for cost in costs if math.isfinite(cost)), default=0.0) + 1
        return lambda trial: min(self._cost(trial, index), worst)

    @studies.without_warnings()
    def importances(self) -> dict[str, dict[str, float]]:
        """Return the share of each key in which trials are among the best quarter, by goal that training decides.

        Nothing below FEWEST_FOR_IMPORTANCES trials, or of a single key.
        """
        done = sum(record["state"] in (BEST, "done") for record in self.records)
        if done < FEWEST_FOR_IMPORTANCES or len(self.search.space) < 2:
            return {}
        trained = [goal for goal in self.search.goals if goal not in OF_MODEL]
        return {
            goal: get_param_importances(self.complete, evaluator=BY_RANK, target=self.target(goal)) for goal in trained
        }


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return short_number(value) if name in OF_MODEL else short_value(value)
