"""How a machine is divided among trials, and what each of them gets."""

import json
import os
from dataclasses import replace

import pytest
from helpers import ROOT

from transformer_pl.config.levels import Level, resolve
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import local
from transformer_pl.sweep.local import Workers, divide_machine, end, grace_s
from transformer_pl.sweep.sweep_options import read_options
from transformer_pl.trials.runs_folder import RunsFolder


@pytest.fixture
def machine(monkeypatch):
    """A machine with eight cores and so many GPUs."""

    def has(gpu_count):
        monkeypatch.setattr(local, "gpus", lambda: [str(number) for number in range(gpu_count)])
        monkeypatch.setattr(local, "cpu_cores", lambda: list(range(8)))

    return has


def trainer(**keys):
    return resolve([Level("test", {f"trainer.{key}": value for key, value in keys.items()})]).trainer


@pytest.mark.parametrize(("words", "parallel"), [([], None), (["--parallel=auto"], None), (["--parallel=3"], 3)])
def test_the_machine_decides_how_many_run_at_once_unless_the_command_does(words, parallel):
    assert read_options(["table3_A", *words]).parallel == parallel


OF_TWO = {"devices": 2}
CORES = [[core] for core in range(8)]
SHARES = [  # GPUs of the machine; the trials, --parallel, --devices and --per-device; GPUs and cores of the workers
    (4, [{}], (), ["0", "1", "2", "3"], []),
    (4, [{}], (2,), ["0", "1"], []),
    (4, [{}, OF_TWO], (), ["0,1", "2,3"], []),  # whichever trial it is
    (4, [{"devices": 3}], (2,), ["0,1,2", "3,0,1"], []),
    (4, [{}], (None, 2), ["0", "1"], []),
    (4, [OF_TWO], (None, 2), ["0,1"], []),
    (4, [{}], (None, None, 2), ["0", "1", "2", "3"] * 2, CORES),
    (4, [{}], (2, 1, 4), ["0", "0"], [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (4, [OF_TWO], (None, None, 2), ["0,1", "2,3", "0,1", "2,3"], [[0, 1], [2, 3], [4, 5], [6, 7]]),
    (0, [{}], (None, 3), [], CORES[:3]),
    (0, [{}], (4, 2), [], [[0], [1], [0], [1]]),
]


@pytest.mark.parametrize(("gpu_count", "trainers", "options", "gpus", "cores"), SHARES, ids=str)
def test_each_worker_gets_the_gpus_and_cores_that_its_trials_need(machine, gpu_count, trainers, options, gpus, cores):
    machine(gpu_count)
    found = divide_machine([trainer(**keys) for keys in trainers], 9, *options)
    assert (found.gpus, found.cores, found.count) == (gpus, cores, len(gpus or cores))
    if gpus:
        assert found.threads == max(1, 8 // (len(gpus) * max(keys.get("devices", 1) for keys in trainers)))


def test_without_a_gpu_each_worker_gets_its_share_of_cores(machine):
    machine(0)
    assert divide_machine([trainer()], 9) == Workers(8, 1, [])
    assert divide_machine([trainer(), trainer(devices=2)], 9) == Workers(4, 1, [])
    assert divide_machine([trainer(devices=2)], 9, 2) == Workers(2, 2, [])
    assert divide_machine([trainer()], 1) == Workers(1, 8, [])
    assert divide_machine([trainer()], 2, 10**12) == Workers(2, 4, [])
    assert divide_machine([trainer()], 9, 1, devices=3) == Workers(1, 3, [], [[0, 1, 2]])
    machine(4)
    assert divide_machine([trainer(accelerator="cpu")], 9, 2) == Workers(2, 4, [])


@pytest.mark.parametrize(
    ("gpu_count", "devices", "per_device", "keys", "place"),
    [
        (2, 3, None, {}, "--devices 3"),
        (2, 9, None, {"accelerator": "cpu"}, "--devices 9"),
        (4, 1, None, {"devices": 2}, "trainer.devices = 2"),
        (0, None, 2, {}, "--per-device 2"),
        (0, None, None, {"num_nodes": 2, "strategy": "ddp"}, "trainer.num_nodes = 2"),
    ],
)
def test_what_a_machine_lacks_is_refused(machine, gpu_count, devices, per_device, keys, place):
    machine(gpu_count)
    with pytest.raises(InputError) as refused:
        divide_machine([trainer(**keys)], 9, None, devices, per_device)
    assert place in str(refused.value)


def test_several_processes_have_more_time_to_save():
    """They look for a signal when they log a line."""
    assert grace_s(trainer(devices=2)) == grace_s(trainer(num_nodes=2)) > grace_s(trainer())


SEES = """
import json, os
seen = [dict(os.environ), sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid()]
os.write(1, json.dumps(seen).encode() + b'\\n')
from torch import nn
class Sees(nn.Module):
    def __init__(self, config, site): super().__init__()
"""


def test_a_trial_has_a_session_of_its_own_its_and_its_cores(tmp_path, monkeypatch, module):
    module(SEES)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")  # of NVIDIA's MPS, which its clients must be told
    (planned, *_) = plan_trials(read_sweep(ROOT / "sweeps" / "smoke.yaml"), RunsFolder(tmp_path / "runs"))
    available = sorted(os.sched_getaffinity(0))
    workers = Workers(2, 3, ["2,3", "0,1"], [available, available[-1:]])
    planned = replace(planned, origin=replace(planned.origin, keys={"model.position": "stranger.Sees"}))
    process = workers.start(planned, 1)
    process.join(60)
    assert process.exitcode == 2, planned.folder.log.read_text()  # the component cannot be called
    environment, cores, leads_session = json.loads(planned.folder.log.read_text().splitlines()[0])
    assert cores == available[-1:] and leads_session
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1" and environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mps"
    assert environment["OMP_NUM_THREADS"] == "3" and environment["WANDB_NAME"] == planned.name
    end(process)
