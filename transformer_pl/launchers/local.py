"""Trains trials on this machine: each is a child process with a share of the cores or GPUs."""

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from transformer_pl.config import Trainer
from transformer_pl.launchers.workers import Workers, available_workers, check_machine
from transformer_pl.runtime import children
from transformer_pl.runtime.environment import ROW, TRIAL
from transformer_pl.runtime.machine import without_slurm
from transformer_pl.runtime.signals import GRACE_S, Stopped, install_handler, kill, raise_stopped

if TYPE_CHECKING:
    from transformer_pl.experiments.plan import PlannedTrial

TRAIN = "transformer_pl.train"  # what trains a trial: `python -m transformer_pl.train ARGV`


class LocalLauncher:
    """Divides this machine among trials."""

    def __init__(self, parallel: int | None = None, devices: int | None = None, per_device: int | None = None):
        """parallel: how many trials at once; devices: how many GPUs or cores in all; per_device: trials on a GPU."""
        self.parallel, self.devices, self.per_device = parallel, devices, per_device
        self.workers = Workers(0, 1, [])
        self._running: dict[int, BaseProcess] = {}  # by worker, 0 to workers.count - 1

    def check(self, trainers: Iterable[Trainer]) -> None:
        """Raise an InputError for everything that these trainer sections ask for and this machine lacks."""
        check_machine(trainers, self.devices, self.per_device)

    def allot(self, trainers: Sequence[Trainer], trial_count: int) -> None:
        """Decide how many of the trials run at once, and on what. trainers: of all trials."""
        self.workers = available_workers(self.parallel, trainers, trial_count, self.devices, self.per_device)

    def start(self, planned: "PlannedTrial", argv: list[str]) -> BaseProcess:
        """Start `python -m transformer_pl.train ARGV` on a free worker. Its output is the trial's log."""
        self._running = {worker: process for worker, process in self._running.items() if process.is_alive()}
        worker = next(number for number in range(self.workers.count) if number not in self._running)
        planned.trial.make()
        cores = self.workers.cores[worker] if self.workers.cores else []
        process = children.start_module(TRAIN, argv, self._environment(planned, worker), planned.trial.log, cores)
        self._running[worker] = process
        return process

    def _environment(self, planned: "PlannedTrial", worker: int) -> Mapping[str, str]:
        """The environment variables of a trial's process."""
        environment = without_slurm() | {
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait starve the other trials
            "OMP_NUM_THREADS": str(self.workers.threads_of(planned)),
            "WANDB_NAME": planned.name,
            ROW: planned.name.removesuffix(f" s{planned.config.seed}"),
            TRIAL: planned.identity.trial,
        }
        return environment | ({"CUDA_VISIBLE_DEVICES": self.workers.gpus[worker]} if self.workers.gpus else {})


def ask_to_end(process: BaseProcess) -> None:
    """Ask a trial to save and end."""
    with suppress(ProcessLookupError, TypeError):  # it has ended
        os.killpg(process.pid, signal.SIGTERM)  # type: ignore[arg-type]


def end(process: BaseProcess) -> None:
    """Kill a trial, and whatever it has left behind in its session."""
    assert process.pid is not None
    kill(process.pid)
    process.join()


def end_all(processes: Sequence[BaseProcess]) -> None:
    """Ask every trial to save and end. Kill those that have not ended in time; kill all at a second Ctrl-C."""
    for process in processes:
        ask_to_end(process)
    deadline = time.monotonic() + GRACE_S
    signal.signal(signal.SIGINT, raise_stopped)
    with suppress(Stopped):
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    install_handler(signal.SIG_IGN)
    for process in processes:
        end(process)
    install_handler(raise_stopped)
