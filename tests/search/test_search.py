"""Searches: what is drawn, what becomes of it, and that nothing is lost or done twice."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest
import yaml
from helpers import ROOT, a_result, command, processes, wait_for
from optuna.trial import TrialState
from rich.console import Console
from wandb.sdk.sweeps.scheduler.optuna import sweep_parameter_to_distribution

from transformer_pl.data.prepare import prepare
from transformer_pl.experiments.launch import Workers, launch
from transformer_pl.experiments.plan import plan_trial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.distributions import distribution
from transformer_pl.search.results import SearchResults
from transformer_pl.search.samplers import SAMPLERS, construct, try_out
from transformer_pl.search.space import read_search
from transformer_pl.search.states import counted_trials
from transformer_pl.search.storage import create_study
from transformer_pl.search.study import SearchQueue
from transformer_pl.trials.recognise import planned_trials, reason_to_stay
from transformer_pl.trials.trial import finished_results

SMALL = {"model.width": 0.0625, "optim.max_steps": 20, "trainer.val_every": 10, "decode.beam": 1, "decode.extra": 2}
SPACE = {"model.h": {"values": [3, 4, 8]}, "model.p_drop": {"min": 0.0, "max": 0.3}}


def content(space=SPACE, run_cap=4, method="random", **more):
    """A sweep file that searches, small."""
    fixed = {key: {"value": value} for key, value in (SMALL | more.pop("fixed", {})).items()}
    goal = {"metric": {"name": "val/ppl", "goal": "minimize"}}
    found = {"name": "try", "method": method, "run_cap": run_cap, "parameters": fixed | space} | goal | more
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def write(tmp_path):
    def written(**said):
        path = tmp_path / "search.yaml"
        path.write_text(yaml.safe_dump(content(**said), sort_keys=False))
        return path

    return written


def study_of(runs):
    folder = next(runs.glob("sweeps/try@demo*"))
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.journal")))
    return optuna.load_study(study_name=folder.name, storage=storage)


# ---------------------------------------------------------------------------------------------------------------------
# The file


@pytest.mark.parametrize(
    "said",
    [
        {"value": 4},
        {"values": [1, "a", None, 0.5]},
        {"distribution": "categorical", "values": ["x", "y"]},
        {"min": 1, "max": 9},
        {"min": 0.0, "max": 1},
        {"distribution": "int_uniform", "min": 2, "max": 5},
        {"distribution": "uniform", "min": 0.1, "max": 0.5},
        {"distribution": "q_uniform", "min": 0, "max": 100, "q": 10},
        {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25},
        {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1},
        {"distribution": "q_log_uniform_values", "min": 1, "max": 64},
        {"distribution": "q_log_uniform_values", "min": 8, "max": 64, "q": 8},
    ],
    ids=str,
)
def test_a_parameter_is_what_w_and_b_makes_of_it(said):
    assert distribution(said) == sweep_parameter_to_distribution(said)


@pytest.mark.parametrize(
    "said",
    [
        {"distribution": "normal", "mu": 0, "sigma": 1},
        {"distribution": "beta", "min": 0, "max": 1},
        {"values": [1, 2], "probabilities": [0.2, 0.8]},
        {"min": 3, "max": 1},
        {"min": 3},
        {"distribution": "log_uniform_values", "min": 0.0, "max": 1.0},
        {"min": "a", "max": "b"},
    ],
    ids=str,
)
def test_what_optuna_has_not_is_refused(said):
    with pytest.raises(ValueError):
        distribution(said)


def test_every_mistake_of_a_file_is_told_at_once(write, tmp_path):
    path = write(
        space={
            "model.hh": {"values": [1, 2]},
            "model.p_drop": {"distribution": "normal", "mu": 0},
            "seed": {"values": [1, 2]},
        },
        metric={"name": "val/blue", "goal": "maximise"},
        run_cap=0,
        early_terminate={"type": "envelope"},
    )
    told = command("sweep", path, "--runs", tmp_path / "runs")
    assert told.returncode == 2 and not (tmp_path / "runs").exists()
    for words in ("model.hh: no such key", "mu: Optuna has nothing like it", "val/blue: no such metric", "run_cap = 0"):
        assert words in told.stderr
    assert "parameters.seed" in told.stderr and "must be of type: hyperband" in told.stderr


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"space": {"model.h": {"values": [2, 4]}}}, "parameters.model.h: must have 8 in it, for base is trial 0"),
        ({"space": {"model.p_drop": {"min": 0.2, "max": 0.4}}}, "model.p_drop: must have 0.1 in it"),
        (
            {"early_terminate": {"type": "hyperband"}, "metric": {"name": "val/bleu", "goal": "maximize"}},
            "on the schedule",
        ),
        ({"metric": {"name": "val/bleu_sample", "goal": "maximize"}}, "needs trainer.bleu_sample"),
        ({"space": {"model.h": {"values": [8, "abc"]}}}, "model.h = abc: must be a valid"),
        ({"space": {"model.h": {"values": [8, [4]]}}}, "each value must be a number, text"),
        ({"space": {"variant": {"values": ["base", "model.hh=3"]}}}, "model.hh = 3: no such key"),
        ({"space": {"variant": {"values": ["base", "model.h"]}}}, "must be `base` or key=value"),
        ({"space": {"variant": {"values": ["base", "seed=3"]}}}, "seed = 3: must be said by parameters.seed or by"),
        ({"method": "custom"}, "{engine: optuna}"),
        ({"method": "custom", "scheduler": "optuna"}, "{engine: optuna}"),
        ({"fixed": {"seed": "abc"}}, "seed = abc: must be a"),
        (
            {"fixed": {"trainer.val_every": 50}, "early_terminate": {"type": "hyperband", "min_iter": 1}},
            "at most the 20",
        ),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 0}},
            "early_terminate.min_iter = 0: must be a whole number",
        ),
        ({"early_terminate": {"type": "hyperband", "max_iter": 9}}, "must have min_iter, or else max_iter and s"),
        ({"space": {"model.d_ff": {"distribution": "log_uniform_values", "min": 64, "max": 4096}}}, "must be whole"),
        ({"space": {"data.path": {"values": [None, "x"]}}}, "data.path: must be the same in all trials"),
        ({"space": {}}, "some key must have values or a range"),
        ({"name": "../up"}, "name = '../up': must be a plain name"),
    ],
)
def test_a_search_that_cannot_be_is_told_at_plan_time(write, said, words):
    path = write(**said)
    with pytest.raises(InputError, match=words.replace("{", r"\{")):
        read_search(path, yaml.safe_load(path.read_text()), None, None, {})


def test_the_seed_of_a_search_is_not_set(write):
    path = write()
    with pytest.raises(InputError, match=r"--set: seed = 5: must be said by parameters\.seed or by --seeds"):
        read_search(path, yaml.safe_load(path.read_text()), None, None, {"seed": "5"})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nope"], "--sampler nope: no such one; did you mean tpe?"),
        (["tpe", "bogus=1"], "bogus"),
        pytest.param(
            *(["cma-es"], "pip install cmaes"),
            marks=pytest.mark.skipif(bool(find_spec("cmaes")), reason="cmaes is here"),
        ),
    ],
)
def test_a_sampler_that_cannot_be_is_told(words, told):
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        construct(SAMPLERS, words, "--sampler")


@pytest.mark.parametrize("words", [["tpe", "n_startup_trials=abc"], ["tpe", "n_ei_candidates=0"]], ids=" ".join)
def test_an_option_that_breaks_at_the_tenth_draw_is_told_before_the_first(write, words):
    path = write()
    search = read_search(path, yaml.safe_load(path.read_text()), None, None, {})
    with pytest.raises(InputError, match="must have options that Optuna can draw with, but"):
        try_out(search, construct(SAMPLERS, words, "--sampler"), None)


@pytest.mark.parametrize(
    ("said", "rungs"), [({"min_iter": 2, "eta": 2}, (2, 2)), ({"max_iter": 27, "s": 2, "eta": 3}, (3, 3))], ids=str
)
def test_early_terminate_is_what_w_and_b_makes_of_it(write, said, rungs):
    """The first validation at which a trial may end, and the factor to the next."""
    path = write(early_terminate={"type": "hyperband"} | said)
    search = read_search(path, yaml.safe_load(path.read_text()), None, None, {})
    assert search.early == rungs


# ---------------------------------------------------------------------------------------------------------------------
# The study


def test_a_search_runs_to_its_cap_and_goes_on_where_that_is_raised(write, tmp_path):
    """Base first; a draw that breaks a law is infeasible; nothing is trained twice, by a grid or by a search."""
    runs, path = tmp_path / "runs", write(run_cap=3, space=SPACE | {"model.h": {"values": [3, 8]}})
    told = command(
        "train", *(f"--{key}={value}" for key, value in SMALL.items()), "--runs", runs, WANDB_MODE="disabled"
    )
    assert told.returncode == 0, told.stderr
    told = command("sweep", path, "--runs", runs, WANDB_MODE="disabled")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "optuna-dashboard" in told.stdout and "#0 base" in told.stdout and "3 of 3 trials" in told.stdout
    trials = study_of(runs).get_trials()
    assert trials[0].params == {"model.h": 8, "model.p_drop": 0.1}
    assert {t.state for t in trials} <= {TrialState.COMPLETE, TrialState.PRUNED} and len(trials) == 3
    for trial in trials:
        assert ("infeasible" in trial.user_attrs) == (trial.params["model.h"] == 3)
        assert "h = 3" in trial.user_attrs.get("infeasible", "h = 3")
    by_folder = {result["folder"].name: result for result in finished_results(runs)}
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert {t.user_attrs["folder"]: t.value for t in done} == {f: r["metrics"]["val/ppl"] for f, r in by_folder.items()}
    report = command("report", path, "--runs", runs, "--format", "md")
    assert report.returncode == 0 and report.stdout == (next(runs.glob("sweeps/try*")) / "table.md").read_text()
    page = Path(command("report", path, "--runs", runs, "--format", "html").stdout.strip()).read_text()
    for trial in trials:
        assert f"#{trial.number}" in page and trial.user_attrs.get("folder", "infeasible") in page
    assert "try@demo" in command("sweep", "--list", "--runs", runs).stdout
    again = command("sweep", path, "--runs", runs, WANDB_MODE="disabled")
    assert again.returncode == 0 and len(study_of(runs).get_trials()) == 3
    path.write_text(path.read_text().replace("run_cap: 3", "run_cap: 4"))
    assert command("sweep", path, "--runs", runs, WANDB_MODE="disabled").returncode == 0
    assert len(study_of(runs).get_trials()) == 4


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_search_goes_on_with_what_it_was_at(write, tmp_path, signum):
    """Nothing is left running or lost: what was at work is drawn again, and goes on from its checkpoint."""
    runs = tmp_path / "runs"
    path = write(run_cap=2, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, fixed={"optim.max_steps": 200})
    words = [sys.executable, "-m", "transformer_pl.sweep", str(path), "--runs", str(runs)]
    environment = os.environ | {"WANDB_MODE": "disabled"}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: len(list(runs.glob("trials/*/checkpoints/last.sha256"))) == 2, 90)
        folders = {path.name for path in (runs / "trials").iterdir()}
        process.send_signal(signum)
        assert process.wait(20) in (143, -9)
    wait_for(lambda: not any("transformer_pl.train" in p.command and str(runs) in p.command for p in processes()), 15)
    told = command("sweep", path, "--runs", runs, WANDB_MODE="disabled")
    assert told.returncode == 0, told.stdout + told.stderr
    folder = runs / "sweeps" / "try@demo"
    assert planned_trials(folder) and reason_to_stay(folder, runs) is None, "--clean must know every file"
    study = study_of(runs)
    assert [t.state for t in counted_trials(study)] == [TrialState.COMPLETE] * 2
    assert not study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    assert {path.name for path in (runs / "trials").iterdir()} == folders
    for result in finished_results(runs):
        steps = [json.loads(line)["step"] for line in (result["folder"] / "metrics.jsonl").read_text().splitlines()]
        assert result["steps"] == 200 and steps == sorted(steps)


class Always(optuna.pruners.BasePruner):
    """Ends every trial at its first validation; but base is not to be pruned."""

    def prune(self, study, trial):
        return True


@pytest.mark.parametrize("devices", [1, 2])
def test_a_pruned_trial_ends_keeps_its_curve_and_leaves_no_process(write, tmp_path, monkeypatch, devices):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    steps = {"optim.max_steps": 200, "trainer.val_every": 20, "trainer.accelerator": "cpu", "trainer.devices": devices}
    path = write(run_cap=2, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, fixed=steps)
    runs, folder = tmp_path / "runs", tmp_path / "runs" / "sweeps" / "try@demo"
    search = read_search(path, yaml.safe_load(path.read_text()), None, None, {})
    folder.mkdir(parents=True)
    prepare(search.base.data, runs)
    study = SearchQueue(search, create_study(search, folder, None, optuna.samplers.RandomSampler(), Always()), runs)
    with ProgressView(Console(), [], 0, 1, study.estimates) as view:
        launch(study, lambda one: study.argv(one, runs), Workers(1, 1, []), view)
    base, pruned = study_of(runs).get_trials()
    assert (base.state, pruned.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    kept = runs / "trials" / pruned.user_attrs["folder"]
    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    curve = [line["val/ppl"] for line in lines if "val/ppl" in line]
    assert curve[: len(pruned.intermediate_values)] == list(pruned.intermediate_values.values()) and len(curve) < 10
    assert not (kept / "result.json").exists() and not (kept / "checkpoints").exists()
    assert not any("transformer_pl.train" in p.command and str(runs) in p.command for p in processes())
    assert [record["state"] for record in SearchResults(search, study.study, runs).records] == ["best", "pruned"]


def test_a_search_goes_on_where_a_trial_diverges_and_learns_from_it(write, tmp_path):
    """Of four learning rates all but base's are too much: one is drawn for sure."""
    rates = {"optim.lr_scale": {"values": [1.0, 1e30, 2e30, 3e30]}}
    path, runs = write(run_cap=2, space=rates), tmp_path / "runs"
    words = [path, "--runs", runs, "--sampler", "random", "seed=1"]
    told = command("sweep", *words, WANDB_MODE="disabled")
    assert told.returncode == 0, told.stdout + told.stderr  # the search has found what it was to find
    base, diverged = counted_trials(study_of(runs))
    (result,) = finished_results(runs)
    assert (base.state, base.value) == (TrialState.COMPLETE, result["metrics"]["val/ppl"])
    assert (diverged.state, diverged.value) == (TrialState.COMPLETE, float("inf"))
    step = diverged.user_attrs["diverged"]
    assert f"diverged at step {step}" in told.stdout and "2 of 2 trials: 1 best, 1 diverged" in told.stdout
    (row,) = [line for line in told.stdout.splitlines() if line.startswith(f"#{diverged.number} ")]
    assert "diverged" in row and "inf" not in row
    rows = json.loads(command("report", *words[:3], "--format", "json").stdout, parse_constant=pytest.fail)["rows"]
    assert [(row["state"], row["val/ppl"] is None) for row in rows] == [("best", False), ("diverged", True)]
    drawn = len(study_of(runs).get_trials())
    again = command("sweep", *words, WANDB_MODE="disabled")
    assert again.returncode == 0 and len(study_of(runs).get_trials()) == drawn


