"""Trains trials on this machine: each is a child process with a share of the cores or GPUs."""

import itertools
import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from transformer_pl.config import Trainer
from transformer_pl.runtime import children
from transformer_pl.runtime.environment import ROW, TRIAL, WEIGHTS_OF
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.machine import cpu_cores, gpus
from transformer_pl.runtime.signals import GRACE_S, GROUP_GRACE_S, Stopped, install_handler, raise_stopped
from transformer_pl.runtime.terminal import counted
from transformer_pl.train.devices import accelerator
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_folder import TrialFolder


@dataclass(frozen=True)
class Workers:
    """The machine, divided among the trials that run at once.

    count: how many trials run at once.
    threads: of each process of a trial, unless the trial itself says otherwise.
    gpus: of each worker, as CUDA_VISIBLE_DEVICES lists them; empty on a CPU.
    cores: of each worker, to which its processes are pinned; empty where they may use all.
    """

    count: int
    threads: int
    gpus: list[str]
    cores: list[list[int]] = field(default_factory=list)

    def describe(self, trial_count: int) -> str:
        """How many trials are left, how many run at once, and on what."""
        if self.gpus:
            each = counted(len(self.gpus[0].split(",")), "GPU")
        else:
            share = len(self.cores[0]) if self.cores else len(cpu_cores()) // self.count
            each = counted(max(1, share), "CPU core")
        return f"{counted(trial_count, 'trial')} left, {self.count} at a time, each on {each}"

    def start(
        self, trial: Trial, worker: int, same: Sequence[TrialFolder] = (), waited_for: Connection | None = None
    ) -> BaseProcess:
        """Start `python -m transformer_pl.train` on a worker, 0 to count - 1. Its output is the trial's log.

        same: finished trials with the same weights. waited_for: as for `start_module`.
        """
        trial.folder.make()
        environment = os.environ | {
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait starve the other trials
            "OMP_NUM_THREADS": str(trial.threads(self.threads)),
            "WANDB_NAME": trial.name,
            ROW: trial.origin.row,
            TRIAL: trial.id,
            WEIGHTS_OF: "/".join(folder.name for folder in same),
        }
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[worker]
        cores = self.cores[worker] if self.cores else []
        log = trial.folder.log
        return children.start_module("transformer_pl.train", trial.argv, environment, log, cores, waited_for)


def divide_machine(
    trainers: Iterable[Trainer],
    trial_count: int,
    parallel: int | None = None,
    devices: int | None = None,
    per_device: int | None = None,
) -> Workers:
    """Divide this machine among `parallel` trials, or all if they are fewer.

    trainers: of all trials. Every worker gets as many devices as the trial with the most `trainer.devices` needs.
    parallel: None for as many as there are GPUs, or cores where none is used.
    devices: how many GPUs are divided, or, where no GPU is used, how many cores, to which trials are then pinned. None:
    all of them, without pinning. per_device: how many trials share a GPU, each pinned to cores of its own.

    Raises one InputError for everything that these trainer sections ask for and this machine lacks.
    """
    trainers, all_gpus, all_cores = list(trainers), gpus(), cpu_cores()
    collect_errors(lambda trainer: accelerator(trainer, len(all_gpus)), dict.fromkeys(trainers))
    gpu_ids = all_gpus if any(trainer.accelerator != "cpu" for trainer in trainers) else []
    each = max([1, *(trainer.devices for trainer in trainers)])
    if trainers:
        _check_shares(each, len(gpu_ids), len(all_cores), devices, per_device)
    gpu_ids, cores = gpu_ids[:devices], all_cores[: None if gpu_ids else devices]
    count = min(parallel or max(1, len(gpu_ids or cores) // each) * (per_device or 1), max(1, trial_count))

    def shares(ids: list[Any], size: int) -> list[list[Any]]:
        endless = itertools.cycle(ids)
        return [list(itertools.islice(endless, size)) for _ in range(count)]

    gpus_by_worker = list(map(",".join, shares(gpu_ids, each))) if gpu_ids else []
    is_pinned = per_device or (devices and not gpu_ids)
    cores_by_worker = shares(cores, max(1, len(cores) // count)) if is_pinned else []
    return Workers(count, max(1, len(cores) // (count * each)), gpus_by_worker, cores_by_worker)


def _check_shares(each: int, gpu_count: int, core_count: int, devices: int | None, per_device: int | None) -> None:
    """Raise an InputError where --devices or --per-device do not fit this machine. each: devices of a trial."""
    if devices and not each <= devices <= (gpu_count or core_count):
        there = counted(gpu_count, "GPU") if gpu_count else counted(core_count, "CPU core")
        rule = f"must be from what one trial needs, trainer.devices = {each}, to what this machine has, {there}"
        raise InputError(f"--devices {devices}: {rule}; change one of them")
    if per_device and not gpu_count:
        rule = "shares a GPU among trials, but these are trained on CPU cores here; use --parallel"
        raise InputError(f"--per-device {per_device}: {rule}")


def ask_to_end(process: BaseProcess) -> None:
    """Ask a trial to save and end."""
    with suppress(ProcessLookupError, TypeError):  # it has ended
        os.killpg(process.pid, signal.SIGTERM)  # type: ignore[arg-type]


def end(process: BaseProcess) -> None:
    """Kill a trial, and whatever it has left behind in its process group."""
    with suppress(ProcessLookupError, TypeError):
        os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.join()


def grace_s(trainer: Trainer) -> float:
    """Seconds between asking a trial to stop and killing it."""
    return GRACE_S if trainer.devices * trainer.num_nodes == 1 else GROUP_GRACE_S


def end_all(processes: Sequence[BaseProcess], seconds: float) -> None:
    """Ask every trial to save and end. Kill those that have not ended in time; kill all at a second Ctrl-C."""
    for process in processes:
        ask_to_end(process)
    deadline = time.monotonic() + seconds
    signal.signal(signal.SIGINT, raise_stopped)
    with suppress(Stopped):
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    install_handler(lambda *_: None)  # not SIG_IGN: SIGHUP would stay ignored
    for process in processes:
        end(process)
    install_handler(raise_stopped)
