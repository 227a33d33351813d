"""The results of a search: a record of every trial, the table of them, and what its notes say."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.config import without_section
from transformer_pl.experiments.cost import short_number
from transformer_pl.experiments.plan import corpus_opener, plan_trial
from transformer_pl.reporting import stats
from transformer_pl.reporting.render import Column, Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.search import states, statistics
from transformer_pl.search.space import Search
from transformer_pl.search.states import State, short_value, shown_number, states_of
from transformer_pl.task import Measure, task_of
from transformer_pl.trials.metrics import perplexity
from transformer_pl.trials.trial import Trial

BEST = "best"  # the state of the best trials in records and tables; that of the others is the value of their State
FEWEST_FOR_IMPORTANCES = 8  # finished trials, below which importances are mostly noise
BUDGETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # numbers of trials for which the notes give the expected best


class Interval(NamedTuple):
    """How a metric follows from the scores of sentences."""

    metric: stats.Metric
    transform: Callable[[float], float]


def with_interval(measure: Measure) -> dict[str, Interval]:
    """The metrics that have an interval: the score of the search's task, and the loss."""
    return {
        f"val/{measure.name}": Interval(stats.of_measure(measure), float),
        "val/loss": Interval(stats.LOSS, float),
        "val/ppl": Interval(stats.LOSS, perplexity),
    }


