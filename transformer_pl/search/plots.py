"""The figures of a search, and the rows of its page."""

import math
from pathlib import Path

from optuna.trial import TrialState

from transformer_pl.experiments.plan import PlannedTrial, corpus_opener, plan_trial
from transformer_pl.experiments.sweep_file import Row, Sweep
from transformer_pl.reporting import plots
from transformer_pl.reporting.plots import Drawing, Point
from transformer_pl.runtime.errors import InputError
from transformer_pl.search import figures as draw
from transformer_pl.search.results import SearchResults, TrialRecord
from transformer_pl.search.states import shown_number, trial_name
from transformer_pl.search.statistics import KNOWN_BEFORE_TRAINING
from transformer_pl.trials.identity import same_row

SHOWN_TRIALS = 4  # whose translations and attention the page shows beside the base's


def draw_search_plots(results: SearchResults) -> dict[str, Drawing]:
    """Return figures with their explanations, by file name: history, parallel coordinates, importances, and so on.

    Empty where no trial has a finite value.
    """
    search, figures = results.search, dict[str, Drawing]()
    measured = sorted((trial for trial in results.trials if trial.values), key=shown_number)
    trials = [trial for trial in measured if all(map(math.isfinite, trial.values))]
    if not trials:
        return figures
    diverged = [shown_number(trial) for trial in measured if trial not in trials]
    numbers, complete = [shown_number(t) for t in trials], [t.state == TrialState.COMPLETE for t in trials]
    drawn = {key: [t.params[key] for t in trials] for key in search.space}
    logarithmic = {key for key, distribution in search.space.items() if getattr(distribution, "log", False)}
    importances = results.importances()
    for i, (goal, direction) in enumerate(search.goals.items()):
        if goal in KNOWN_BEFORE_TRAINING:
            continue
        values, higher_is_better = [t.values[i] for t in trials], direction == "maximize"
        suffix = f"_{i + 1}" if i else ""
        better = "higher" if higher_is_better else "lower"
        figures[f"history{suffix}"] = Drawing(
            f"{goal} in the course of the search",
            draw.history(numbers, values, complete, goal, higher_is_better, diverged),
            f"Each mark is a trial, in the order of their start; {better} is better. A pruned trial was stopped early "
            "and has its last value. The line is the best finished trial so far.",
        )
        figures[f"parallel{suffix}"] = Drawing(
            f"The drawn values of every trial, and its {goal}",
            draw.parallel(drawn, logarithmic, values, goal, higher_is_better),
            "Each line is a trial. It crosses the axis of each setting at the value that the search drew. The stronger "
            "the line, the better the trial.",
        )
        if goal in importances:
            figures[f"importances{suffix}"] = Drawing(
                f"Importance of each key for being in the best quarter by {goal}",
                draw.share_bars(importances[goal]),
                "How much a setting's values differ between the best quarter of the finished trials and all of them "
                "(PED-ANOVA), as shares of 1. Pruned trials do not count. With few trials it is rough.",
            )
    goals = list(search.goals)
    if (best := results.expected_best()) is not None:
        figures["expected_best"] = Drawing(
            f"Expected best {goals[0]} after k trials",
            draw.expected_best_plot(best.tolist(), goals[0]),
            "The best value that a search of k trials would have found on average. Where the line is flat, more trials "
            "bring little.",
        )
    if len(goals) == 2 and search.goals[goals[1]] == "minimize":
        points = [_point(record, *goals) for record in results.trial_records if shown_number(record.trial) in numbers]
        front = plots.front(points, goals[1], goals[0], search.goals[goals[0]] == "maximize")
        explanation = "Each point is a trial. No other trial is better in both goals than the filled ones."
        figures["front"] = Drawing(f"{goals[0]} against {goals[1]}", front, explanation)
    return figures


def _point(record: TrialRecord, goal: str, cost_goal: str) -> Point:
    """A trial that has finite values of both goals."""
    value, cost = record.metrics[goal], record.metrics[cost_goal]
    assert value is not None and cost is not None
    low, high = record.intervals.get(goal) or (value, value)
    return Point(f"#{shown_number(record.trial)}", value, low, high, cost)


def as_sweep(results: SearchResults, runs: Path) -> tuple[Sweep, list[PlannedTrial], list[PlannedTrial]]:
    """Return the trials as rows of a sweep; the plan of all of them; and of these the base and the best, to be shown.

    Infeasible trials have no row: they are in the table only.
    """
    search = results.search
    open_corpus = corpus_opener()
    rows: list[Row] = []
    planned: list[PlannedTrial] = []
    for trial in results.trials:
        try:
            config, keys = search.config(trial.params)
        except InputError:
            continue
        planned.append(plan_trial(len(rows), trial_name(trial), config, search.scale, runs, open_corpus(config.data)))
        rows.append(Row(trial_name(trial), [config], keys))
    done = [one for one in planned if one.trial.result()]
    base = [one for one in done if same_row(one.config, search.base)]
    best = [one for one in done if one not in base]
    return Sweep(search.name, search.project, search.scale, search.base, rows), planned, base[:1] + best[:SHOWN_TRIALS]
