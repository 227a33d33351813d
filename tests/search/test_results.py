"""The results of a search: its table, its statistics, its figures, and that optuna-dashboard reads its study."""

import itertools
import math
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import optuna
import pytest
import yaml
from helpers import wait_for
from optuna.trial import TrialState

from tests.search.test_search import content
from transformer_pl.reporting import plots
from transformer_pl.search.plots import draw_search_plots
from transformer_pl.search.results import FEWEST_FOR_IMPORTANCES, SearchResults
from transformer_pl.search.space import read_search
from transformer_pl.search.statistics import expected_best
from transformer_pl.search.storage import create_study

SPACE = {
    "model.p_drop": {"min": 0.0, "max": 0.5},
    "model.h": {"values": [2, 4, 8]},
    "optim.lr_scale": {"min": 0.1, "max": 10.0, "distribution": "log_uniform_values"},
}
TWO = [{"name": "val/bleu", "goal": "maximize"}, {"name": "flops", "goal": "minimize"}]


def made(folder, value, trials=16, **keys):
    """A search and its study, whose trials have `value(drawn)` without training; the base comes first.

    A trial with an infinite value has diverged.
    """
    path = folder / "search.yaml"
    path.write_text(yaml.safe_dump(content(space=SPACE, run_cap=trials, **keys), sort_keys=False))
    search = read_search(path, yaml.safe_load(path.read_text()), None, None, {})
    study = create_study(search, folder, None, optuna.samplers.RandomSampler(seed=1), None)
    study.enqueue_trial(search.base_draw, user_attrs={"base": True})
    for _ in range(trials):
        trial = study.ask(search.space)
        values = value(trial.params)
        if not np.isfinite(values).all():
            trial.set_user_attr("diverged", 7)
        study.tell(trial, values)
    return search, study


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_expected_best_is_the_mean_over_all_choices(n):
    values = np.random.default_rng(n).normal(size=n).tolist()
    slow = [np.mean([max(chosen) for chosen in itertools.combinations(values, k)]) for k in range(1, n + 1)]
    assert expected_best(values, "maximize") == pytest.approx(slow)


def test_the_best_trial_comes_first_and_failed_ones_last(tmp_path):
    search, study = made(tmp_path, lambda drawn: 2 + drawn["model.p_drop"], trials=12)
    for state, attribute in ((TrialState.FAIL, None), (TrialState.PRUNED, "infeasible"), (TrialState.FAIL, "surplus")):
        trial = study.ask(search.space)
        if attribute:
            trial.set_user_attr(attribute, "reason")
        study.tell(trial, state=state)
    pruned = study.ask(search.space)
    pruned.report(1.0, 1)
    study.tell(pruned, state=TrialState.PRUNED)
    study.ask(search.space)
    outcome = SearchResults(search, study, tmp_path)
    states = [record["state"] for record in outcome.records]
    assert states == ["best", *["done"] * 11, "pruned", "failed", "infeasible", "running"]
    values = [record["val/ppl"] for record in outcome.records][:12]
    assert values == sorted(values)
    table = outcome.table()
    assert table.columns[0].cells[states.index("pruned")] == f"#{pruned.number}" and "#0 base" in table.columns[0].cells
    assert "16 of 12 trials: 1 best, 11 done, 1 pruned, 1 failed, 1 infeasible, 1 running" in table.notes[0]
    for text in (table.markdown(), table.latex(), table.csv(), table.json()):
        assert "infeasible" in text
    # The base was not drawn; a pruned trial counts with its last value.
    drawn = [t.value for t in study.get_trials(deepcopy=False) if t.value is not None and t.number]
    assert outcome.expected_best() == pytest.approx([-v for v in expected_best([-v for v in drawn], "maximize")])


@pytest.mark.parametrize("key", ["model.p_drop", "optim.lr_scale"])
def test_the_key_that_matters_has_the_highest_importance(tmp_path, key):
    search, study = made(tmp_path, lambda drawn: drawn[key], trials=60)
    (shares,) = SearchResults(search, study, tmp_path).importances().values()
    assert max(shares, key=shares.get) == key and sum(shares.values()) == pytest.approx(1)
    (tmp_path / "few").mkdir()
    few = made(tmp_path / "few", lambda drawn: 1.0, FEWEST_FOR_IMPORTANCES - 1)
    assert not SearchResults(*few, tmp_path).importances()


