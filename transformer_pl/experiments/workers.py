"""The shares of this machine: how many trials run at once, and which cores and GPUs each of them gets."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformer_pl.config import Trainer
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.runtime.errors import collect_errors
from transformer_pl.runtime.machine import accelerator, gpus
from transformer_pl.runtime.terminal import counted


@dataclass(frozen=True)
class Workers:
    """The machine, divided among the trials that run at once.

    count: how many trials run at once.
    threads: of each process of a trial, unless the trial itself says otherwise.
    gpus: of each worker, as CUDA_VISIBLE_DEVICES lists them; empty on a CPU.
    """

    count: int
    threads: int
    gpus: list[str]

    def threads_of(self, planned: PlannedTrial) -> int:
        """The threads of each process of this trial."""
        return planned.trial.threads(planned.config.trainer.threads, self.threads)

    def describe(self, trials: Sequence[PlannedTrial], undrawn: int = 0) -> str:
        """How many trials run at once on what, with how many threads; which of them keep or change their threads.

        undrawn: how many more trials a search draws.
        """
        threads = [self.threads_of(planned) for planned in trials]
        each = sorted({*threads, *([self.threads] if undrawn else [])})
        numbers = " or ".join([*map(str, each[:-1]), counted(each[-1], "thread")])
        trial_count = counted(len(trials) + undrawn, "trial")
        text = f"{trial_count} to train, {self.count} at a time, each on {self._share()}, with {numbers}"
        keeping = changing = 0
        for planned, used in zip(trials, threads, strict=True):
            keeping += used != (planned.config.trainer.threads or self.threads)
            changing += planned.trial.threads_begun() not in (None, used)
        if keeping:
            text += f"; {keeping} interrupted: resumed with as many threads as before, not {self.threads}"
        if changing:
            text += (
                f"; {changing} interrupted: resumed with trainer.threads, not as many as before, so the results may "
                "differ in the last digits"
            )
        return text

    def _share(self) -> str:
        """What each trial is trained on: `1 CPU core`, or `2 GPUs`."""
        if self.gpus:
            used = ",".join(self.gpus).split(",")
            shared = " that it shares" if len(set(used)) < len(used) else ""
            return counted(len(used) // self.count, "GPU") + shared
        cores = len(os.sched_getaffinity(0))
        return counted(cores // self.count, "CPU core") if self.count <= cores else "a CPU core that it shares"


def available_workers(parallel: int | None, trainers: Iterable[Trainer], trial_count: int) -> Workers:
    """Divide this machine among `parallel` trials; None: as many as there are GPUs, or cores where none is used.

    trainers: of all trials. Every worker gets as many devices as the trial with the most `trainer.devices` needs.
    """
    trainers = list(trainers)
    devices = max((trainer.devices for trainer in trainers), default=1)
    gpu_ids = gpus() if any(trainer.accelerator != "cpu" for trainer in trainers) else []
    cores = len(os.sched_getaffinity(0))
    fitting = max(1, (len(gpu_ids) if gpu_ids else cores) // devices)
    count = parallel or min(fitting, max(1, trial_count))
    gpus_by_worker = []
    if gpu_ids:
        for worker in range(count):
            share = (gpu_ids[(worker * devices + device) % len(gpu_ids)] for device in range(devices))
            gpus_by_worker.append(",".join(share))
    return Workers(count, max(1, cores // (count * devices)), gpus_by_worker)


def check_machine(trainers: Iterable[Trainer]) -> None:
    """Raise one InputError for everything that these trainer sections ask for and this machine lacks."""
    gpu_count = len(gpus())
    collect_errors(lambda trainer: accelerator(trainer, gpu_count), dict.fromkeys(trainers))
