"""Rows that begin where other rows have ended: what is planned, and in which order it is trained."""

import csv
import os
import signal
import tempfile
from functools import partial

import forked
import pytest
import torch
import yaml
from helpers import a_result, little_text, wait_for
from tiny_trials import TINY

from transformer_pl.plan.plan import CostEstimate, estimate_costs, plan_trials
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.sweep_rows import Grid, sweep_rows
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import with_trunks
from transformer_pl.trials.trial_folder import STATE, TrialFolder

GOES_ON = "model.start_with=all optim.max_steps=8"


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path, monkeypatch):
    """Sweep files name each other by their names alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture
def grid(tmp_path):
    """Writes a sweep file with these variants; a fixed key is of all rows."""
    text = str(little_text(tmp_path / "text"))

    def write(variants, name="grid", seeds=(1, 2), **keys):
        fixed = TINY | {"data.path": text} | {key.replace("__", "."): value for key, value in keys.items()}
        parameters = {key: {"value": value} for key, value in fixed.items()} | {"seed": {"values": list(seeds)}}
        content = {"name": name, "method": "grid", "parameters": parameters | {"variant": {"values": variants}}}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(content))
        return file

    return write


def planned(file, rerun=False):
    """The trials of a file by row and seed."""
    trials = plan_trials(read_sweep(file), RunsFolder(file.parent / "runs"), rerun=rerun)
    return {(trial.origin.row, trial.config.seed): trial for trial in trials}


# ---------------------------------------------------------------------------------------------------------------------
# What is planned


def test_a_start_is_of_the_identity_by_its_weights_alone(grid):
    variants = ["base", "decode.beam=2", "optim.lr_scale=0.5"]

    def weights_of(start):
        trials = planned(grid([*variants, f"model.start={start}"]))
        return {of: trial.identity.weights for of, trial in trials.items()}

    weights = weights_of("base")
    assert len({*weights.values()}) == 2 * 3
    for other, same in (("beam=2", True), ("lr_scale=0.5", False)):
        assert (weights_of(other)[f"start={other}", 1] == weights["start=base", 1]) == same


def test_the_rows_of_other_files_that_a_row_starts_from_are_planned_as_there(grid):
    """Over several files. A state that others go on from is kept, which makes no other trial."""
    first = grid(["base", "model.h=4"], "a", looks="2 3", seeds=(1, 2, 3))  # its looks and seeds are its own
    second = grid(["model.start=a.yaml:h=4", f"model.start=start=a.yaml:h=4 {GOES_ON}"], "b", optim__warmup=3)
    named = "start=start=a.yaml:h=4 start_with=all max_steps=8"
    start = f"start=b.yaml:{named.replace(' ', '+')}"
    third = grid(["base", f"model.{start}", "model.start=a.yaml:h=4"], "c")
    trials = planned(third)
    for seed in (1, 2):
        chain = [trials[start, seed]]
        while chain[-1].trunk:
            chain.append(chain[-1].trunk)
        _, *trunks = chain
        there = [planned(second)[named, seed], planned(second)["start=a.yaml:h=4", seed], planned(first)["h=4", seed]]
        assert [trial.id for trial in trunks] == [trial.id for trial in there]
        assert [trial.config.trainer.keep_state for trial in trunks] == ["off", "on", "off"]
        assert trials["start=a.yaml:h=4", seed].trunk is trunks[-1]
    before = with_trunks([*trials.values()])[len(trials) :]
    assert len(before) == len({trial.id for trial in before}) == 2 * 3


def test_rows_may_start_from_files_that_start_from_their_own(grid):
    grid(["base", "model.start=a.yaml:base"], "b")
    trials = planned(grid(["base", "model.start=b.yaml:start=a.yaml:base"], "a"))
    assert trials["start=b.yaml:start=a.yaml:base", 2].trunk.start.id == trials["base", 2].id


def test_a_row_is_named_by_words_that_no_other_row_has_together(grid):
    variants = ["base", "model.h=4", "model.h=4 optim.eps_ls=0.2 model.start=base", "model.h=4 optim.lr_scale=1e30"]
    names = [row.name for row in read_sweep(grid(variants)).rows]
    for start, place in {
        "base": 0,
        "h=4": 1,
        "eps_ls=0.2": 2,
        "eps_ls=0.2+h=4": 2,
        "start=base+eps_ls=0.2": 2,
        "lr_scale=1e+30+h=4": 3,
    }.items():
        trials = planned(grid([*variants, f"model.start={start}"]))
        assert trials[f"start={start}", 1].trunk.id == trials[names[place], 1].id


@pytest.mark.parametrize(
    ("variants", "named"),
    [
        (["base", "model.start=bas"], "base"),
        (["base", "model.h=4 model.start=h=4+start=base"], "h=4"),
        (["base", "model.h=4", "model.start=model.h=4"], "model.h=4"),
        (["base", "model.h=4 optim.eps_ls=0", "model.h=4 optim.eps_ls=0.2", "model.start=h=4"], "h=4"),
        (["base", "model.start=other.yaml:base"], "other.yaml"),
        (["base", "model.start=a.yaml:bas"], "base"),
    ],
)
def test_a_row_that_starts_from_no_row_is_refused(grid, variants, named):
    grid(["base"], "a")
    with pytest.raises(InputError, match=named):
        planned(grid(variants))


@pytest.mark.parametrize("starts", [("base",), ("b.yaml:base", "grid.yaml:base"), ("b.yaml:base", "b.yaml:base")])
def test_rows_that_start_from_themselves_are_refused(grid, starts):
    first, *others = starts
    for start in others:
        grid(["base"], "b", model__start=start)
    with pytest.raises(InputError, match="itself"):
        planned(grid(["base", "model.h=4"], model__start=first))


def test_a_search_for_each_row_is_refused_where_rows_start_from_others(grid):
    with pytest.raises(InputError, match="start=base"):
        plan_retuning(read_sweep(grid(["base", "model.start=base"])), ["optim.lr_scale"], 3, None)


# ---------------------------------------------------------------------------------------------------------------------
# What is given out


def queue_of(trials):
    return GridQueue(trials, {one.place: CostEstimate(Cost(1, 1.0 + one.place), None) for one in trials})


def finish(trial, **keys):
    trial.folder.make()
    trial.folder.finish(a_result(id=trial.id, weights_id=trial.identity.weights, **keys))


@pytest.mark.parametrize("rerun", [False, True])
def test_a_trial_is_given_out_when_its_start_has_been_trained(grid, rerun):
    """Also where that is trained again and still has its old result."""
    file = grid(["base", "model.start=base", "model.h=4"], seeds=(1,))
    trials = planned(file, rerun)
    base, branch, heads = trials.values()
    if rerun:
        for trial in trials.values():
            finish(trial)
    queue = queue_of([*trials.values()])
    assert queue.next(set()) is base and queue.next(set()) is heads and queue.next(set()) is None
    assert not queue.stranded()
    finish(base)
    queue.ended(base, "done")
    assert queue.next(set()) is branch


@pytest.mark.parametrize("outcome", ["failed", "diverged"])
def test_a_trial_whose_start_ends_without_weights_is_not_trained_and_not_waited_for(grid, outcome):
    file = grid(["base", "model.start=base", "model.start=start=base optim.lr_scale=2", "model.h=4"], seeds=(1,))
    base, branch, further, heads = planned(file).values()
    queue = queue_of([base, branch, further, heads])
    assert queue.next(set()) is base and not queue.stranded()
    base.folder.make()
    base.folder.set_status(outcome, step=1)
    queue.ended(base, outcome)
    assert queue.stranded() == [branch, further]
    assert queue.next(set()) is heads and queue.next(set()) is None and queue.waits() is None


def test_of_trials_that_share_weights_the_one_that_keeps_its_state_is_trained(grid):
    """Else it would be trained once more. A finished one that has not kept it is no help."""
    file = grid(["decode.beam=2", "base", f"model.start=base {GOES_ON}"], seeds=(1,))
    beam, base, _ = trials = [*planned(file).values()]
    assert beam.identity.weights == base.identity.weights
    assert queue_of(trials).next(set()) is base
    finish(beam)
    (beam.folder.path / "weights.safetensors").touch()
    (beam.folder.path / "metrics.jsonl").touch()
    assert not base.can_use(beam.folder)
    (beam.folder.path / STATE).touch()
    assert base.can_use(beam.folder)


def test_the_cost_of_a_trial_that_goes_on_is_that_of_its_own_steps(grid):
    """Also by one that stopped early, whose result has the FLOPs of its own steps alone."""
    trials = planned(grid(["base", f"model.start=base {GOES_ON}"]))
    bases, (first, second) = ([one for one in trials.values() if bool(one.start) == starts] for starts in (False, True))
    for base in bases:
        finish(base, steps=4)
    finish(first, steps=6, flops=3e9)
    assert estimate_costs([first, second], [])[second.place].cost.flops == pytest.approx(2 * 3e9)


# ---------------------------------------------------------------------------------------------------------------------
# What commands train

COUNTED = """
import os
import time

