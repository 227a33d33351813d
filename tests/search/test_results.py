"""The results of a search: its table, what mattered, and its figures."""

import math
import shutil

import numpy as np
import optuna
import pytest
from helpers import a_result, shared_text
from optuna.trial import TrialState

from tests.search.searches import OPTUNA, finish, queue_of, search_of, study_folder
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.search.results import SearchResults
from transformer_pl.search.search_page import draw_search_plots
from transformer_pl.search.study import create_study, find_study, renew, shown_number
from transformer_pl.search.table import search_table
from transformer_pl.table import figures as plots
from transformer_pl.table.cells import EXEMPT
from transformer_pl.trials.identity import row_identity, same_row

SPACE = {
    "model.p_drop": {"min": 0.0, "max": 0.5},
    "model.h": {"values": [2, 4, 8]},
    "optim.lr_scale": {"min": 0.1, "max": 10.0, "distribution": "log_uniform_values"},
}
TWO = OPTUNA | {"metrics": [{"name": "val/bleu", "goal": "maximize"}, {"name": "flops", "goal": "minimize"}]}


def made(folder, value, trials=16, **keys):
    """A search and its study, whose trials have `value(drawn)` without training; the base comes first.

    A trial with an infinite value has diverged.
    """
    search = search_of(space=SPACE, run_cap=trials, **keys)
    study = create_study(search, folder, None)
    study.sampler = optuna.samplers.RandomSampler(seed=1)
    for _ in range(trials):
        trial = study.ask(search.space)
        values = value(trial.params)
        if not np.isfinite(values).all():
            trial.set_user_attr("diverged", 7)
        study.tell(trial, values)
    return search, study


def test_the_best_trial_comes_first_and_failed_ones_last(tmp_path):
    search, study = made(tmp_path, lambda drawn: 2 + drawn["model.p_drop"], trials=12)
    for state, attribute in (("FAIL", "folder"), ("PRUNED", "infeasible")):
        trial = study.ask(search.space)
        trial.set_user_attr(attribute, "h=4-s1-0123456789")
        study.tell(trial, state=TrialState[state])
    pruned = study.ask(search.space)
    pruned.report(1.0, 1)
    study.tell(pruned, state=TrialState.PRUNED)
    study.ask(search.space)
    results = SearchResults(search, study, tmp_path)
    states = [record["state"] for record in results.records]
    assert states == ["best", *["done"] * 11, "pruned", "failed", "infeasible", "running"]
    values = [record["val/ppl"] for record in results.records][:12]
    assert values == sorted(values)
    table = search_table(results)
    assert table.columns[0].cells[states.index("pruned")] == f"#{pruned.number}" and "#0 base" in table.columns[0].cells
    assert len(table.notes) <= 3
    for text in (table.markdown(), table.latex(), table.csv(), table.json()):
        assert "infeasible" in text


def test_a_trial_that_is_exempt_from_a_property_is_marked(tmp_path):
    queue = queue_of(tmp_path, run_cap=2)
    for exempt in ({}, {"mine.Attention": {"the_future_is_hidden": "on purpose"}}):
        planned = queue.next(set())
        planned.folder.make()
        planned.folder.finish(a_result(exempt=exempt))
        queue.ended(planned, "done")
    table = search_table(SearchResults(queue.search, queue.study, tmp_path / "runs"))
    assert sorted(name.endswith(EXEMPT) for name in table.columns[0].cells) == [False, True]
    for text in (table.markdown(), table.latex(), table.csv(), table.json()):
        assert text.count("on purpose") >= 1


