"""Sweeps on a real SLURM, of two nodes on this machine. Slow: each trial imports torch, which takes seconds."""

import csv
import json
import os
import pty
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_trials
import torch
import yaml
from forked import running
from helpers import ROOT, little_text, wait_for

from transformer_pl import sweep, train
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.trials.trial import Trial

pytestmark = pytest.mark.slow
RATES = ("tokens_per_s", "wall_s", "energy_j")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """No W&B, no page; and components that are slow, or short of memory."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    folders = [ROOT, ROOT / "tests", ROOT / "tests" / "launchers"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "launchers"))
    monkeypatch.setattr(sweep, "write_page", lambda *of_a_grid: {})
    monkeypatch.chdir(ROOT)


def write_grid(folder: Path, rows: list[str], seeds: list[int], **keys: object) -> Path:
    """A sweep file, with its text and what its trials need beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "text").mkdir()
    little_text(folder / "text", 60, 8, 6)
    fixed = {
        key: {"value": value} for key, value in (tiny_trials.TINY | {"data.path": str(folder / "text")} | keys).items()
    }
    content = {"program": "transformer_pl/train.py", "name": "grid", "method": "grid"}
    content["parameters"] = fixed | {"variant": {"values": rows}, "seed": {"values": seeds}}
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(content))
    (folder / "slurm.yaml").write_text('partition: low\ntime: "10"\n')
    return path


def train_here(path: Path) -> Path:
    """The runs folder in which the same trials are trained without SLURM."""
    runs, found = path.parent / "local", read_sweep(path)
    with tiny_trials.in_a_command():
        for planned in plan_trials(found, runs):
            assert train.main(sweep.argv(found, planned, runs, rerun=False)) == 0
        assert sweep.main([str(path), "--runs", str(runs)]) == 0
    return runs


def words(path: Path, *more: object) -> list[str]:
    runs, file = path.parent / "runs", path.parent / "slurm.yaml"
    return [str(word) for word in (path, "--runs", runs, "--launcher", "slurm", "--slurm", file, *more)]


def run(path: Path, *more: object) -> int:
    with tiny_trials.in_a_command():
        return sweep.main(words(path, *more))


def rows(runs: Path) -> list[dict[str, str]]:
    """The table, without what is measured."""
    (file,) = runs.glob("sweeps/*/results.csv")
    with file.open() as lines:
        return [{key: value for key, value in row.items() if key not in RATES} for row in csv.DictReader(lines)]


def trials(path: Path) -> list[Trial]:
    return [planned.trial for planned in plan_trials(read_sweep(path), path.parent / "runs")]


def tasks(cluster, form: str = "%K %T") -> list[str]:
    return sorted(cluster.run("squeue", "--noheader", "--array", "--states=all", f"--format={form}").splitlines())


def until(fd: int, words: str) -> str:
    """What a terminal was sent, up to these words."""
    sent, deadline = "", time.monotonic() + 60
    while words not in sent:
        assert time.monotonic() < deadline, sent
        if select.select([fd], [], [], 0.1)[0]:
            sent += os.read(fd, 65536).decode()
    return sent


def same_weights(one: Trial, other: Trial) -> bool:
    first, second = (torch.load(trial.folder / "weights.pt") for trial in (one, other))
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_whole_sweep_is_an_array_and_its_table_is_the_local_one(cluster, tmp_path, capsys):
    path = write_grid(tmp_path / "a", ["base", "model.h=4"], [1])
    before = len(tasks(cluster))
    assert run(path, "--plan") == 0
    planned = capsys.readouterr().out
    assert (
        "asks SLURM for at most 2 x 1 core x 0:10:00 = 0.3 core-hours" in planned and "#SBATCH --array=0-1\n" in planned
    )
    assert len(tasks(cluster)) == before and not (tmp_path / "a" / "runs").exists()
    assert run(path) == 0
    assert len(tasks(cluster)) == before + 2
    assert rows(tmp_path / "a" / "runs") == rows(train_here(path))


