"""What this machine can train on, and what is refused because it cannot."""

import itertools
import os
import platform
import sys
from contextlib import nullcontext
from unittest import mock

import lightning as L
import pynvml
import pytest
import tiny_trials
import torch
from helpers import command, little_text, write_sweep

from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime import machine
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import devices, fit

NAMES = [None, "", "0", "1", "0,1", "1,0", "3,0", "-1", "0,-1,1", "1,2,7", "GPU-8d2a,GPU-11aa", "MIG-1", "none"]
NAMES += ["0, 1", " 1 "]


def config(**keys):
    return resolve([Level("test", {f"trainer.{key}": value for key, value in keys.items()})])


def test_the_gpus_that_are_visible_are_those_that_torch_sees(monkeypatch):
    for names, count in itertools.product(NAMES, (0, 1, 2, 8)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if names is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        seen = torch.cuda._parse_visible_devices()
        expected = [str(n) for n in itertools.takewhile(lambda n, count=count: isinstance(n, str) or n < count, seen)]
        assert machine.visible(count, names) == (expected if count else []), (names, count)


def test_gpus_are_counted_as_torch_counts_them():
    """Of the machine that runs the tests: mostly none."""
    assert len(machine.gpus()) == torch.cuda.device_count()


LIMITS = [  # what the control groups of both versions say, and how many cores that is
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "350000 100000", "sys/fs/cgroup/cpu.max": "max 9"}, 4),
    ({"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}, 2),
]


@pytest.mark.parametrize(("files", "cores"), LIMITS)
def test_a_container_has_as_many_cores_as_it_has_time_for(tmp_path, files, cores):
    for name, content in ({"proc/self/cgroup": "3:cpuset:/x\n2:cpuacct,cpu:/a\n0::/\n"} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert machine.cpu_limit(tmp_path) == cores
    assert machine.cpu_limit(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("keys", "gpus", "expected"),
    [
        ({}, 0, "cpu"),
        ({}, 1, "cuda"),
        ({"accelerator": "cpu"}, 1, "cpu"),
        ({"accelerator": "gpu"}, 1, "cuda"),
        ({"devices": 8, "accelerator": "cpu"}, 1, "cpu"),
    ],
    ids=str,
)
def test_a_trial_is_trained_on_gpus_where_there_are_some(keys, gpus, expected):
    assert devices.accelerator(config(**keys).trainer, gpus) == expected


@pytest.mark.parametrize(
    ("keys", "gpus", "named"),
    [
        (
            {"accelerator": "gpu", "precision": "16-mixed"},
            0,
            ["trainer.accelerator = gpu", "trainer.precision = 16-mixed"],
        ),
        ({"devices": 8}, 2, ["trainer.devices = 8"]),
    ],
    ids=str,
)
def test_what_the_machine_cannot_do_is_refused(keys, gpus, named):
    with pytest.raises(InputError) as refused:
        devices.accelerator(config(**keys).trainer, gpus)
    assert len(refused.value.messages) == len(named)
    assert all(key in message for key, message in zip(named, refused.value.messages, strict=True))


@pytest.mark.parametrize(("majors", "enough"), [([7, 6], False), ([7, 9], True), ([], True)])
def test_bfloat16_needs_a_gpu_that_has_it(monkeypatch, majors, enough):
    """A T4's capability is 7.5."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(majors))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda gpu: (majors[gpu], 5))
    monkeypatch.setattr(machine, "version", lambda package: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = len(machine.gpus())
    assert gpus == len(majors)
    for precision, fits in (("32-true", True), ("16-mixed", gpus), ("bf16-mixed", enough), ("bf16-master", enough)):
        with nullcontext() if fits else pytest.raises(InputError, match=f"trainer.precision = {precision}"):
            assert devices.accelerator(config(precision=precision).trainer, gpus) == ("cuda" if gpus else "cpu")
    assert devices.accelerator(config(precision="bf16-mixed", accelerator="cpu").trainer, gpus) == "cpu"


@pytest.mark.parametrize(
    ("cpu_info", "is_slow"),
    [
        ("processor : 0\nflags\t\t: fpu sse2 avx avx2 fma\nbugs\t: spectre_v1\n", True),
        ("flags\t\t: avx avx2 avx512f avx512bw\n", False),
        ("flags\t\t: avx avx2 avx_ne_convert\n", False),
        ("Features\t: fp asimd bf16\n", False),  # of ARM
        (None, False),
    ],
)
def test_a_processor_that_emulates_bfloat16_is_named(tmp_path, monkeypatch, capsys, cpu_info, is_slow):
    if cpu_info is not None:
        (tmp_path / "cpuinfo").write_text(cpu_info)
    emulates = machine.emulates_bfloat16(tmp_path / "cpuinfo")
    monkeypatch.setattr(devices, "emulates_bfloat16", lambda: emulates)
    warn.cache_clear()
    for precision, gpus, device in (("32-true", 0, "cpu"), ("bf16-mixed", 1, "cuda"), ("bf16-mixed", 0, "cpu")):
        assert devices.accelerator(config(precision=precision).trainer, gpus) == device
        said = capsys.readouterr().err
        assert ("trainer.precision = bf16-mixed" in said and "32-true" in said) == (
            is_slow and (precision, gpus) == ("bf16-mixed", 0)
        )


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="torch says it of x86 on Linux")
def test_bfloat16_is_emulated_where_onednn_lacks_it():
    assert machine.emulates_bfloat16() != torch.ops.mkldnn._is_mkldnn_bf16_supported()


def test_a_torch_for_gpus_finds_none_where_no_driver_is(monkeypatch):
    def finds_no_driver():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(machine, "version", lambda package: "2.13.0+cu130")
    monkeypatch.setattr(pynvml, "nvmlInit", finds_no_driver)
    assert machine.gpus() == [] and machine.has_bfloat16()


ACCELERATORS, STRATEGIES = ["auto", "cpu", "gpu"], ["auto", "ddp", "ddp_find_unused_parameters_true", "fsdp2"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-master", "16-mixed"])
def test_lightning_trains_as_the_config_says_or_the_config_is_refused(precision):
    """It would rather take another precision, with a warning, which here is an error."""
    trained = 0
    for accelerator, strategy, count in itertools.product(ACCELERATORS, STRATEGIES, [1, 2]):
        try:
            one = config(precision=precision, accelerator=accelerator, strategy=strategy, devices=count)
            on_gpu = fit.on_gpu(one)
        except InputError:
            continue
        trainer = fit.build_trainer(one, False, [])
        own = precision == "bf16-master"  # the module itself computes in it: tests/train/test_precision.py
        assert (trainer.precision, trainer.world_size) == ("32-true" if own else precision, count)
        assert isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator) == on_gpu
        trained += 1
    assert trained or (precision == "16-mixed" and not torch.cuda.is_available())


@pytest.mark.parametrize("program", ["table3_A", "table3_A --plan", "search_size --plan"])
def test_a_missing_gpu_is_one_mistake_of_the_input_and_starts_nothing(tmp_path, monkeypatch, program):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    wanted = ["--set", "trainer.devices=8", "trainer.accelerator=gpu"]
    with pytest.raises(InputError) as refused:
        sweep.main([*program.split(), f"--runs={tmp_path / 'runs'}", *wanted])
    (message,) = refused.value.messages
    assert "trainer.accelerator = gpu" in message and not (tmp_path / "runs").exists()


def test_several_nodes_need_a_launcher_without_which_they_would_wait_for_each_other(tmp_path, monkeypatch):
    for name in ("NODE_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"):  # nothing has started other processes
        monkeypatch.setenv(name, "2")
    with pytest.raises(InputError, match=r"trainer\.num_nodes = 2"):
        tiny_trials.train(tmp_path / "runs", {"trainer.num_nodes": 2})
    assert not (tmp_path / "runs" / "data").exists()


STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
STEP |= {"SLURM_PROCID": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "LOCAL_RANK": "0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "keys", "rank"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}, {}, None),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, {"devices": 2}, None),  # of sbatch, without a step
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, {"devices": 2}, None),
        (STEP, {}, None),  # independent trials
        (STEP, {"devices": 2, "num_nodes": 2}, "3"),
        (STEP, {"devices": 4}, "refused"),
        (TORCHRUN, {"devices": 2, "num_nodes": 2}, "3"),
        (TORCHRUN, {"devices": 2}, "refused"),
        (TORCHRUN | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0"}, {"devices": 2}, None),
    ],
    ids=str,
)
def test_a_rank_is_believed_where_a_launcher_has_started_as_many_processes_as_are_asked_for(environment, keys, rank):
    with mock.patch.dict(os.environ, environment | {"SLURM_CONF": "kept"}):
        if rank == "refused":
            with pytest.raises(InputError, match=r"trainer\.devices"):
                devices.join_world(config(**keys).trainer)
            return
        devices.join_world(config(**keys).trainer)
        assert os.environ.get("RANK") == rank and os.environ["SLURM_CONF"] == "kept"
        assert rank or not environment.keys() & os.environ.keys()
        if rank and "SLURM_PROCID" in environment:
            assert (os.environ["SLURM_NTASKS"], os.environ["SLURM_NTASKS_PER_NODE"]) == ("4", "2")


@pytest.mark.slow  # two processes
def test_a_rank_that_is_only_in_the_environment_changes_nothing(tmp_path):
    """Neither of a trial nor of a sweep, whose trials have two processes each."""
    text = little_text(tmp_path)
    keys = tiny_trials.TINY | {"data.path": str(text), "trainer.devices": 2, "trainer.accelerator": "cpu"}
    write_sweep(tmp_path / "ranks.yaml", keys)
    alone = [f"--{key}={value}" for key, value in (keys | {"trainer.devices": 1}).items()]
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_PORT": "1"}
    for number, words in enumerate((["train", *alone], ["sweep", tmp_path / "ranks.yaml"])):
        runs = tmp_path / f"runs{number}"
        done = command(*words, f"--runs={runs}", WANDB_MODE="disabled", **ranks)
        assert done.returncode == 0 and len(list(runs.glob("trials/*/result.json"))) == 1, done.stdout + done.stderr
