"""Searches: how their files are read, what is drawn, and that no trial is lost or trained twice."""

import io
import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest
import yaml
from forked import TrialServer, command, running
from helpers import a_result, processes, shared_text, wait_for
from optuna.trial import TrialState
from rich.console import Console
from wandb.sdk.sweeps.scheduler.optuna import sweep_parameter_to_distribution

from transformer_pl import sweep
from transformer_pl.data.prepare import prepare
from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.launch import launch
from transformer_pl.experiments.plan import plan_trial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.launchers.local import LocalLauncher
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.distributions import distribution
from transformer_pl.search.results import SearchResults
from transformer_pl.search.samplers import SAMPLERS, construct, try_out
from transformer_pl.search.space import print_search, read_search
from transformer_pl.search.states import counted_trials
from transformer_pl.search.storage import create_study
from transformer_pl.search.study import SearchQueue
from transformer_pl.trials.cleaning import list_runs
from transformer_pl.trials.runs_folder import finished_results, sweep_plan
from transformer_pl.trials.trial import Trial

SMALL = {"model.width": 0.0625, "optim.max_steps": 20, "trainer.val_every": 10, "decode.beam": 1, "decode.extra": 2}
SMALL |= {"data.path": str(shared_text()), "data.vocab_size": 400}
SMALLER = {"model.N": 2}  # where nothing has to happen while a trial runs
PARSING = {"fixed": {"data.task": "transformer_pl.tasks.parsing.Parsing", "data.path": None}}
SPACE = {"model.h": {"values": [3, 4, 8]}, "model.p_drop": {"min": 0.0, "max": 0.3}}


def content(space=SPACE, run_cap=4, method="random", **more):
    """The content of a small sweep file that searches; None takes a key out."""
    fixed = {key: {"value": value} for key, value in (SMALL | more.pop("fixed", {})).items()}
    goal = {"metric": {"name": "val/ppl", "goal": "minimize"}}
    keys = {"name": "try", "method": method, "run_cap": run_cap, "parameters": fixed | space} | goal | more
    return {key: value for key, value in keys.items() if value is not None}


@pytest.fixture
def write(tmp_path):
    def write_file(**keys):
        path = tmp_path / "search.yaml"
        path.write_text(yaml.safe_dump(content(**keys), sort_keys=False))
        return path

    return write_file


def read(path, sets=None):
    return read_search(path, yaml.safe_load(path.read_text()), None, None, sets or {})


def study_of(runs):
    folder = next(runs.glob("sweeps/try@demo*"))
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.journal")))
    return optuna.load_study(study_name=folder.name, storage=storage)


# ---------------------------------------------------------------------------------------------------------------------
# The file


