"""The shares of this machine: how many trials run at once, and which cores and GPUs each of them gets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transformer_pl.config import Trainer
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.machine import accelerator, cpu_cores, gpus, without_slurm
from transformer_pl.runtime.terminal import counted

if TYPE_CHECKING:
    from transformer_pl.experiments.plan import PlannedTrial


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

    @property
    def cpu_cores(self) -> int:
        """The CPU cores that train; 0 where GPUs do."""
        return 0 if self.gpus else len(set().union(*self.cores) or cpu_cores())

    def threads_of(self, planned: "PlannedTrial") -> int:
        """The threads of each process of this trial."""
        return planned.trial.threads(planned.config.trainer.threads, self.threads)

    def describe(self, trials: Sequence["PlannedTrial"], undrawn: int = 0) -> str:
        """How many trials run at once on what, with how many threads. undrawn: how many more trials a search draws."""
        each = sorted({*map(self.threads_of, trials), *([self.threads] if undrawn else [])})
        numbers = " or ".join([*map(str, each[:-1]), counted(each[-1], "thread")])
        trial_count = counted(len(trials) + undrawn, "trial")
        return f"{trial_count} to train, {self.count} at a time, each on {self._share()}, with {numbers}"

    def _share(self) -> str:
        """What each trial is trained on: `1 CPU core`, or `2 GPUs`."""
        if self.gpus:
            each = sum(len(one.split(",")) for one in self.gpus) // self.count
            shared = len(set(self.gpus)) < self.count
            return counted(each, "GPU") + (" that it shares" if shared else "")
        each = self.cpu_cores // self.count
        return counted(each, "CPU core") if each else "a CPU core that it shares"


def available_workers(
    parallel: int | None,
    trainers: Iterable[Trainer],
    trial_count: int,
    devices: int | None = None,
    per_device: int | None = None,
) -> Workers:
    """Divide this machine among `parallel` trials, or all if they are fewer.

    parallel: None for as many as there are GPUs, or cores where none is used.

    trainers: of all trials. Every worker gets as many devices as the trial with the most `trainer.devices` needs.
    devices: how many GPUs are divided; or how many cores where no GPU is used, to which trials are pinned then. None:
    all, and none is pinned. per_device: how many trials share a GPU, each pinned to cores of its own.
    """
    trainers = list(trainers)
    each = max((trainer.devices for trainer in trainers), default=1)
    gpu_ids = _used_gpus(trainers)[:devices]
    cores = cpu_cores()[: None if gpu_ids else devices]
    fitting = max(1, (len(gpu_ids) if gpu_ids else len(cores)) // each) * (per_device or 1)
    count = min(parallel or fitting, max(1, trial_count))
    gpus_by_worker, cores_by_worker = [], []
    if gpu_ids:
        for worker in range(count):
            share = (gpu_ids[(worker * each + device) % len(gpu_ids)] for device in range(each))
            gpus_by_worker.append(",".join(share))
    if per_device or (devices and not gpu_ids):  # pinned
        own = max(1, len(cores) // count)
        cores_by_worker = [
            [cores[(worker * own + core) % len(cores)] for core in range(own)] for worker in range(count)
        ]
    return Workers(count, max(1, len(cores) // (count * each)), gpus_by_worker, cores_by_worker)


def check_machine(trainers: Iterable[Trainer], devices: int | None = None, per_device: int | None = None) -> None:
    """Raise one InputError for everything that these trainer sections ask for and this machine lacks.

    devices, per_device: as in `available_workers`.
    """
    trainers, gpu_count = list(trainers), len(gpus())
    environment = without_slurm()
    collect_errors(lambda trainer: accelerator(trainer, gpu_count, environment), dict.fromkeys(trainers))
    if not trainers:
        return
    used = len(_used_gpus(trainers))
    there, kind = (used, "GPU") if used else (len(cpu_cores()), "CPU core")
    most = max(trainer.devices for trainer in trainers)
    if devices and devices > there:
        raise InputError(
            f"--devices {devices}: must be at most what this machine has, {counted(there, kind)}; lower it"
        )
    if devices and devices < most:
        raise InputError(
            f"--devices {devices}: must be at least what one trial needs, trainer.devices = {most}; raise it, or lower "
            "trainer.devices"
        )
    if per_device and not used:
        raise InputError(
            f"--per-device {per_device}: shares a GPU among trials, but these are trained on CPU cores here; use "
            "--parallel"
        )


def _used_gpus(trainers: Iterable[Trainer]) -> list[str]:
    """The GPUs of this machine, unless every trial is trained on the CPU."""
    return gpus() if any(trainer.accelerator != "cpu" for trainer in trainers) else []