@pytest.mark.parametrize(
    "goals",
    [[("val/ppl", "minimize")], [("val/bleu", "maximize")], [("val/bleu", "maximize"), ("flops", "minimize")]],
    ids=str,
)
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_trial_that_diverged_is_the_worst_in_every_goal_and_never_the_best(write, tmp_path, goals, sampler):
    """Also the cheapest; one that had diverged before it was drawn is told so, and not trained."""
    said = [{"name": name, "goal": way} for name, way in goals]
    engine = {"method": "custom", "scheduler": {"engine": "optuna"}, "metric": None, "metrics": said}
    path, runs = write(run_cap=6, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, **engine), tmp_path / "runs"
    search = read_search(path, yaml.safe_load(path.read_text()), None, None, {})
    folder = runs / "sweeps" / "try@demo"
    folder.mkdir(parents=True)
    kept = create_study(
        search, folder, None, construct(SAMPLERS, [sampler, "seed=1", "n_startup_trials=4"], "--sampler"), None
    )
    study, endings = SearchQueue(search, kept, runs), ["diverged", "done", "failed", "diverged"]
    for at, ending in enumerate(endings):
        job = study.next(set())
        job.trial.folder.mkdir(parents=True)
        if ending == "done":
            metrics = {"val/ppl": 9.0, "val/bleu": 1.0}
            job.trial.finish(a_result(metrics=metrics))
        elif ending == "diverged":
            job.trial.set_status("diverged", step=at + 1)
        study.ended(job, ending)
    before = plan_trial(9, "", search.config({"model.p_drop": 0.25})[0], search.scale, runs, study.corpus)
    before.trial.folder.mkdir(parents=True)
    before.trial.set_status("diverged", step=7)
    kept.enqueue_trial({"model.p_drop": 0.25})
    study.next(set())  # tells of that one, and draws another
    trials = kept.get_trials()
    assert [t.user_attrs.get("diverged") for t in trials[:5]] == [1, None, None, 4, 7]
    worst = [float("inf") if way == "minimize" else -float("inf") for _, way in goals]
    assert all(t.values == worst for t in trials if "diverged" in t.user_attrs)
    states = [record["state"] for record in SearchResults(search, kept, runs).records]
    assert states == ["best", *["diverged"] * 3, "failed", "running"]
    SearchQueue(search, kept, runs)  # as the next command begins: what failed is tried again, and nothing else
    (again,) = kept.get_trials(states=(TrialState.WAITING,))
    assert again.user_attrs["again"] == 2


def test_two_goals_have_a_front(write, tmp_path):
    goals = [{"name": "val/bleu", "goal": "maximize"}, {"name": "flops", "goal": "minimize"}]
    space = {
        "model.N": {"values": [2, 6]},
        "model.d_ff": {"min": 1024, "max": 2048, "q": 1024, "distribution": "q_uniform"},
    }
    path = write(space=space, metric=None, metrics=goals, method="custom", scheduler={"engine": "optuna"})
    told = command("sweep", path, "--runs", tmp_path / "runs", "--sampler", "nsga-ii", WANDB_MODE="disabled")
    assert told.returncode == 0, told.stdout + told.stderr
    trials = [t for t in study_of(tmp_path / "runs").get_trials() if t.values]
    least = min(trials, key=lambda trial: trial.values[1])
    (line,) = [line for line in told.stdout.splitlines() if line.startswith(f"#{least.number} ")]
    assert "best" in line