def test_a_killed_command_attaches_and_nothing_is_submitted_twice(cluster, tmp_path, capsys):
    path = write_grid(tmp_path / "b", ["base"], [1, 2])
    before = len(tasks(cluster))
    with (
        (tmp_path / "said.txt").open("w") as said,
        running("sweep", *words(path, "--parallel", 1), output=said) as first,
    ):
        wait_for(lambda: len(tasks(cluster)) == before + 2 and "0 RUNNING" in tasks(cluster), 120)
        os.kill(first.pid, signal.SIGKILL)
    with tiny_trials.in_a_command():
        assert sweep.main(["--list", "--runs", str(tmp_path / "b" / "runs")]) == 0
    listed = capsys.readouterr().out
    assert " queued " in listed and " running " in listed, listed  # though this one imports torch
    assert run(path, "--plan") == 0
    planned = capsys.readouterr().out
    assert "2 of them queued or running already" in planned and "asks SLURM" not in planned
    assert run(path, "--parallel", 1) == 0
    assert "of them queued or running already" in capsys.readouterr().out
    assert len(tasks(cluster)) == before + 2
    logs = [len(list(trial.folder.glob("log*.txt"))) for trial in trials(path)]
    assert logs == [1, 1] and all(trial.result() for trial in trials(path))


def test_a_stopped_command_leaves_its_jobs_or_cancels_them(cluster, tmp_path, capsys):
    path = write_grid(tmp_path / "s", ["base"], [1, 2])
    asked = (path.parent / "slurm.yaml").read_text()
    (path.parent / "slurm.yaml").write_text('time: "5:00:00"\n')  # more than the partition allows: it never begins
    before = set(tasks(cluster, "%F"))
    with (tmp_path / "said.txt").open("w") as said, running("sweep", *words(path), output=said) as command:
        wait_for(lambda: set(tasks(cluster, "%F")) - before, 120)
        os.kill(command.pid, signal.SIGINT)
        assert command.wait(60) == 130
    (job,) = set(tasks(cluster, "%F")) - before
    assert (
        "left queued or running in SLURM: 2 trials; run the same command again to attach to them; to cancel them: "
        f"scancel {job}" in (tmp_path / "said.txt").read_text()
    )
    assert f"{job} PENDING" in tasks(cluster, "%F %T")
    ours, theirs = pty.openpty()
    with (
        os.fdopen(theirs, "w") as terminal,
        running("sweep", *words(path), output=terminal, terminal=terminal) as again,
    ):
        said = until(ours, "2 waiting, queued by SLURM (PartitionTimeLimit)")
        os.write(ours, b"\x03")
        said += until(ours, "[y/N]")
        os.write(ours, b"y\n")
        assert again.wait(60) == 130
    os.close(ours)
    assert "2 of them queued" in said and "Cancel 2 trials that SLURM has queued or runs?" in said
    assert f"{job} CANCELLED" in tasks(cluster, "%F %T")
    (path.parent / "slurm.yaml").write_text(asked)
    assert run(path) == 0  # it submits them again
    assert len(set(tasks(cluster, "%F")) - before) == 2
    assert "queued again" not in capsys.readouterr().out


def test_a_trial_that_runs_out_of_device_memory_is_submitted_once_more(cluster, tmp_path, capsys):
    """In an array of its own, whatever else runs: each job has devices of its own."""
    hungry = "model.ffn=hungry_ffn.Hungry model.ffn.room=5"
    path = write_grid(tmp_path / "m", [hungry, "base"], [1])
    before = set(tasks(cluster, "%F %K"))
    assert run(path) == 0
    said = capsys.readouterr().out
    assert "out of device memory: tried once more, from the beginning and alone on its device" in said
    assert "with trainer.accumulate=2; the global batch stays" in said and "s1 with 2 for 1" in said
    states = {task: state for task, _, state in (line.rpartition(" ") for line in tasks(cluster, "%F %K %T"))}
    assert sorted(states[task] for task in states.keys() - before) == ["COMPLETED", "COMPLETED", "FAILED"]
    trial = trials(path)[0]
    assert len(list(trial.folder.glob("log*.txt"))) == 2 and trial.environment()["accumulate"] == 2

    asked = train_here(write_grid(tmp_path / "asked", [hungry], [1], **{"trainer.accumulate": 2}))
    assert same_weights(trial, Trial(asked / "trials" / trial.folder.name))