@dataclass(frozen=True)
class TrialRecord:
    """What is known of a trial."""

    trial: FrozenTrial
    state: str  # BEST, or the value of its State
    drawn: dict[str, Any]  # its values by key of the space
    metrics: dict[str, float | None]  # None: not measured, or diverged
    intervals: dict[str, tuple[float, float] | None]  # 95 %, of the metrics that have one
    folder: str | None  # under runs/trials; None where the config is invalid

    @property
    def is_base(self) -> bool:
        return states.BASE in self.trial.user_attrs

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it stands in results.csv and plan.json."""
        record = {"trial": shown_number(self.trial), "base": self.is_base, "state": self.state} | self.drawn
        for metric, value in self.metrics.items():
            record[metric] = value
            if metric in self.intervals:
                record[f"{metric}.low"], record[f"{metric}.high"] = self.intervals[metric] or (None, None)
        return record | {"folder": self.folder}


class SearchResults:
    """The trials of a study: the best first (with two goals, the Pareto front), then the other states."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study = search, study
        self.measure = task_of(search.base.data).measure
        self.with_interval = with_interval(self.measure)
        self.metrics = list(
            dict.fromkeys([*search.goals, "val/ppl", f"val/{self.measure.name}", "params"])
        )  # of a record
        self.unreadable: list[str] = []  # why finished trials have no interval
        trials = study.get_trials(deepcopy=False)
        self._states = states_of(trials)
        counted = [trial for trial in trials if self._states[trial.number].counts]
        complete = [trial for trial in counted if trial.state == TrialState.COMPLETE]
        self.complete = optuna.create_study(directions=list(search.goals.values()))  # a study of these trials alone
        self.complete.add_trials(complete)
        best = self._best(complete)
        self.trial_records = [self._record(trial, trial.number in best, runs) for trial in counted]
        self.trial_records.sort(key=self._rank)
        self.outdated = self._count_outdated(runs)

    @property
    def trials(self) -> list[FrozenTrial]:
        return [record.trial for record in self.trial_records]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [record.as_dict() for record in self.trial_records]

    @property
    def trained(self) -> list[dict[str, Any]]:
        """The records of the trials that have a folder: all but those with an invalid config."""
        return [record.as_dict() for record in self.trial_records if record.folder]

    # -----------------------------------------------------------------------------------------------------------------
    # Records

    def _best(self, complete: list[FrozenTrial]) -> set[int]:
        """Return the numbers of the best trials: one, or with several goals the Pareto front."""
        done = {trial.number for trial in complete if self._states[trial.number] == State.DONE}
        if len(self.search.goals) > 1:
            front = {complete[trial.number].number for trial in self.complete.best_trials}  # numbered anew there
            return front & done
        candidates = [trial for trial in complete if trial.number in done]
        return {min(candidates, key=self._cost).number} if candidates else set()

    def _cost(self, trial: FrozenTrial) -> float:
        """The value of the first goal, with the sign that makes less better."""
        return trial.values[0] if next(iter(self.search.goals.values())) == "minimize" else -trial.values[0]

    def _rank(self, record: TrialRecord) -> tuple[int, float]:
        order = [BEST, State.DONE.value, State.PRUNED.value, State.DIVERGED.value]
        rank = order.index(record.state) if record.state in order else len(order)
        return rank, self._cost(record.trial) if record.trial.values else shown_number(record.trial)

    def _record(self, trial: FrozenTrial, is_best: bool, runs: Path) -> TrialRecord:
        state = self._states[trial.number]
        trial_id = states.trial_id(trial)
        on_disk = Trial.at(runs, trial_id, lambda: trial.user_attrs[states.FOLDER]) if trial_id else None
        result = (on_disk.result() if on_disk else None) or {}
        values = [] if state == State.DIVERGED else trial.values or []  # the infinity of a diverged trial is for Optuna
        known = result.get("metrics", {}) | {key: result.get(key) for key in ("params", "flops")}
        known |= dict(zip(self.search.goals, values, strict=False))
        sentences = self._sentences(on_disk) if on_disk and result else None
        return TrialRecord(
            trial=trial,
            state=BEST if is_best else state.value,
            drawn={key: trial.params.get(key) for key in self.search.space},
            metrics={metric: known.get(metric) for metric in self.metrics},
            intervals={
                metric: _interval(self.with_interval[metric], sentences)
                for metric in self.metrics
                if metric in self.with_interval
            },
            folder=on_disk.folder.name if on_disk else None,
        )

    def _count_outdated(self, runs: Path) -> int:
        """Count the trained trials whose config is another trial today: the code or the text has changed since."""
        count = 0
        with suppress(InputError):  # the text or a component is not here
            open_corpus = corpus_opener()
            for record in self.trial_records:
                if record.folder:
                    config, _ = self.search.config(record.trial.params)
                    planned = plan_trial(0, "", config, self.search.scale, runs, open_corpus(config.data))
                    count += planned.identity.trial != states.trial_id(record.trial)
        return count

    def _sentences(self, trial: Trial) -> np.ndarray | None:
        """Return the scores of the validation sentences (n, k + 2), or None if they cannot be read."""
        try:
            return trial.sentences("val", self.measure)
        except InputError as error:
            self.unreadable += error.messages
            return None

    # -----------------------------------------------------------------------------------------------------------------
    # The table

    def table(self) -> Table:
        """Return the table: the drawn values, the metrics and the state of every trial, with notes."""
        rows = self.trial_records
        columns = [Column("trial", [f"#{shown_number(row.trial)}" + (" base" if row.is_base else "") for row in rows])]
        for key in self.search.space:
            columns.append(Column(without_section(key), [_cell(key, row.drawn[key]) for row in rows], setting=True))
        for metric in self.metrics:
            cells = [_cell(metric, row.metrics[metric]) for row in rows]
            columns.append(Column(metric, cells, drop_rank=1 if metric == "params" else None))
            if metric in self.with_interval and metric in self.search.goals:
                columns.append(Column(f"{metric} 95 %", [_interval_cell(row.intervals[metric]) for row in rows]))
        columns.append(Column("state", [row.state for row in rows]))
        return Table([column for column in columns if any(column.cells)], self.records, self._notes())

    def _notes(self) -> list[str]:
        counts = Counter(record.state for record in self.trial_records)
        described = ", ".join(f"{count} {state}" for state, count in counts.items())
        total = len(self.trial_records)
        notes = [f"{total} of {self.search.run_cap} trials: {described}. Scale {self.search.scale}."]
        if repeats := sum(states.REPEATS in trial.user_attrs for trial in self.study.get_trials(deepcopy=False)):
            notes.append(f"Not trained again: {counted(repeats, 'draw')} that repeated a trial of this table.")
        if State.DIVERGED.value in counts:
            notes.append("diverged: the loss was no longer finite; the sampler takes the trial for the worst.")
        if len(self.search.goals) > 1:
            notes.append("best: no other trial is better in one goal and not worse in another.")
        if any(metric in self.with_interval for metric in self.search.goals):
            notes.append(
                f"95 %: the interval for other sentences and the same seed ({self.search.seed}). The best of many "
                "trials looks better than it is, because it was chosen: train it with other seeds to confirm it."
            )
        notes += self._notes_of_statistics(has_diverged=State.DIVERGED.value in counts)
        notes += [f"No interval of a trial: {reason}." for reason in self.unreadable]
        if self.outdated:
            notes.append(
                f"{counted(self.outdated, 'trial')} ran with other code or on other text than there is now, so the "
                "trials may not compare; to search anew, give the file another `name`."
            )
        finished = [record for record in self.trial_records if record.state in (BEST, State.DONE.value)]
        if missing := sum(not record.metrics["params"] for record in finished):
            notes.append(
                f"Without a complete result here: {counted(missing, 'trial')}, in another runs folder or damaged."
            )
        return notes

    def _notes_of_statistics(self, has_diverged: bool) -> list[str]:
        notes = []
        for goal, shares_by_key in self.importances().items():
            shares = ", ".join(f"{key} {share:.0%}" for key, share in shares_by_key.items())
            trials = len(self.complete.trials)
            notes.append(
                f"Importance of each key for being in the best quarter by {goal} (PED-ANOVA, roughly, of {trials} "
                f"finished trials, without pruned ones): {shares}."
            )
        if (best := self.expected_best()) is not None:
            budgets = [k for k in BUDGETS if k < len(best)] + [len(best)]
            values = ", ".join(f"{k}: {short_value(float(best[k - 1]))}" for k in budgets)
            notes.append(
                f"Expected best {next(iter(self.search.goals))} after k trials, drawn from these at random"
                f"{' and not diverged' if has_diverged else ''} (Tang et al. 2020), by k: {values}."
            )
        return notes

    # -----------------------------------------------------------------------------------------------------------------
    # Statistics

    def importances(self) -> dict[str, dict[str, float]]:
        """Return `statistics.importances` by goal; nothing below FEWEST_FOR_IMPORTANCES trials, or of a single key."""
        done = sum(record.state in (BEST, State.DONE.value) for record in self.trial_records)
        if done < FEWEST_FOR_IMPORTANCES or len(self.search.space) < 2:
            return {}
        return statistics.importances(self.complete, self.search.goals)

    def expected_best(self) -> np.ndarray | None:
        """Return `statistics.expected_best` of the drawn trials with a finite value; None with several goals.

        The base was not drawn. A pruned trial counts with its last measured value.
        """
        if len(self.search.goals) > 1:
            return None
        drawn = [record.trial for record in self.trial_records if record.trial.values and not record.is_base]
        values = [trial.values[0] for trial in drawn if math.isfinite(trial.values[0])]
        (direction,) = self.search.goals.values()
        return statistics.expected_best(values, direction) if len(values) > 1 else None


def _interval(measure: Interval, sentences: np.ndarray | None) -> tuple[float, float] | None:
    """Return the 95 % interval of a metric for other sentences and the same seed. sentences: (n, k + 2)."""
    if sentences is None or len(sentences) < 2:
        return None
    scores = sentences[None, :, measure.metric.columns]
    estimate = stats.estimate(stats.sample(scores, measure.metric.score))
    low, high = estimate.within(measure.metric.lowest, measure.metric.highest).interval()
    return measure.transform(low), measure.transform(high)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return short_number(value) if name in ("params", "flops") else short_value(value)


def _interval_cell(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{short_value(interval[0])} to {short_value(interval[1])}"
