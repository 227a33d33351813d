"""Workers: which share of the machine each trial gets, and how a sweep describes that."""

import json
import os
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
import yaml
from forked import running
from helpers import ROOT, a_result, little_text, wait_for
from tiny_trials import TINY
from transformer_pl.runtime.fork_server import ForkServer

from transformer_pl.experiments import launch
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.experiments.trial_queue import GridQueue
from transformer_pl.launchers import local, workers
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.terminal import counted
from transformer_pl.sweep import argv
from transformer_pl.train import read_argv


def launcher(shares):
    """A launcher on this machine that has divided it so."""
    made = local.LocalLauncher()
    made.workers = shares
    return made


def planned_trials(runs, keys, begun):
    """The trials of the smallest sweep. begun: the number of threads that a trial began with, by its index."""
    trials = plan_trials(read_sweep(ROOT / "sweeps" / "smoke.yaml", sets=keys), runs)
    for number, threads in begun.items():
        trials[number].trial.folder.mkdir(parents=True)
        (trials[number].trial.folder / "env.json").write_text(json.dumps({"threads": threads}))
    return trials


class Told:
    """A view that keeps what it is told."""

    def __init__(self):
        self.waits, self.endings = None, []

    def started(self, planned):
        pass

    def ended(self, planned, ending, description):
        self.endings.append((planned.name, ending, description))

    def refresh(self):
        pass


@pytest.mark.parametrize(
    ("keys", "begun", "threads"),
    [({}, {}, 3), ({"trainer.threads": "2"}, {}, 2), ({}, {0: 1}, 1), ({"trainer.threads": "2"}, {0: 1}, 2)],
    ids=["its share", "as the config says", "as it began", "as the config says, not as it began"],
)
def test_a_trial_s_threads_are_the_config_s_or_those_it_began_with_or_its_share(
    tmp_path, monkeypatch, keys, begun, threads
):
    started = []
    monkeypatch.setattr(local.subprocess, "Popen", lambda words, **rest: started.append((words, rest["env"])))
    sweep, planned = read_sweep(ROOT / "sweeps" / "smoke.yaml", sets=keys), planned_trials(tmp_path, keys, begun)[0]
    words = argv(sweep, planned, tmp_path, False)
    with closing(planned.trial.take_lease()) as lease:
        launcher(workers.Workers(1, 3, [])).start(planned, words, lease)
    ((words, environment),) = started
    assert environment["OMP_NUM_THREADS"] == str(threads)
    _, (_, (_, keys_given)) = read_argv(words[3:])
    assert keys_given.get("trainer.threads") == keys.get(
        "trainer.threads"
    )  # `train` takes every key for the user's choice


def test_a_trial_finds_the_mps_that_its_sweep_would_find(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
    environment = local.trial_environment(planned_trials(tmp_path, {}, {})[0], workers.Workers(2, 1, ["0", "0"]), 1)
    assert (environment["CUDA_MPS_PIPE_DIRECTORY"], environment["CUDA_VISIBLE_DEVICES"]) == ("/tmp/mps", "0")


def test_a_finished_trial_that_is_trained_again_gets_its_share_of_threads(tmp_path):
    planned = planned_trials(tmp_path, {}, {0: 1})[0]
    (planned.trial.folder / "result.json").write_text(json.dumps(a_result()))
    assert workers.Workers(1, 3, []).threads_of(planned) == 3


@pytest.mark.parametrize(
    ("keys", "begun", "words"),
    [
        ({}, {}, ["3 threads"]),
        ({}, {0: 3}, ["3 threads"]),
        ({}, {0: 1, 2: 2}, ["1 or 2 or 3 threads", "2 interrupted: resumed with as many threads as before"]),
        ({"trainer.threads": "2"}, {0: 2}, ["2 threads"]),
        ({"trainer.threads": "2"}, {0: 1, 2: 2}, ["2 threads", "1 interrupted: resumed with trainer.threads"]),
    ],
    ids=str,
)
def test_a_sweep_prints_how_many_threads_its_trials_have(tmp_path, keys, begun, words):
    share = counted(len(os.sched_getaffinity(0)) // 2, "CPU core")
    parts = workers.Workers(2, 3, []).describe(planned_trials(tmp_path, keys, begun)).split("; ")
    assert len(parts) == len(words) and parts[0] == f"4 trials to train, 2 at a time, each on {share}, with {words[0]}"
    assert all(part.startswith(word) for part, word in zip(parts[1:], words[1:], strict=True))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (workers.Workers(8, 1, []), "8 at a time, each on 1 CPU core, with 1 thread"),
        (workers.Workers(2, 4, []), "2 at a time, each on 4 CPU cores, with 4 threads"),
        (workers.Workers(9, 1, []), "9 at a time, each on a CPU core that it shares, with 1 thread"),
        (workers.Workers(2, 4, ["0", "1"]), "2 at a time, each on 1 GPU, with 4 threads"),
        (workers.Workers(2, 2, ["0,1", "2,3"]), "2 at a time, each on 2 GPUs, with 2 threads"),
        (workers.Workers(2, 4, ["0", "0"]), "2 at a time, each on 1 GPU that it shares, with 4 threads"),
    ],
    ids=str,
)
def test_a_sweep_prints_what_its_trials_run_on(monkeypatch, shares, words):
    monkeypatch.setattr(workers, "cpu_cores", lambda: list(range(8)))
    assert shares.describe([], 1) == f"1 trial to train, {words}"


