"""The page of a search, and its figures, which Optuna draws."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.visualization import matplotlib as optuna_plots

from transformer_pl.config import without_section
from transformer_pl.report.page import write_page
from transformer_pl.search.results import SearchResults
from transformer_pl.search.space import COST_METRICS
from transformer_pl.search.study import FOLDER, trial_name
from transformer_pl.table.figures import Drawing, Figure, plain_log, pyplot
from transformer_pl.table.formats import Table
from transformer_pl.task import open_corpus
from transformer_pl.trials.identity import same_row
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Trial

FEWEST_RANKED = 10  # finished trials, with fewer of which nothing can be said of what mattered
SHOWN_TRIALS = 5  # base and the best trials, whose translations and attention the page shows


def draw_search_plots(results: SearchResults) -> dict[str, Drawing]:
    """Return figures with their explanations, by file name: history, parallel coordinates, importances, Pareto
    front.

    Empty where no trial has a finite value.
    """
    study, goals, figures = results.study, list(results.search.goals), dict[str, Drawing]()
    if not any(record[goals[0]] is not None for record in results.records):
        return figures
    for index, goal in enumerate(goals):
        if goal in COST_METRICS:
            continue
        suffix = f"_{index + 1}" if index else ""
        target: dict[str, Any] = {"target_name": goal}
        if goals[1:]:
            target["target"] = lambda trial, index=index: trial.values[index]
        figures[f"history{suffix}"] = Drawing(
            f"{goal} in the course of the search",
            _draw(optuna_plots.plot_optimization_history, study, **target),
            "Each point is a finished trial, in the order of their start; the line is the best so far.",
        )
        figures[f"parallel{suffix}"] = Drawing(
            f"The drawn values of every trial, and its {goal}",
            _draw(optuna_plots.plot_parallel_coordinate, study, **target),
            "Each line is a finished trial, and crosses each axis at the drawn value. The darker, the better.",
        )
        if len([record for record in results.records if record[goal] is not None]) >= FEWEST_RANKED:
            sign = 1 if results.search.goals[goal] == "minimize" else -1  # the evaluator asks which values are low
            figures[f"importances{suffix}"] = Drawing(
                f"How much each key mattered for {goal}",
                _draw(
                    optuna_plots.plot_param_importances,
                    study,
                    target_name=goal,
                    target=lambda trial, index=index, sign=sign: sign * trial.values[index],
                ),
                "By PED-ANOVA: how unlike all trials the best ones are in this key. The shares add up to 1.",
            )
    if len(goals) in (2, 3):
        figures["front"] = Drawing(
            " against ".join(goals),
            _draw(optuna_plots.plot_pareto_front, study, target_names=goals),
            "Each point is a finished trial. No trial is better in every goal than a red one.",
        )
    return figures


def _draw(plot: Callable[..., Any], study: Study, **options: Any) -> Figure:
    """One of Optuna's figures, without the title that the page has already, and with room for its axes."""
    with pyplot.rc_context(), warnings.catch_warnings():  # undo the style that Optuna sets
        # Whether low values are meant, and an axis of equal values
        warnings.filterwarnings("ignore", "PedAnova|Attempting to set identical")
        figure: Figure = plot(study, **options).figure
    pyplot.close(figure)
    figure.set_size_inches(max(6.0, 1.6 * len(figure.axes)), 4)
    for axes in figure.axes:
        axes.set_title("")
        axes.set_title("", loc="left")
        if axes.get_yscale() == "log":
            plain_log(axes.yaxis)
        for axis in (axes.xaxis, axes.yaxis):
            names = [label.get_text() for label in axis.get_ticklabels()]
            if any(name in study.trials[0].params for name in names):  # the keys, as the table has them
                axis.set_ticks(axis.get_ticklocs(), [without_section(name) for name in names])
        for label in axes.get_yticklabels(which="both"):
            label.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5})  # lines may cross it
    return figure


def write_search_page(results: SearchResults, folder: Path, title: str, table: Table) -> None:
    """Write `report.html` and the figures of a search.

    The page shows translations and attention of base and of the best trials. Infeasible trials are in its table only.
    Raises an InputError where the dataset or a component is not here.
    """
    search, trials, runs = results.search, list[Trial](), RunsFolder(results.runs)
    corpus = open_corpus(search.base.data)
    for drawn in results.trials:
        if FOLDER in drawn.user_attrs and drawn.number not in results.outdated:
            trials.append(search.trial(drawn.params, corpus, runs, trial_name(drawn)))
    named = [(trial.name, trial) for trial in trials]
    done = [(name, trial) for name, trial in named if trial.folder.result()]
    done.sort(key=lambda named: not same_row(named[1].config, search.base))  # base, then the best
    write_page(folder, title, search.base, table, named, draw_search_plots(results), done[:SHOWN_TRIALS])