def test_a_search_has_its_figures(tmp_path):
    one = draw_search_plots(SearchResults(*made(tmp_path, lambda drawn: 2 + drawn["model.p_drop"]), tmp_path))
    assert set(one) == {"history", "parallel", "importances", "expected_best"}
    (tmp_path / "two").mkdir()
    two = made(
        tmp_path / "two",
        lambda drawn: (60 + drawn["model.h"], 1e9 * drawn["model.h"] + drawn["model.p_drop"]),
        metric=None,
        metrics=TWO,
        method="custom",
        scheduler={"engine": "optuna"},
    )
    outcome = SearchResults(*two, tmp_path)
    assert set(draw_search_plots(outcome)) == {"history", "parallel", "importances", "front"}
    front = {record["model.h"]: record["val/bleu"] for record in outcome.records if record["state"] == "best"}
    assert front == {2: 62.0, 4: 64.0, 8: 68.0}  # the cheapest of each


@pytest.mark.parametrize("up", [False, True], ids=["minimize", "maximize"])
def test_diverged_trials_have_no_value_and_change_no_other(tmp_path, up):
    """Importances include diverged trials: the learning rate matters only because high ones diverge."""
    name, way, worst = ("val/bleu", "maximize", -math.inf) if up else ("val/ppl", "minimize", math.inf)
    goal = {"metric": {"name": name, "goal": way}}
    rng = np.random.default_rng(1)

    def value(drawn):
        return worst if drawn["optim.lr_scale"] > 3 else 10 + rng.normal()

    outcome = SearchResults(*made(tmp_path, value, trials=60, **goal), tmp_path)
    diverged = [record for record in outcome.records if record["state"] == "diverged"]
    assert len(diverged) > 5 and outcome.records[-len(diverged) :] == diverged
    assert all(record[name] is None for record in diverged)
    (shares,) = outcome.importances().values()
    assert max(shares, key=shares.get) == "optim.lr_scale"
    assert np.isfinite(outcome.expected_best()).all()
    table = outcome.table()
    assert "and not diverged" in " ".join(table.notes) and "inf" not in table.csv().replace("infeasible", "")
    figures = draw_search_plots(outcome)
    assert set(figures) == {"history", "parallel", "importances", "expected_best"}
    labels = [text.get_text() for text in figures["history"].figure.axes[0].get_legend().get_texts()]
    assert "diverged" in labels
    for stem, (_, figure, _) in figures.items():
        plots.save(figure, tmp_path / stem)


def test_a_search_in_which_every_trial_diverges_has_a_table(tmp_path):
    outcome = SearchResults(*made(tmp_path, lambda drawn: math.inf, trials=9), tmp_path)
    assert [record["state"] for record in outcome.records] == ["diverged"] * 9
    assert not outcome.importances() and outcome.expected_best() is None and not draw_search_plots(outcome)
    assert "9 of 9 trials: 9 diverged" in outcome.table().markdown()


def test_optuna_dashboard_shows_the_study(tmp_path, browser):
    program = Path(sys.executable).with_name("optuna-dashboard")
    if not program.exists():
        pytest.skip("no optuna-dashboard: pip install optuna-dashboard")
    made(tmp_path, lambda drawn: 2 + drawn["model.p_drop"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(program), str(tmp_path / "study.journal"), "--host", "127.0.0.1", "--port", str(port)]
    wrong = []
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:

            def answers():
                with socket.socket() as asking:
                    return asking.connect_ex(("127.0.0.1", port)) == 0

            wait_for(answers)
            page = browser.new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
            page.goto(f"http://127.0.0.1:{port}/")
            page.get_by_text(tmp_path.name).first.click()
            page.get_by_text("Best Trial").first.wait_for()
            assert "val/ppl" in page.locator("body").inner_text() and not wrong
        finally:
            server.terminate()