@pytest.mark.parametrize(
    "parameter",
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
def test_distributions_are_those_of_wandb(parameter):
    assert distribution(parameter) == sweep_parameter_to_distribution(parameter)


@pytest.mark.parametrize(
    "parameter",
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
def test_distributions_that_optuna_lacks_are_refused(parameter):
    with pytest.raises(ValueError):
        distribution(parameter)


def test_all_mistakes_of_a_file_are_reported_at_once(write, tmp_path):
    path = write(
        space={
            "model.hh": {"values": [1, 2]},
            "model.p_drop": {"distribution": "normal", "mu": 0},
            "seed": {"values": [1, 2]},
        },
        metric={"name": "blue", "goal": "maximise"},
        run_cap=0,
        early_terminate={"type": "envelope"},
    )
    finished = command("sweep", path, "--runs", tmp_path / "runs")
    assert finished.returncode == 2 and not (tmp_path / "runs").exists()
    for words in ("model.hh: no such key", "mu: Optuna has nothing like it", "blue: no such metric", "run_cap = 0"):
        assert words in finished.stderr
    assert "parameters.seed" in finished.stderr and "must be of type: hyperband" in finished.stderr


@pytest.mark.parametrize(
    ("keys", "seeds", "mistake"),
    [
        ({}, ["1", "2"], "--seeds 1,2: must be one in a search"),
        (
            {"metric": {"name": "val/ppl", "goal": "maximise"}},
            None,
            "metric.goal = maximise: must be minimize or maximize",
        ),
        ({"metric": "val/ppl"}, None, "metric.name = None: no such metric"),
        ({"metric": None}, None, "metric: must say what is searched for, such as {name: val/ppl, goal: minimize}"),
        ({"metric": {"name": "val/bleu"}}, None, "metric.goal = minimize: must be maximize for val/bleu"),
        ({"run_cap": True}, None, "run_cap = True: must be a whole number from 1"),
        ({"parameters": {}}, None, "parameters = {}: must map keys to"),
        ({"space": {}}, None, "parameters: some key must have values or a range to search, but none has"),
        ({"space": {"scale": {"values": ["demo", "small"]}}}, None, "must be one value in a search"),
        ({"space": {"model.h": 4}}, None, "parameters.model.h = 4: must map to {value: ...}"),
        ({"metrics": [{"name": "val/ppl"}]}, None, "metric and metrics: must not both be given"),
        (
            {"metric": None, "metrics": [{"name": "val/ppl"}, {"name": "val/ppl", "goal": "maximize"}]},
            None,
            "metric.name = val/ppl: must be given once",
        ),
    ],
)
def test_a_mistake_of_a_search_is_named(keys, seeds, mistake):
    with pytest.raises(InputError) as caught:
        read_search(Path("search.yaml"), content(**keys), None, seeds, {})
    assert any(mistake in message for message in caught.value.messages), caught.value.messages


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"space": {"model.h": {"values": [2, 4]}}}, "parameters.model.h: must have 8 in it, base's value at"),
        ({"space": {"model.p_drop": {"min": 0.2, "max": 0.4}}}, "model.p_drop: must have 0.1 in it"),
        (
            {"early_terminate": {"type": "hyperband"}, "metric": {"name": "val/bleu", "goal": "maximize"}},
            "on the schedule",
        ),
        ({"metric": {"name": "val/bleu_sample", "goal": "maximize"}}, "needs trainer.bleu_sample"),
        ({"metric": {"name": "val/blue", "goal": "maximize"}}, "val/blue: no such metric; did you mean val/bleu?"),
        ({"metric": {"name": "val/f1", "goal": "maximize"}}, "val/f1: no such metric"),
        (PARSING | {"metric": {"name": "val/bleu", "goal": "maximize"}}, "val/bleu: no such metric"),
        (PARSING | {"metric": {"name": "val/f1_sample", "goal": "maximize"}}, "needs trainer.bleu_sample"),
        ({"space": {"model.h": {"values": [8, "abc"]}}}, "model.h = abc: must be a valid"),
        ({"space": {"model.h": {"values": [8, [4]]}}}, "each value must be a number, text"),
        ({"space": {"variant": {"values": ["base", "model.hh=3"]}}}, "model.hh = 3: no such key"),
        ({"space": {"variant": {"values": ["base", "model.h"]}}}, "must be `base` or key=value"),
        ({"space": {"variant": {"values": ["base", "seed=3"]}}}, "seed = 3: must be given by parameters.seed or by"),
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
def test_an_invalid_search_file_is_refused(write, keys, message):
    path = write(**keys)
    with pytest.raises(InputError, match=message.replace("{", r"\{")):
        read(path)


def test_set_cannot_change_the_seed_of_a_search(write):
    path = write()
    with pytest.raises(InputError, match=r"--set: seed = 5: must be given by parameters\.seed or by --seeds"):
        read(path, {"seed": "5"})


@pytest.mark.parametrize(
    ("space", "key"),
    [(SPACE, "model.h"), ({"variant": {"values": ["base", "model.N=2 model.h=4"]}}, "model.h")],
    ids=["a key", "in a variant"],
)
def test_set_cannot_fix_what_a_search_draws(write, space, key):
    path = write(space=space)
    with pytest.raises(InputError, match=rf"--set {key}=4: must be a key that the search does not draw"):
        read(path, {key: "4"})
    assert read(path, {"model.d_ff": "1024"}).base.model.d_ff == 1024