@pytest.mark.parametrize("edited", ["code", "text"])
def test_a_trial_of_other_code_or_text_is_compared_with_none_and_drawn_again(tmp_path, monkeypatch, edited):
    """Only the trials whose class was edited, or all where the text was; each with its values, and under its number."""
    monkeypatch.syspath_prepend(tmp_path)
    part, text = tmp_path / f"edited_{edited}.py", tmp_path / "text"
    part.write_text("from torch.optim import Adam\n\nclass Own(Adam):\n    factor = 1\n")
    own, classes = f"{part.stem}.Own", ["torch.optim.Adam", f"{part.stem}.Own"]
    shutil.copytree(shared_text(), text)
    keys = {"space": {"optim.optimizer": {"values": classes}}, "run_cap": 3, "fixed": {"data.path": str(text)}}
    queue = queue_of(tmp_path, **keys)
    queue.study.enqueue_trial({"optim.optimizer": own})
    for value in (3.0, 1.0, 2.0):
        if planned := queue.next(set()):
            finish(queue, planned, **{"val/ppl": value})
    before = SearchResults(queue.search, queue.study, tmp_path / "runs")
    changed, old, new = (part, "= 1", "= 2") if edited == "code" else (text / "train.en", "e", "a")
    changed.write_text(changed.read_text().replace(old, new))
    results = SearchResults(queue.search, queue.study, tmp_path / "runs")
    assert not before.outdated and results.outdated
    for trial, record in zip(results.trials, results.records, strict=True):
        is_outdated = edited == "text" or trial.params["optim.optimizer"] == own
        assert (record["state"] == "outdated", record["val/ppl"] is None) == (is_outdated, is_outdated)
    new = renew(queue.study, results.outdated, study_folder(tmp_path), None)
    assert find_study(queue.search, study_folder(tmp_path), None).study_name == new.study_name
    again = queue_of(tmp_path, **keys)
    while planned := again.next(set()):
        finish(again, planned, **{"val/ppl": 5.0})
    anew = SearchResults(again.search, again.study, tmp_path / "runs")
    assert not anew.outdated and {record["state"] for record in anew.records} <= {"best", "done"}
    shown = [[(shown_number(trial), trial.params) for trial in found.trials] for found in (before, anew)]
    assert sorted(shown[0], key=str) == sorted(shown[1], key=str)


def test_two_goals_have_a_pareto_front_with_figures(tmp_path):
    two = made(tmp_path, lambda drawn: (60 + drawn["model.h"], 1e9 * drawn["model.h"] + drawn["model.p_drop"]), **TWO)
    results = SearchResults(*two, tmp_path)
    assert set(draw_search_plots(results)) == {"history", "parallel", "importances", "front"}
    front = {record["model.h"]: record["val/bleu"] for record in results.records if record["state"] == "front"}
    assert front == {2: 62.0, 4: 64.0, 8: 68.0}  # the cheapest of each


@pytest.mark.parametrize("up", [False, True], ids=["minimize", "maximize"])
def test_diverged_trials_have_no_value_and_change_no_other(tmp_path, up):
    name, way, worst = ("val/bleu", "maximize", -math.inf) if up else ("val/ppl", "minimize", math.inf)
    rng = np.random.default_rng(1)

    def value(drawn):
        return worst if drawn["optim.lr_scale"] > 3 else 10 + rng.normal()

    results = SearchResults(*made(tmp_path, value, trials=60, metric={"name": name, "goal": way}), tmp_path)
    diverged = [record for record in results.records if record["state"] == "diverged"]
    assert len(diverged) > 5 and results.records[-len(diverged) :] == diverged
    assert all(record[name] is None for record in diverged) and results.records[0]["state"] == "best"
    values = [record[name] for record in results.records[: -len(diverged)]]
    assert values == sorted(values, reverse=up)
    assert "inf" not in search_table(results).csv()
    figures = draw_search_plots(results)
    assert set(figures) == {"history", "parallel", "importances"}
    for stem, drawing in figures.items():
        svg = plots.save(drawing.figure, tmp_path / stem)
        assert svg.with_suffix(".png").stat().st_size and name in svg.read_text()


def test_a_single_trial_is_drawn_without_a_warning(tmp_path):
    assert draw_search_plots(SearchResults(*made(tmp_path, lambda drawn: 2.0, trials=1), tmp_path))