def trainers(*keys):
    return [resolve([Level("test", {f"trainer.{key}": v for key, v in section.items()})]).trainer for section in keys]


@pytest.mark.parametrize(
    ("keys", "parallel", "gpus"),
    [
        ([{}], None, ["0", "1", "2", "3"]),
        ([{}], 2, ["0", "1"]),
        ([{"devices": 2}], None, ["0,1", "2,3"]),
        ([{}, {"devices": 2}], None, ["0,1", "2,3"]),  # whichever trial it is
        ([{"devices": 3}], 2, ["0,1,2", "3,0,1"]),
        ([{"accelerator": "cpu"}], 2, []),
    ],
    ids=str,
)
def test_each_worker_gets_as_many_gpus_as_its_trials_need(monkeypatch, keys, parallel, gpus):
    monkeypatch.setattr(workers, "gpus", lambda: ["0", "1", "2", "3"])
    shares = workers.available_workers(parallel, trainers(*keys), 9)
    assert shares.gpus == gpus and shares.count == (parallel or len(gpus))


def test_without_a_gpu_each_worker_gets_its_share_of_cores(monkeypatch):
    monkeypatch.setattr(workers, "gpus", lambda: [])
    monkeypatch.setattr(workers, "cpu_cores", lambda: list(range(8)))
    assert workers.available_workers(None, trainers({}), 9) == workers.Workers(8, 1, [])
    assert workers.available_workers(None, trainers({}, {"devices": 2}), 9) == workers.Workers(4, 1, [])
    assert workers.available_workers(2, trainers({"devices": 2}), 9) == workers.Workers(2, 2, [])
    assert workers.available_workers(None, trainers({}), 1) == workers.Workers(1, 8, [])


# ---------------------------------------------------------------------------------------------------------------------
# Trials that are forked


def small_grid(folder, more=None):
    """A sweep file of two short trials that differ in their seed."""
    text = folder / "text"
    text.mkdir()
    little_text(text, 60, 8, 6)
    keys = {key: {"value": value} for key, value in (TINY | {"data.path": str(text)} | (more or {})).items()}
    content = {"program": "transformer_pl/train.py", "name": "shared", "method": "grid"}
    content |= {"parameters": keys | {"seed": {"values": [1, 2]}}}
    (folder / "shared.yaml").write_text(yaml.safe_dump(content))
    return folder / "shared.yaml"