@pytest.mark.parametrize("window", [{"min": 4, "max": 32}, {"values": [8, 16]}], ids=str)
def test_options_and_widths_of_heads_can_be_drawn(write, window, tmp_path):
    """Base has their defaults: those of the constructor, and d_model / h."""
    fixed = {"model.attention": "ablations.local_attention.LocalAttention", "optim.duration": None}
    space = {"model.attention.window": window, "model.d_k": {"min": 16, "max": 64}}
    space["optim.duration"] = {"min": 1, "max": 3}
    search = read(write(space=space, fixed=fixed))
    assert search.base_draw == {"model.attention.window": 16, "model.d_k": 64, "optim.duration": 1.0}
    assert search.config(search.base_draw)[0].model.attention == search.base.model.attention
    corpus = open_corpus(search.base.data)
    drawn = [plan_trial(0, "", search.config(draw)[0], "demo", tmp_path, corpus) for draw in ({}, search.base_draw)]
    assert drawn[0].identity == drawn[1].identity
    console = Console(file=io.StringIO(), width=100)
    print_search(search, console)
    assert "optim.duration: 1 to 3, whole numbers (base 1.0)" in console.file.getvalue()


def test_numbers_that_yaml_takes_for_text_are_numbers(write):
    space = {"optim.eps": {"values": ["1e-9", "1e-8"]}, "optim.lr_scale": {"min": "1e-1", "max": "1e0"}}
    search = read(write(space=space))
    assert search.space["optim.eps"].choices == (1e-9, 1e-8)
    assert (search.space["optim.lr_scale"].low, search.space["optim.lr_scale"].high) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "--sampler nope: unknown sampler; did you mean tpe?"),
        (["tpe", "bogus=1"], "bogus"),
        (["tpe", "seed"], "--sampler tpe: seed: must be key=value"),
        (["tpe", "seed=1", "seed=2"], "--sampler tpe seed=1 seed=2: seed must be given once"),
        pytest.param(
            *(["cma-es"], "pip install cmaes"),
            marks=pytest.mark.skipif(bool(find_spec("cmaes")), reason="cmaes is here"),
        ),
    ],
)
def test_an_invalid_sampler_is_refused(words, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        construct(SAMPLERS, words, "--sampler")


@pytest.mark.parametrize("words", [["tpe", "n_startup_trials=abc"], ["tpe", "n_ei_candidates=0"]], ids=" ".join)
def test_an_option_that_fails_at_the_tenth_draw_is_refused_before_the_first(write, words):
    path = write()
    search = read(path)
    with pytest.raises(InputError, match="must have options that Optuna can draw with, but"):
        try_out(search, construct(SAMPLERS, words, "--sampler"), None)


@pytest.mark.parametrize(
    ("keys", "first_and_factor"),
    [({"min_iter": 2, "eta": 2}, (2, 2)), ({"max_iter": 27, "s": 2, "eta": 3}, (3, 3))],
    ids=str,
)
def test_early_terminate_is_read_as_wandb_does(write, keys, first_and_factor):
    """The first validation after which a trial may end, and the factor to the next."""
    path = write(early_terminate={"type": "hyperband"} | keys)
    search = read(path)
    assert search.early == first_and_factor


# ---------------------------------------------------------------------------------------------------------------------
# The study


def test_a_search_ends_at_run_cap_and_resumes_when_it_is_raised(write, tmp_path):
    """The base comes first; an invalid config is infeasible; no trial is trained twice, by `train` or by a search."""
    runs, path = tmp_path / "runs", write(run_cap=3, space=SPACE | {"model.h": {"values": [3, 8]}}, fixed=SMALLER)
    finished = command(
        *("train", "--runs", runs, *(f"--{key}={value}" for key, value in (SMALL | SMALLER).items())),
        WANDB_MODE="disabled",
    )
    assert finished.returncode == 0, finished.stderr
    finished = command("sweep", path, "--runs", runs, WANDB_MODE="disabled")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "optuna-dashboard" in finished.stdout and "#0 base" in finished.stdout and "3 of 3 trials" in finished.stdout
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


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])  # 65 s
def test_a_stopped_search_resumes_its_trials(write, tmp_path, signum):
    """No process is left and no trial is lost: each is drawn again and resumes from its checkpoint."""
    runs = tmp_path / "runs"
    path = write(run_cap=2, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, fixed={"optim.max_steps": 200})
    words = ["sweep", path, "--runs", runs]
    with (tmp_path / "out").open("w") as out, running(*words, output=out, WANDB_MODE="disabled") as process:
        wait_for(lambda: len(list(runs.glob("trials/*/checkpoints/last.ckpt"))) == 2, 90)
        folders = {path.name for path in (runs / "trials").iterdir()}
        os.kill(process.pid, signum)
        assert process.wait(20) in (143, -9)
        wait_for(lambda: not any(trial.locked() for trial in map(Trial, (runs / "trials").iterdir())), 15)
    finished = command("sweep", path, "--runs", runs, WANDB_MODE="disabled")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    folder = runs / "sweeps" / "try@demo"
    assert sweep_plan(folder).trials
    study = study_of(runs)
    assert [t.state for t in counted_trials(study)] == [TrialState.COMPLETE] * 2
    assert not study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    assert {path.name for path in (runs / "trials").iterdir()} == folders
    records = SearchResults(read(path), study, runs).records
    assert sorted(record["trial"] for record in records) == [0, 1], "each keeps its number"
    assert max(trial.number for trial in study.get_trials()) > 1
    planned = command("sweep", path, "--runs", runs, "--plan").stdout.splitlines()
    assert [line.split()[0] for line in planned if line.endswith(": done")] == ["#0", "#1"]
    assert not any("to train" in line for line in planned)
    refused = command("sweep", path, "--runs", runs, "--plan", "--storage", "postgresql://nobody@127.0.0.1:1/none")
    assert refused.returncode == 2 and "--storage postgresql://nobody@127.0.0.1:1/none" in refused.stderr
    for result in finished_results(runs):
        steps = [json.loads(line)["step"] for line in (result["folder"] / "metrics.jsonl").read_text().splitlines()]
        assert result["steps"] == 200 and steps == sorted(steps)