SLOW = {"model.position": "slow_position.Slow", "optim.max_steps": 60, "trainer.val_every": 20}


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Train a slow trial on the cluster and interrupt it: its result is that of an undisturbed one."""

    def check(seconds: float, interrupt: Callable[[Trial], object], limit: str = "10") -> Trial:
        path = write_grid(tmp_path / "grid", ["base"], [1], **SLOW)
        (reference,) = (Trial(folder) for folder in (train_here(path) / "trials").iterdir())
        (path.parent / "slurm.yaml").write_text(f'time: "{limit}"\n')
        monkeypatch.setenv("SLOW", str(seconds))
        (trial,) = trials(path)
        with (tmp_path / "said.txt").open("w") as said, running("sweep", *words(path), output=said) as command:
            wait_for(lambda: len(trial.metrics()) > 5, 180)
            interrupt(trial)
            code = command.wait(400)
        assert code == 0, (tmp_path / "said.txt").read_text()
        assert same_weights(trial, reference) and rows(path.parent / "runs") == rows(path.parent / "local")
        return trial

    return check


def attempts(trial: Trial) -> int:
    return len(list(trial.folder.glob("log*.txt")))


def steps(trial: Trial) -> list[int]:
    return [line["step"] for line in trial.metrics() if "train/loss" in line]


def test_a_preempted_trial_continues_to_the_same_result(cluster, interrupted):
    def preempt(trial):
        cluster.run("sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")

    trial = interrupted(0.2, preempt)
    assert attempts(trial) == 2 and steps(trial) == list(range(1, 61)), "it had saved, and no step was trained twice"


def test_a_trial_continues_after_its_time_limit(cluster, interrupted):
    """SLURM measures the limit in minutes, and its signal may come a minute early."""
    trial = interrupted(2, lambda trial: wait_for(lambda: trial.status()["state"] == "stopped", 180), limit="3")
    assert attempts(trial) >= 2 and steps(trial) == list(range(1, 61))


def test_a_trial_whose_node_dies_continues(cluster, interrupted):
    """From its last validation, on a node that is there."""

    def die(trial):
        wait_for(lambda: trial.metrics()[-1]["step"] > 20, 60)
        (node,) = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()
        cluster.kill_node(node)

    trial = interrupted(0.3, die)
    assert attempts(trial) == 2 and sorted(set(steps(trial))) == list(range(1, 61))


@pytest.mark.exhaustive  # a controller that had not written its state yet ends the job: not every time the same
def test_a_sweep_outlives_the_controller(cluster, interrupted):
    """It is killed, and started again while the trial goes on. It may then requeue the job."""

    def restart(trial):
        time.sleep(10)  # else it forgets the job and ends it
        cluster.end("slurmctld.pid", signal.SIGKILL)
        time.sleep(3)
        cluster.run("slurmctld")

    assert attempts(interrupted(0.6, restart)) <= 2


def test_one_trial_on_two_nodes_is_the_same_without_slurm(cluster, tmp_path):
    both = {"trainer.strategy": "ddp", "trainer.accelerator": "cpu"}
    path = write_grid(tmp_path / "d", ["base"], [1], **both)
    found = {}
    for name, key in (("local", "trainer.devices"), ("runs", "trainer.num_nodes")):
        with (tmp_path / f"{name}.txt").open("w") as said:
            options = words(path, "--set", f"{key}=2")
            options = options if name == "runs" else [str(path), "--runs", str(path.parent / name), *options[-2:]]
            with running("sweep", *options, output=said) as command:
                code = command.wait(240)
        assert code == 0, (tmp_path / f"{name}.txt").read_text()
        (found[name],) = (Trial(folder) for folder in (path.parent / name / "trials").iterdir())
    assert same_weights(*found.values())
    assert json.loads((found["runs"].folder / "result.json").read_text())["config"]["trainer.num_nodes"] == 2
    shutil.rmtree(path.parent)
