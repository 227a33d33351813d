"""The figures of a search, and what its page shows."""

import math
from pathlib import Path

from optuna.trial import TrialState

from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.plan import PlannedTrial, plan_trial
from transformer_pl.experiments.sweep_file import Row, Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.plots import Figure, Point
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.results import FORESEEN, Record, SearchResults
from transformer_pl.search.study import trial_name
from transformer_pl.trials.identity import same_row

SHOWN = 4  # trials, beside base, whose translations and attention the page has


def draw_search_plots(outcome: SearchResults) -> dict[str, tuple[str, Figure]]:
    """By file name, each with its caption."""
    search, found = outcome.search, dict[str, tuple[str, Figure]]()
    measured = sorted((trial for trial in outcome.trials if trial.values), key=lambda trial: trial.number)
    trials = [trial for trial in measured if all(map(math.isfinite, trial.values))]
    if not trials:
        return found
    infinite = [trial.number for trial in measured if trial not in trials]  # those that diverged, above all
    numbers, done = [t.number for t in trials], [t.state == TrialState.COMPLETE for t in trials]
    drawn = {key: [t.params[key] for t in trials] for key in search.space}
    by_logarithm = {key for key, where in search.space.items() if getattr(where, "log", False)}
    importances = outcome.importances()
    for i, (goal, way) in enumerate(search.goals.items()):
        if goal in FORESEEN:
            continue
        values, up = [t.values[i] for t in trials], way == "maximize"
        last = f"_{i + 1}" if i else ""
        history = plots.history(numbers, values, done, goal, up, infinite)
        found[f"history{last}"] = (f"{goal} in the course of the search", history)
        parallel = plots.parallel(drawn, by_logarithm, values, goal, up)
        found[f"parallel{last}"] = (f"Every trial: what was drawn, and its {goal}", parallel)
        if goal in importances:
            found[f"importances{last}"] = (
                f"What brings {goal} into the best quarter",
                plots.share_bars(importances[goal]),
            )
    goals = list(search.goals)
    if (best := outcome.expected_best()) is not None:
        found["expected_best"] = (f"Expected best {goals[0]} after k trials", plots.expected_best_plot(best, goals[0]))
    if len(goals) == 2 and search.goals[goals[1]] == "minimize":
        points = [_point(record, *goals) for record in outcome.records if record["trial"] in numbers]
        up = search.goals[goals[0]] == "maximize"
        found["front"] = (f"{goals[0]} against {goals[1]}", plots.front(points, goals[1], goals[0], up))
    return found


def _point(record: Record, goal: str, cost: str) -> Point:
    value = record[goal]
    low, high = (record.get(f"{goal}.{end}") for end in ("low", "high"))
    return Point(f"#{record['trial']}", value, low or value, high or value, record[cost])


def as_sweep(outcome: SearchResults, runs: Path) -> tuple[Sweep, list[PlannedTrial], list[PlannedTrial]]:
    """Each trial as a row of its own; all that have a config; and of these base and the best, to be shown."""
    search = outcome.search
    corpus = open_corpus(search.base.data)
    rows, planned = [], []
    for trial in outcome.trials:
        try:
            config, keys = search.config(trial.params)
        except InputError:  # infeasible: the table says so
            continue
        planned.append(plan_trial(len(rows), trial_name(trial), config, search.scale, runs, corpus))
        rows.append(Row(trial_name(trial), [config], keys))
    done = [one for one in planned if one.trial.result()]
    is_base = [same_row(one.config, search.base) for one in done]
    base = [one for one, told in zip(done, is_base, strict=True) if told][:1]
    best = [one for one, told in zip(done, is_base, strict=True) if not told][:SHOWN]
    return Sweep(search.name, search.project, search.scale, search.base, rows), planned, base + best
