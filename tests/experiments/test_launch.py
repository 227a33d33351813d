"""Workers: which share of the machine each trial gets, and how a sweep describes that."""

import json
import os

import pytest
from helpers import ROOT, a_result

from transformer_pl.experiments import launch
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.terminal import counted
from transformer_pl.sweep import argv
from transformer_pl.train import read_argv


def planned_trials(runs, keys, begun):
    """The trials of the smallest sweep. begun: the number of threads that a trial began with, by its index."""
    trials = plan_trials(read_sweep(ROOT / "sweeps" / "smoke.yaml", sets=keys), runs)
    for number, threads in begun.items():
        trials[number].trial.folder.mkdir(parents=True)
        (trials[number].trial.folder / "env.json").write_text(json.dumps({"threads": threads}))
    return trials


@pytest.mark.parametrize(
    ("keys", "begun", "threads"),
    [({}, {}, 3), ({"trainer.threads": "2"}, {}, 2), ({}, {0: 1}, 1), ({"trainer.threads": "2"}, {0: 1}, 2)],
    ids=["its share", "as the config says", "as it began", "as the config says, not as it began"],
)
def test_a_trial_s_threads_are_the_config_s_or_those_it_began_with_or_its_share(
    tmp_path, monkeypatch, keys, begun, threads
):
    started = []
    monkeypatch.setattr(launch.subprocess, "Popen", lambda words, **rest: started.append((words, rest["env"])))
    sweep, planned = read_sweep(ROOT / "sweeps" / "smoke.yaml", sets=keys), planned_trials(tmp_path, keys, begun)[0]
    launch._start_process(planned, argv(sweep, planned, tmp_path, False), launch.Workers(1, 3, []), 0)
    ((words, environment),) = started
    assert environment["OMP_NUM_THREADS"] == str(threads)
    _, (_, (_, keys_given)) = read_argv(words[3:])
    assert keys_given.get("trainer.threads") == keys.get(
        "trainer.threads"
    )  # `train` takes every key for the user's choice


def test_a_finished_trial_that_is_trained_again_gets_its_share_of_threads(tmp_path):
    planned = planned_trials(tmp_path, {}, {0: 1})[0]
    (planned.trial.folder / "result.json").write_text(json.dumps(a_result()))
    assert launch.Workers(1, 3, []).threads_of(planned) == 3


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
    parts = launch.Workers(2, 3, []).describe(planned_trials(tmp_path, keys, begun)).split("; ")
    assert len(parts) == len(words) and parts[0] == f"4 trials to train, 2 at a time, each on {share}, with {words[0]}"
    assert all(part.startswith(word) for part, word in zip(parts[1:], words[1:], strict=True))


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (launch.Workers(8, 1, []), "8 at a time, each on 1 CPU core, with 1 thread"),
        (launch.Workers(2, 4, []), "2 at a time, each on 4 CPU cores, with 4 threads"),
        (launch.Workers(9, 1, []), "9 at a time, each on a CPU core that it shares, with 1 thread"),
        (launch.Workers(2, 4, ["0", "1"]), "2 at a time, each on 1 GPU, with 4 threads"),
        (launch.Workers(2, 2, ["0,1", "2,3"]), "2 at a time, each on 2 GPUs, with 2 threads"),
        (launch.Workers(2, 4, ["0", "0"]), "2 at a time, each on 1 GPU that it shares, with 4 threads"),
    ],
    ids=str,
)
def test_a_sweep_prints_what_its_trials_run_on(monkeypatch, workers, words):
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert workers.describe([], 1) == f"1 trial to train, {words}"


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
    monkeypatch.setattr(launch, "gpus", lambda: ["0", "1", "2", "3"])
    workers = launch.available_workers(parallel, trainers(*keys), 9)
    assert workers.gpus == gpus and workers.count == (parallel or len(gpus))


def test_without_a_gpu_each_worker_gets_its_share_of_cores(monkeypatch):
    monkeypatch.setattr(launch, "gpus", lambda: [])
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert launch.available_workers(None, trainers({}), 9) == launch.Workers(8, 1, [])
    assert launch.available_workers(None, trainers({}, {"devices": 2}), 9) == launch.Workers(4, 1, [])
    assert launch.available_workers(2, trainers({"devices": 2}), 9) == launch.Workers(2, 2, [])
    assert launch.available_workers(None, trainers({}), 1) == launch.Workers(1, 8, [])
