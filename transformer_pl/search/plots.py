"""The figures of a search, and the rows of its page."""

import math
from pathlib import Path

from optuna.trial import TrialState

from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.plan import PlannedTrial, plan_trial
from transformer_pl.experiments.sweep_file import Row, Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.plots import Figure, Point
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.results import SearchResults, TrialRecord
from transformer_pl.search.states import trial_name
from transformer_pl.search.statistics import KNOWN_BEFORE_TRAINING
from transformer_pl.trials.identity import same_row

SHOWN_TRIALS = 4  # whose translations and attention the page shows beside the base's


def draw_search_plots(results: SearchResults) -> dict[str, tuple[str, Figure]]:
    """Return figures with their captions, by file name: history, parallel coordinates, importances, and so on.

    None where no trial has a finite value.
    """
    search, figures = results.search, dict[str, tuple[str, Figure]]()
    measured = sorted((trial for trial in results.trials if trial.values), key=lambda trial: trial.number)
    trials = [trial for trial in measured if all(map(math.isfinite, trial.values))]
    if not trials:
        return figures
    diverged = [trial.number for trial in measured if trial not in trials]
    numbers, complete = [t.number for t in trials], [t.state == TrialState.COMPLETE for t in trials]
    drawn = {key: [t.params[key] for t in trials] for key in search.space}
    logarithmic = {key for key, distribution in search.space.items() if getattr(distribution, "log", False)}
    importances = results.importances()
    for i, (goal, direction) in enumerate(search.goals.items()):
        if goal in KNOWN_BEFORE_TRAINING:
            continue
        values, higher_is_better = [t.values[i] for t in trials], direction == "maximize"
        suffix = f"_{i + 1}" if i else ""
        history = plots.history(numbers, values, complete, goal, higher_is_better, diverged)
        figures[f"history{suffix}"] = (f"{goal} in the course of the search", history)
        parallel = plots.parallel(drawn, logarithmic, values, goal, higher_is_better)
        figures[f"parallel{suffix}"] = (f"The drawn values of every trial, and its {goal}", parallel)
        if goal in importances:
            bars = plots.share_bars(importances[goal])
            figures[f"importances{suffix}"] = (f"Importance of each key for being in the best quarter by {goal}", bars)
    goals = list(search.goals)
    if (best := results.expected_best()) is not None:
        figure = plots.expected_best_plot(best.tolist(), goals[0])
        figures["expected_best"] = (f"Expected best {goals[0]} after k trials", figure)
    if len(goals) == 2 and search.goals[goals[1]] == "minimize":
        points = [_point(record, *goals) for record in results.trial_records if record.trial.number in numbers]
        front = plots.front(points, goals[1], goals[0], search.goals[goals[0]] == "maximize")
        figures["front"] = (f"{goals[0]} against {goals[1]}", front)
    return figures


def _point(record: TrialRecord, goal: str, cost_goal: str) -> Point:
    """A trial that has finite values of both goals."""
    value, cost = record.metrics[goal], record.metrics[cost_goal]
    assert value is not None and cost is not None
    low, high = record.intervals.get(goal) or (value, value)
    return Point(f"#{record.trial.number}", value, low, high, cost)


def as_sweep(results: SearchResults, runs: Path) -> tuple[Sweep, list[PlannedTrial], list[PlannedTrial]]:
    """Return the trials as rows of a sweep; the plan of all of them; and of these the base and the best, to be shown.

    Infeasible trials have no row: they are in the table only.
    """
    search = results.search
    corpus = open_corpus(search.base.data)
    rows: list[Row] = []
    planned: list[PlannedTrial] = []
    for trial in results.trials:
        try:
            config, keys = search.config(trial.params)
        except InputError:
            continue
        planned.append(plan_trial(len(rows), trial_name(trial), config, search.scale, runs, corpus))
        rows.append(Row(trial_name(trial), [config], keys))
    done = [one for one in planned if one.trial.result()]
    base = [one for one in done if same_row(one.config, search.base)]
    best = [one for one in done if one not in base]
    return Sweep(search.name, search.project, search.scale, search.base, rows), planned, base[:1] + best[:SHOWN_TRIALS]
