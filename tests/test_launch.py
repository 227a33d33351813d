"""Where trials run: the share of the machine that each has, and how that is told."""

import pytest
from conftest import ROOT

from transformer_pl import launch
from transformer_pl.config import Level, resolve
from transformer_pl.plan import plan
from transformer_pl.sweep import argv
from transformer_pl.sweepfile import load
from transformer_pl.train import read_argv


@pytest.mark.parametrize(("said", "threads"), [({}, "3"), ({"trainer.threads": "2"}, "2")])
def test_a_trial_has_its_share_of_threads_or_those_that_were_said(tmp_path, monkeypatch, said, threads):
    started = []
    monkeypatch.setattr(launch.subprocess, "Popen", lambda words, **rest: started.append((words, rest["env"])))
    sweep = load(ROOT / "sweeps" / "smoke.yaml", sets=said)
    job = plan(sweep, tmp_path)[0]
    launch._start(job, argv(sweep, job, tmp_path, False), launch.Slots(1, 3, []), 0)
    ((words, environment),) = started
    _, (_, (_, keys)) = read_argv(words[3:])
    assert environment["OMP_NUM_THREADS"] == keys["trainer.threads"] == threads


def trainers(*keys):
    return [resolve([Level("test", {f"trainer.{key}": v for key, v in of_one.items()})]).trainer for of_one in keys]


@pytest.mark.parametrize(
    ("keys", "parallel", "places"),
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
def test_each_place_has_the_gpus_of_its_trials(monkeypatch, keys, parallel, places):
    monkeypatch.setattr(launch, "gpus", lambda: ["0", "1", "2", "3"])
    slots = launch.slots(parallel, trainers(*keys), 9)
    assert slots.gpus == places and slots.count == (parallel or len(places))


def test_without_a_gpu_each_place_has_its_cores(monkeypatch):
    monkeypatch.setattr(launch, "gpus", lambda: [])
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert launch.slots(None, trainers({}), 9) == (8, 1, [])
    assert launch.slots(None, trainers({}, {"devices": 2}), 9) == (4, 1, [])
    assert launch.slots(2, trainers({"devices": 2}), 9) == (2, 2, [])
    assert launch.slots(None, trainers({}), 1) == (1, 8, [])
