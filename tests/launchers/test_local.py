"""How --devices and --per-device divide a machine among trials."""

import os
from contextlib import closing

import pytest
from experiments.test_launch import launcher, planned_trials

from transformer_pl.launchers import local, workers
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime import machine as machine_
from transformer_pl.runtime.errors import InputError


@pytest.fixture
def machine(monkeypatch):
    """A machine with eight cores and so many GPUs."""

    def has(gpu_count):
        monkeypatch.setattr(workers, "gpus", lambda: [str(number) for number in range(gpu_count)])
        monkeypatch.setattr(workers, "cpu_cores", lambda: list(range(8)))

    return has


def trainer(**keys):
    return resolve([Level("test", {f"trainer.{key}": value for key, value in keys.items()})]).trainer


@pytest.mark.parametrize(
    ("devices", "per_device", "parallel", "each", "gpus", "cores"),
    [
        (2, None, None, 1, ["0", "1"], []),
        (2, None, None, 2, ["0,1"], []),
        (None, 2, None, 1, ["0", "1", "2", "3"] * 2, [[core] for core in range(8)]),
        (2, 2, None, 1, ["0", "1", "0", "1"], [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (1, 4, 2, 1, ["0", "0"], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (None, 2, None, 2, ["0,1", "2,3", "0,1", "2,3"], [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ],
)
def test_the_gpus_of_a_machine_are_limited_and_shared(machine, devices, per_device, parallel, each, gpus, cores):
    machine(4)
    found = workers.available_workers(parallel, [trainer(devices=each)], 9, devices, per_device)
    assert (found.gpus, found.cores, found.count) == (gpus, cores, len(gpus))
    assert found.threads == max(1, 8 // (len(gpus) * each))


def test_without_a_gpu_the_devices_are_cores_that_trials_are_pinned_to(machine):
    machine(0)
    found = workers.available_workers(None, [trainer()], 9, devices=3)
    assert found == workers.Workers(3, 1, [], [[0], [1], [2]])
    assert "3 at a time, each on 1 CPU core, with 1 thread" in found.describe([], 9)
    found = workers.available_workers(1, [trainer()], 9, devices=3)
    assert found == workers.Workers(1, 3, [], [[0, 1, 2]]) and "each on 3 CPU cores" in found.describe([], 9)
    found = workers.available_workers(4, [trainer()], 9, devices=2)
    assert found.cores == [[0], [1], [0], [1]] and "each on a CPU core that it shares" in found.describe([], 9)


def test_no_more_trials_run_at_once_than_there_are(machine):
    machine(0)
    found = workers.available_workers(10**12, [trainer()], 2)
    assert (found.count, found.threads) == (2, 4)


def test_a_sweep_in_a_task_of_slurm_s_starts_no_trial_of_several_machines(machine, monkeypatch):
    machine(0)
    monkeypatch.setenv("SLURM_NTASKS", "2")  # of the sweep: its trials do not get it
    with pytest.raises(InputError, match=r"trainer\.num_nodes = 2: needs a launcher"):
        workers.check_machine([trainer(num_nodes=2, strategy="ddp")])


def test_a_system_that_pins_no_process_has_all_its_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")  # as macOS
    assert machine_.cpu_cores() == list(range(os.cpu_count()))


@pytest.mark.parametrize(
    ("gpu_count", "devices", "per_device", "keys", "message"),
    [
        (2, 3, None, {}, "--devices 3: must be at most what this machine has, 2 GPUs"),
        (2, 9, None, {"accelerator": "cpu"}, "--devices 9: must be at most what this machine has, 8 CPU cores"),
        (4, 1, None, {"devices": 2}, "--devices 1: must be at least what one trial needs, trainer.devices = 2"),
        (0, None, 2, {}, "--per-device 2: shares a GPU among trials, but these are trained on CPU cores here"),
    ],
)
def test_what_a_machine_lacks_is_refused(machine, gpu_count, devices, per_device, keys, message):
    machine(gpu_count)
    with pytest.raises(InputError) as refused:
        workers.check_machine([trainer(**keys)], devices, per_device)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("forked", [True, False])
def test_a_trial_is_pinned_to_its_cores(tmp_path, forked):
    """Whichever way it is started, before it starts a thread. Here it ends at once, as it has no config."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    here, planned = launcher(workers.Workers(1, 1, [], [cores[1:2]])), planned_trials(tmp_path, {}, {})[0]
    with here.opened(int(forked)), closing(planned.trial.take_lease()) as lease:
        training = here.start(planned, ["--unknown=1"], lease)
        assert os.sched_getaffinity(training.process.pid) == {cores[1]}
        training.process.wait(60)
        assert training.poll() == (False, "with exit code 2")


def test_a_trial_of_a_sweep_that_slurm_started_is_no_task_of_slurm_s(tmp_path, monkeypatch):
    """It would take the rank of the sweep for its own."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")  # of NVIDIA's MPS, which its clients must be told
    planned = planned_trials(tmp_path, {}, {})[0]
    found = local.trial_environment(planned, workers.Workers(1, 1, ["0,1"]), 0)
    assert not any(name.startswith("SLURM_") for name in found)
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1" and found["WANDB_NAME"] == planned.name
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mps"