from torch import nn


class Counted(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        self.site = site

    def forward(self, x, start=0):
        if self.site == "encoder" and self.training and x.requires_grad and "TRANSFORMER_PL_TRIAL" in os.environ:
            with open(os.environ["COUNTS"], "a") as file:
                file.write(os.environ["TRANSFORMER_PL_TRIAL"] + "\\n")
            time.sleep(0.25)
        return x
"""


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """Tells how many steps a trial was trained whose rows have `model.position=counted.Counted`."""
    (tmp_path / "counted.py").write_text(COUNTED)
    monkeypatch.setenv("COUNTS", str(tmp_path / "counts"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda trial: (tmp_path / "counts").read_text().split().count(trial.id)


def sweep(file, *words, runs="runs", code=0):
    done = forked.command("sweep", file, "--runs", file.parent / runs, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/result.json")}


@pytest.mark.slow
def test_the_starts_of_rows_are_trained_by_their_command_and_stand_in_its_plan_once(grid, tmp_path):
    runs = tmp_path / "runs"
    other = grid(["base", "model.h=4", "model.start=base optim.lr_scale=0.5"], "a", seeds=(9,))
    rows = [f"model.start={other}:h=4 {GOES_ON}", "base", f"model.start={other}:start=base+lr_scale=0.5"]
    file = grid([*rows, f"model.start=base {GOES_ON}"], seeds=(1,))
    trials = with_trunks([*planned(file).values()])
    assert len(trials) == 6  # the base of both files is one trial
    lines = sweep(file, "--plan").splitlines()
    for title in (f"{other}:h=4", f"{other}:start=base lr_scale=0.5", "base"):
        assert len([line for line in lines if line.startswith(f"{title} ") and line.endswith("1 new ")]) == 1
    sweep(file)
    assert {trial.folder.id for trial in trials} == {path.parent.name[-12:] for path in times(runs)}
    for trial in trials:
        steps = [line["step"] for line in trial.folder.metrics() if "train/loss" in line]
        assert steps == [*range(1 + trial.begins_after(), 1 + trial.config.steps)]
        assert (trial.folder.path / STATE).exists() == trial.keeps_state
        assert trial.folder.result().config["model.start"] == (trial.start and trial.start.id)
    assert sum(trial.keeps_state for trial in trials) == 2
    before = times(runs)
    sweep(file)
    assert times(runs) == before

    # Two seeds that begin with one trial, and two that begin with a trial each
    base = planned(file)["base", 1]
    file = grid(["base", f"model.start={base.id}", "model.start=base"], "b")
    sweep(file)
    sweep_of_ids = read_sweep(file)
    made = sweep_rows(Grid(sweep_of_ids, [*planned(file).values()]), Grid(sweep_of_ids, []).task.measure)
    assert [row.trunks for row in made] == [frozenset(), {base.folder.weights_id}, frozenset()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGKILL, signal.SIGTERM), (signal.SIGKILL, signal.SIGTERM)]
)
def test_trunks_and_branches_that_are_interrupted_end_as_if_they_were_not(grid, counts, tmp_path, signals):
    keys = {"model__position": "counted.Counted", "optim__max_steps": 20, "trainer__checkpoint_minutes": 0}
    rows = ["base", "model.start=base model.start_with=all optim.max_steps=40", "model.start=base"]
    file, words = grid(rows[: len(signals)], seeds=(1,), **keys), ["--parallel", "1"]
    sweep(file, *words, runs="whole")
    trials, whole = planned(file), plan_trials(read_sweep(file), RunsFolder(tmp_path / "whole"))
    for trial, signum in zip(trials.values(), signals, strict=True):
        begin = partial(forked.running, "sweep", file, "--runs", tmp_path / "runs", *words)
        with tempfile.TemporaryFile() as out, begin(output=out) as command:
            wait_for(lambda: len(trial.folder.metrics()) > 3, 280)  # noqa: B023
            pids = [command.pid, *([trial.folder.status()["pid"]] if signum == signal.SIGKILL else [])]
            for pid in pids:
                os.kill(pid, signum)
            assert command.wait(60) in (143, -9)
        assert trial.folder.result() is None
    sweep(file, *words)
    for trial, expected in zip(trials.values(), whole, strict=True):
        weights = trial.folder.weights()
        assert all(torch.equal(value, weights[name]) for name, value in expected.folder.weights().items())


@pytest.mark.slow
def test_commands_that_start_together_train_each_trial_once(grid, counts, tmp_path):
    """The steps are fewer than those of two trainings; a few are of the counting of FLOPs."""
    keys = {"model__position": "counted.Counted", "optim__max_steps": 16}
    other = grid(["base"], "a", **keys)
    rows = ["model.h=4", "model.start=h=4 optim.lr_scale=0.5", f"model.start={other}:base"]
    goes_on = "model.start=h=4 model.start_with=all optim.max_steps=32"
    file = grid([*rows, goes_on], seeds=(1,), **keys)
    trials = with_trunks([*planned(file).values()])
    with tempfile.TemporaryFile() as out:
        commands = [forked.start("sweep", file, "--runs", tmp_path / "runs", output=out) for _ in range(2)]
        codes = [command.wait(280) for command in commands]
        assert codes == [0, 0], out.seek(0) or out.read().decode()
    for trial in trials:
        steps = trial.config.steps - trial.begins_after()
        assert steps <= counts(trial) < 2 * steps


@pytest.mark.slow
def test_rows_whose_start_diverges_are_never_done(grid, tmp_path):
    other = grid(["optim.lr_scale=1e30"], "a")
    first = f"model.start={other}:lr_scale=1e+30"
    rows = ["base", first, f"{first.replace('model.', 'model.start=')} optim.lr_scale=0.5"]
    file = grid(rows, seeds=(1,))
    base, *others = planned(file).values()
    for _ in range(2):
        sweep(file, code=1)
        assert base.folder.state() == "done" and [trial.folder.state() for trial in others] == ["new", "new"]
        assert others[0].start.diverged_at()
        with (tmp_path / "runs" / "sweeps" / "grid@demo" / "results.csv").open() as table:
            assert [bool(line["val/loss.mean"]) for line in csv.DictReader(table)] == [True, False, False]


@pytest.mark.slow
def test_a_variant_of_a_search_begins_with_a_trial(grid, tmp_path):
    trunk = planned(file := grid(["base"], seeds=(1,)))["base", 1]
    sweep(file)
    content = yaml.safe_load(file.read_text())
    content |= {"name": "try", "method": "random", "run_cap": 4, "metric": {"name": "val/loss", "goal": "minimize"}}
    content["parameters"]["seed"] = {"value": 2}
    for start, code in ((trunk.id, 0), ("base", 2)):
        content["parameters"]["variant"] = {"values": ["base", f"model.start={start}"]}
        (tmp_path / "try.yaml").write_text(yaml.safe_dump(content))
        sweep(tmp_path / "try.yaml", "--sampler", "random", "seed=1", "--parallel", "1", code=code)
        results = [TrialFolder(path.parent).result() for path in times(tmp_path / "runs")]
        assert {tuple(result.starts) for result in results} >= {(), (trunk.folder.weights_id,)}
