"""What a trial's process is told."""

import pytest
from conftest import ROOT

from transformer_pl import launch
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