def test_the_table_says_why_a_trial_is_infeasible(tmp_path):
    search, study = made(tmp_path, lambda drawn: 2.0, trials=1)
    trial = study.ask(search.space)
    trial.set_user_attr("infeasible", "h must divide d_model\nand more")
    study.tell(trial, state=TrialState.PRUNED)
    assert "#1: h must divide d_model." in search_table(SearchResults(search, study, tmp_path)).markdown()


def test_a_search_in_which_every_trial_diverges_has_a_table(tmp_path):
    results = SearchResults(*made(tmp_path, lambda drawn: math.inf, trials=9), tmp_path)
    assert [record["state"] for record in results.records] == ["diverged"] * 9
    assert not draw_search_plots(results)
    assert "9 diverged" in search_table(results).markdown()


@pytest.mark.parametrize("up", [False, True], ids=["minimize", "maximize"])
def test_the_key_that_decides_is_the_most_important_one(tmp_path, up):
    """For both directions: Optuna's evaluator looks at the lowest values unless it is told."""
    name, way = ("val/bleu", "maximize") if up else ("val/ppl", "minimize")
    value = lambda drawn: 5 + (drawn["model.p_drop"] < 0.1) * (1 if up else -1) + drawn["model.h"] / 1e4  # noqa: E731
    results = SearchResults(*made(tmp_path, value, trials=40, metric={"name": name, "goal": way}), tmp_path)
    axes = draw_search_plots(results)["importances"].figure.axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert axes.get_yticklabels()[int(np.argmax(widths))].get_text() == "p_drop"


@pytest.mark.parametrize("keys", [{}, TWO, {"fixed": {"optim.eps_ls": 0.0}}], ids=["one", "two", "fixed"])
def test_the_best_is_trained_again_as_it_was_and_with_other_seeds(tmp_path, keys):
    """With all digits that were drawn, beside base; the keys that all trials have in common count for both."""
    goals = 1 + (keys is TWO)
    search, study = made(tmp_path, lambda drawn: [drawn["model.p_drop"]] * goals, **keys)
    results = SearchResults(search, study, tmp_path)
    sweep = read_sweep(tmp_path / "best.yaml", content=results.best_sweep)
    first = [row.configs[0] for row in sweep.rows]
    records = zip(results.trials, results.records, strict=True)
    chosen = [trial for trial, record in records if record["state"] != "done" and not record["base"]]
    assert sweep.base_row == 0 and len(first) == 1 + len(chosen)
    for config, trial in zip(first[1:], chosen, strict=True):
        assert same_row(config, search.config(trial.params)[0])
    seeds = {config.seed for config in sweep.configs}
    assert len(seeds) == 3 and search.seed not in seeds


def test_the_best_keeps_the_options_of_its_class_and_is_no_copy_of_base(tmp_path):
    """An option that all trials have belongs to the class that was drawn; base may be drawn again."""
    classes = {"values": ["torch.optim.Adam", "torch.optim.AdamW"]}
    search = search_of(space={"optim.optimizer": classes}, fixed={"optim.optimizer.eps": 1e-6})
    study = create_study(search, tmp_path, None)
    for name, value in (("torch.optim.Adam", 1.0), ("torch.optim.AdamW", 1.0)):
        study.enqueue_trial({"optim.optimizer": name})
        trial = study.ask(search.space)
        study.tell(trial, value)
    study.enqueue_trial(search.base_draw)
    study.tell(study.ask(search.space), 1.0)
    results = SearchResults(search, study, tmp_path)
    sweep = read_sweep(tmp_path / "best.yaml", content=results.best_sweep)
    drawn = [search.config(trial.params)[0] for trial in results.trials]
    wanted = {row_identity(config) for config in [search.base, *drawn]}
    assert sorted(row_identity(row.configs[0]) for row in sweep.rows) == sorted(wanted)
