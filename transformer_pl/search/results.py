"""What a search came to: a line a trial, and what may be said of all of them together."""

import math
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.config import without_section
from transformer_pl.experiments.cost import short_number
from transformer_pl.reporting import stats
from transformer_pl.reporting.render import Column, Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.space import Search
from transformer_pl.search.study import counted_trials, short_value
from transformer_pl.training.divergence import perplexity
from transformer_pl.trials.trial import Trial

FORESEEN = ("params", "flops")  # known without a training
ENOUGH = 8  # finished trials, before it is said which keys matter
MEASURED = {  # what the sentences tell of a metric
    "val/bleu": (stats.BLEU, float),
    "val/loss": (stats.LOSS, float),
    "val/ppl": (stats.LOSS, perplexity),
}
Record = dict[str, Any]


class SearchResults:
    """The trials of a study, the best first: of two goals, the front first."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study = search, study
        self.metrics = list(dict.fromkeys([*search.goals, "val/ppl", "val/bleu", "params"]))  # that are told of a trial
        found = counted_trials(study)
        complete = [trial for trial in found if trial.state == TrialState.COMPLETE]
        done = [trial for trial in complete if "diverged" not in trial.user_attrs]
        sign = next(iter(self._signs().values()))
        self.apart = optuna.create_study(directions=list(search.goals.values()))  # of these trials alone
        self.apart.add_trials(complete)
        if len(search.goals) > 1:
            front = [complete[trial.number] for trial in self.apart.best_trials]
            best = [trial for trial in front if trial in done]
        else:
            best = sorted(done, key=lambda trial: sign * trial.values[0])[:1]
        self.best = {trial.number for trial in best}
        order = {"best": 0, "done": 1, "pruned": 2, "diverged": 3}
        states = {trial.number: self._state(trial) for trial in found}

        def rank(trial: FrozenTrial) -> tuple:
            value = sign * trial.values[0] if trial.values else trial.number
            return order.get(states[trial.number], len(order)), value

        self.trials = sorted(found, key=rank)
        self.unread: list[str] = []  # why the sentences of a finished trial cannot be used
        self.records = [self._record(trial, states[trial.number], runs) for trial in self.trials]

    @property
    def trained(self) -> list[Record]:
        """The records of the trials that have a folder: all but those that broke a law."""
        return [record for record in self.records if record["folder"]]

    def _state(self, trial: FrozenTrial) -> str:
        if trial.number in self.best:
            return "best"
        if "infeasible" in trial.user_attrs:
            return "infeasible"
        if trial.state == TrialState.COMPLETE and "diverged" in trial.user_attrs:
            return "diverged"
        return {TrialState.COMPLETE: "done", TrialState.FAIL: "failed"}.get(trial.state, trial.state.name.lower())

    def _record(self, trial: FrozenTrial, state: str, runs: Path) -> Record:
        folder = trial.user_attrs.get("folder")
        kept = Trial(runs / "trials" / folder) if folder else None
        result = (kept.result() if kept else None) or {}
        metrics = result.get("metrics", {}) | {key: result.get(key) for key in ("params", "flops")}
        record = {"trial": trial.number, "base": "base" in trial.user_attrs, "state": state} | {
            key: trial.params.get(key) for key in self.search.space
        }
        values = [] if state == "diverged" else trial.values or []  # its infinity is for Optuna
        told = dict(zip(self.search.goals, values, strict=False))
        sentences = None
        try:
            sentences = kept.sentences("val") if result else None
        except InputError as error:
            self.unread += error.messages
        for metric in self.metrics:
            record[metric] = told.get(metric, metrics.get(metric))
            if metric in MEASURED:
                record |= dict(zip((f"{metric}.low", f"{metric}.high"), _interval(metric, sentences), strict=True))
        return record | {"folder": folder}

    def table(self) -> Table:
        def cells(key: str) -> list[str]:
            tell = short_number if key in ("params", "flops") else short_value
            return ["-" if record[key] is None else tell(record[key]) for record in self.records]

        columns = [
            Column("trial", [f"#{r['trial']}" + (" base" if r["base"] else "") for r in self.records]),
            *(Column(without_section(key), cells(key), setting=True) for key in self.search.space),
        ]
        for metric in self.metrics:
            columns.append(Column(metric, cells(metric), drop_rank=1 if metric == "params" else None))
            if metric in MEASURED and metric in self.search.goals:
                columns.append(Column(f"{metric} 95 %", [_span(record, metric) for record in self.records]))
        columns.append(Column("state", [record["state"] for record in self.records]))
        return Table([column for column in columns if any(column.cells)], self.records, self._notes())

    def _notes(self) -> list[str]:
        states = [record["state"] for record in self.records]
        told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        notes = [f"{len(states)} of {self.search.run_cap} trials: {told}. Scale {self.search.scale}."]
        if repeats := sum("repeats" in trial.user_attrs for trial in self.study.get_trials(deepcopy=False)):
            notes.append(f"{repeats} more draws were of a trial that is here already: they cost nothing.")
        if "diverged" in states:
            notes.append("diverged: its loss was no longer finite; it counts as the worst in what is drawn next.")
        if len(self.search.goals) > 1:
            notes.append("best: no other trial is better in one goal and not worse in another.")
        if any(metric in MEASURED for metric in self.search.goals):
            notes.append(
                f"95 %: for other sentences but the same seed ({self.search.seed}). The best of many trials is "
                "flattered by being chosen: train it on other seeds before it is believed."
            )
        trials = len(self.apart.trials)
        for goal, importance in self.importances().items():
            shares = ", ".join(f"{key} {share:.0%}" for key, share in importance.items())
            notes.append(
                f"What brings {goal} into the best quarter of trials (PED-ANOVA, roughly, of {trials}): {shares}."
            )
        if (best := self.expected_best()) is not None:
            ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k < len(best)] + [len(best)]
            told = ", ".join(f"{k}: {short_value(float(best[k - 1]))}" for k in ks)
            notes.append(
                f"Expected best {next(iter(self.search.goals))} after k trials, drawn from these at random"
                f"{' and not diverged' if 'diverged' in states else ''} (Tang et al. 2020), by k: {told}."
            )
        notes += [f"No interval of a trial: {why}." for why in self.unread]
        elsewhere = [record for record in self.records if record["state"] in ("best", "done") and not record["params"]]
        if elsewhere:
            notes.append(
                f"{len(elsewhere)} trials have no whole result here: they lie in another runs folder, or are damaged."
            )
        return notes

    def importances(self) -> dict[str, dict[str, float]]:
        """By goal that is not known beforehand, the share each key has in who is good; none while trials are few.

        PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255). It goes by ranks; a trial that diverged is below all others.
        """
        done = sum(record["state"] in ("best", "done") for record in self.records)
        if done < ENOUGH or len(self.search.space) < 2:
            return {}
        trials = self.apart.get_trials(deepcopy=False)
        quarter = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        with warnings.catch_warnings():  # that less of a target is better there: it is here, by its sign
            warnings.simplefilter("ignore", UserWarning)
            shares = {}
            for i, (goal, sign) in enumerate(self._signs().items()):
                if goal not in FORESEEN:
                    finite = [sign * trial.values[i] for trial in trials if math.isfinite(trial.values[i])]
                    worst = max(finite, default=0.0) + 1  # Optuna leaves infinite values out

                    def target(trial: FrozenTrial, i: int = i, sign: int = sign, worst: float = worst) -> float:
                        return min(sign * trial.values[i], worst)

                    shares[goal] = optuna.importance.get_param_importances(self.apart, evaluator=quarter, target=target)
            return shares

    def _signs(self) -> dict[str, int]:
        """By goal: times that, less is better."""
        return {goal: 1 if way == "minimize" else -1 for goal, way in self.search.goals.items()}

    def expected_best(self) -> Any:
        """After k = 1, 2, ... trials that are drawn at random from those of one goal that were drawn and not by hand.

        A trial that was pruned counts with the last that was measured of it.
        """
        if len(self.search.goals) > 1:
            return None
        values = [trial.values[0] for trial in self.trials if trial.values and "base" not in trial.user_attrs]
        values = [value for value in values if math.isfinite(value)]
        if len(values) < 2:
            return None
        (sign,) = self._signs().values()
        return -sign * stats.expected_best([-sign * value for value in values])


def _interval(metric: str, sentences: Any) -> tuple[float | None, float | None]:
    """95 %, for other sentences but the same seed."""
    if sentences is None:
        return None, None
    measure, scale = MEASURED[metric]
    low, high = stats.estimate(stats.sample(sentences[None, :, measure.columns], measure.score)).interval()
    return scale(low), scale(high)


def _span(record: Record, metric: str) -> str:
    low, high = record[f"{metric}.low"], record[f"{metric}.high"]
    return "" if low is None else f"{short_value(low)} to {short_value(high)}"