class PruneAlways(optuna.pruners.BasePruner):
    """Ends every trial at its first validation, except the base, which is never pruned."""

    def prune(self, study, trial):
        return True


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])  # 32 s
def test_a_pruned_trial_keeps_its_curve_and_leaves_no_process(write, tmp_path, monkeypatch, devices):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    steps = {"optim.max_steps": 200, "trainer.val_every": 20, "trainer.accelerator": "cpu", "trainer.devices": devices}
    path = write(run_cap=2, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, fixed=steps)
    runs, folder = tmp_path / "runs", tmp_path / "runs" / "sweeps" / "try@demo"
    search = read(path)
    folder.mkdir(parents=True)
    prepare(search.base.data, runs)
    study = create_study(search, folder, None, optuna.samplers.RandomSampler(), PruneAlways())
    queue = SearchQueue(search, study, runs)
    launcher = LocalLauncher(parallel=1)
    launcher.allot(search.trainers(), 2, is_search=True)
    launcher.server = TrialServer()
    with ProgressView(Console(), [], 0, 1, queue.estimates) as view:
        launch(queue, lambda planned: queue.argv(planned, runs), launcher, view)
    base, pruned = study_of(runs).get_trials()
    assert (base.state, pruned.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    kept = runs / "trials" / pruned.user_attrs["folder"]
    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    curve = [line["val/ppl"] for line in lines if "val/ppl" in line]
    assert curve[: len(pruned.intermediate_values)] == list(pruned.intermediate_values.values()) and len(curve) < 10
    assert not (kept / "result.json").exists() and not (kept / "checkpoints").exists()
    assert not any("transformer_pl.train" in p.command and str(runs) in p.command for p in processes())
    assert [record["state"] for record in SearchResults(search, study, runs).records] == ["best", "pruned"]
    console = Console(file=io.StringIO(), width=200)
    list_runs(runs, console)
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith(kept.name)]
    assert line.split()[1] == "pruned"