def test_a_forked_trial_comes_to_what_a_new_process_comes_to_and_starts_at_once(tmp_path, monkeypatch):
    """Bit for bit, with two threads each: what OpenMP does in a fork is what it does elsewhere."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.delitem(TINY, "trainer.threads")
    sweep, share = read_sweep(small_grid(tmp_path)), workers.Workers(1, 2, [])
    kept, seconds = {}, {}
    for name, count in (("forked", 1), ("new", 0)):
        runs = tmp_path / name
        planned = plan_trials(sweep, runs)[:1]
        words = argv(sweep, planned[0], runs, False)
        here = launcher(share)
        with here.opened(count):
            while here.waits():
                time.sleep(0.02)
            view, began = Told(), time.monotonic()
            launch.launch(GridQueue(planned), lambda one, words=words: words, here, view)
            seconds[name] = time.monotonic() - began
        ((_, ending, description),) = view.endings
        assert ending == "done", description
        folder = planned[0].trial.folder
        environment = json.loads((folder / "env.json").read_text())
        losses = [line["train/loss"] for line in planned[0].trial.metrics() if "train/loss" in line]
        kept[name] = torch.load(folder / "weights.pt"), losses, description, environment["threads"]
    assert all(torch.equal(kept["forked"][0][key], value) for key, value in kept["new"][0].items())
    assert kept["forked"][1:] == kept["new"][1:] and kept["new"][3] == 2
    assert seconds["forked"] < 0.6 * seconds["new"]  # which imports torch and Lightning


@pytest.mark.parametrize(
    ("gpus", "platform", "forks"), [([], "linux", True), (["0"], "linux", False), ([], "darwin", False)]
)
def test_trials_are_forked_on_the_cpus_of_linux(monkeypatch, gpus, platform, forks):
    monkeypatch.setattr(local, "gpus", lambda: gpus)
    monkeypatch.setattr(local.sys, "platform", platform)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    here = local.LocalLauncher()
    with here.opened(1):
        assert bool(here.server) == forks
        if here.server:  # OpenMP reads this when it is loaded
            environment = Path(f"/proc/{here.server._process.pid}/environ")
            wait_for(lambda: b"OMP_WAIT_POLICY=PASSIVE\0" in environment.read_bytes())  # empty while Linux starts it
    for count in (0, -1):  # there is nothing to train, or more than a search may train was trained
        with here.opened(count):
            assert here.server is None


def test_no_trial_is_drawn_before_its_server_is_ready(tmp_path):
    """A search would hold it, and other commands would wait for it."""
    queue, view = GridQueue(planned_trials(tmp_path, {}, {})), Told()
    here = launcher(workers.Workers(1, 1, []))
    with closing(ForkServer("time")) as here.server:  # which Python takes a moment to start
        scheduler = launch._Scheduler(queue, lambda one: [], here, view)
        assert scheduler.fill_free_slots() and view.waits == "importing torch"
        assert len(queue.waiting) == 4 and not scheduler.running


def test_without_its_server_a_sweep_starts_new_processes(tmp_path, monkeypatch):
    """Where the server has failed to import, or was killed."""
    started = []
    planned = planned_trials(tmp_path, {}, {})[0]
    here = launcher(workers.Workers(1, 1, []))
    with here.opened(1), closing(planned.trial.take_lease()) as lease:
        here.server._process.kill()
        here.server._process.wait()
        monkeypatch.setattr(local.subprocess, "Popen", lambda words, **rest: started.append((words, rest)))
        here.start(planned, ["--seed=1"], lease)
        ((words, rest),) = started
        assert words == [sys.executable, "-m", "transformer_pl.train", "--seed=1"]
        assert rest["start_new_session"] and rest["env"]["TRANSFORMER_PL_LEASE"] == lease.given and lease.is_given_away


# ---------------------------------------------------------------------------------------------------------------------
# Several commands on one grid


def test_two_commands_share_a_grid(tmp_path):
    """Started one after the other, as people do, or at once, as a job array does: every trial is trained once."""
    steps = {"optim.max_steps": 150, "trainer.val_every": 75}  # longer than the second takes to plan
    words = ["sweep", small_grid(tmp_path, steps), "--runs", tmp_path / "r", "--parallel", "1"]
    logs = [tmp_path / "first.txt", tmp_path / "second.txt"]
    with ExitStack() as stack:
        commands = []
        for log in logs:
            file = stack.enter_context(log.open("w"))
            commands.append(stack.enter_context(running(*words, output=file, WANDB_MODE="disabled")))
            wait_for(lambda log=log: "to train" in log.read_text())
    outputs = [log.read_text() for log in logs]
    assert [command.returncode for command in commands] == [0, 0], outputs
    trained = ["\n".join(x for x in printed.splitlines() if "] " in x) for printed in outputs]
    assert all(lines.count("val/bleu") == 2 for lines in trained), outputs
    assert sum(lines.count("(by another command)") for lines in trained) == 2, "each trial was trained by one of them"
    tables = [printed[printed.index("BLEU") :] for printed in outputs]
    assert tables[0] == tables[1] and "0/2" not in tables[0]
    assert len(list((tmp_path / "r").glob("trials/*/result.json"))) == 2
    logs = list((tmp_path / "r").glob("trials/*/log*.txt"))
    assert len(logs) == 2 and all(path.read_text().count("\nval/") == 1 for path in logs)  # one line of results