def test_a_search_continues_after_a_diverged_trial(write, tmp_path):
    """Of four learning rates only the base's is stable, so that the other trial diverges."""
    rates = {"optim.lr_scale": {"values": [0.35, 1e30, 2e30, 3e30]}}
    path, runs = write(run_cap=2, space=rates, fixed=SMALLER), tmp_path / "runs"
    words = [path, "--runs", runs, "--sampler", "random", "seed=1"]
    finished = command("sweep", *words, WANDB_MODE="disabled")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    base, diverged = counted_trials(study_of(runs))
    (result,) = finished_results(runs)
    assert (base.state, base.value) == (TrialState.COMPLETE, result["metrics"]["val/ppl"])
    assert (diverged.state, diverged.value) == (TrialState.COMPLETE, float("inf"))
    step = diverged.user_attrs["diverged"]
    assert f"diverged at step {step}" in finished.stdout and "2 of 2 trials: 1 best, 1 diverged" in finished.stdout
    (row,) = [line for line in finished.stdout.splitlines() if line.startswith(f"#{diverged.number} ")]
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
def test_a_diverged_trial_is_the_worst_in_every_goal_and_never_the_best(write, tmp_path, goals, sampler):
    """Even if it is the cheapest. A trial that had diverged before it was drawn is not trained again."""
    metrics = [{"name": name, "goal": direction} for name, direction in goals]
    engine = {"method": "custom", "scheduler": {"engine": "optuna"}, "metric": None, "metrics": metrics}
    path, runs = write(run_cap=6, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, **engine), tmp_path / "runs"
    search = read(path)
    folder = runs / "sweeps" / "try@demo"
    folder.mkdir(parents=True)
    study = create_study(
        search, folder, None, construct(SAMPLERS, [sampler, "seed=1", "n_startup_trials=4"], "--sampler"), None
    )
    queue, endings = SearchQueue(search, study, runs), ["diverged", "done", "failed", "diverged"]
    for index, ending in enumerate(endings):
        planned = queue.next(set())
        planned.trial.folder.mkdir(parents=True)
        if ending == "done":
            metrics = {"val/ppl": 9.0, "val/bleu": 1.0}
            planned.trial.finish(a_result(metrics=metrics))
        elif ending == "diverged":
            planned.trial.set_status("diverged", step=index + 1)
        queue.ended(planned, ending)
        assert queue.counts() == (6, index + 1, 6 - (index + 1))
    before = plan_trial(
        9, "", search.config({"model.p_drop": 0.25})[0], search.scale, runs, open_corpus(search.base.data)
    )
    before.trial.folder.mkdir(parents=True)
    before.trial.set_status("diverged", step=7)
    study.enqueue_trial({"model.p_drop": 0.25})
    queue.next(set())  # ends that trial, and draws another
    assert queue.counts() == (6, 5, 0)
    trials = study.get_trials()
    assert [t.user_attrs.get("diverged") for t in trials[:5]] == [1, None, None, 4, 7]
    worst = [float("inf") if direction == "minimize" else -float("inf") for _, direction in goals]
    assert all(t.values == worst for t in trials if "diverged" in t.user_attrs)
    states = [record["state"] for record in SearchResults(search, study, runs).records]
    assert states == ["best", *["diverged"] * 3, "failed", "running"]
    SearchQueue(search, study, runs)  # the next command: the failed trial is retried, and no other
    (retry,) = study.get_trials(states=(TrialState.WAITING,))
    assert retry.user_attrs["again"] == 2


def test_two_goals_have_a_pareto_front(write, tmp_path):
    goals = [{"name": "val/bleu", "goal": "maximize"}, {"name": "flops", "goal": "minimize"}]
    space = {
        "model.N": {"values": [2, 6]},
        "model.d_ff": {"min": 1024, "max": 2048, "q": 1024, "distribution": "q_uniform"},
    }
    path = write(space=space, metric=None, metrics=goals, method="custom", scheduler={"engine": "optuna"})
    finished = command("sweep", path, "--runs", tmp_path / "runs", "--sampler", "nsga-ii", WANDB_MODE="disabled")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    trials = [t for t in study_of(tmp_path / "runs").get_trials() if t.values]
    least = min(trials, key=lambda trial: trial.values[1])
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith(f"#{least.number} ")]
    assert "best" in line


def test_a_storage_that_does_not_answer_leaves_nothing_behind(write, tmp_path):
    with pytest.raises(InputError, match="must be a database that answers"):
        sweep.main([str(write()), f"--storage=sqlite:///{tmp_path}/nosuch/study.db", f"--runs={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs" / "sweeps").exists()
