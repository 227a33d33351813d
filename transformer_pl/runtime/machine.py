"""The GPUs of this machine, and what a trial is trained on. Needs no torch, which takes seconds to import."""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING

from transformer_pl.runtime.errors import InputError

if TYPE_CHECKING:
    from transformer_pl.config import Trainer

# Variables by which Lightning knows that srun, torchrun or LSF has started this command on every node. Of other
# launchers it does not know the rank when it is imported: each process would take itself for the first.
LAUNCHER_VARIABLES = {"SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "LSB_DJOB_RANKFILE"}


def gpus() -> list[str]:
    """The GPUs that torch can use, as CUDA_VISIBLE_DEVICES names them; none if torch is built for CPUs only."""
    with suppress(PackageNotFoundError):
        if "+cpu" in version("torch"):
            return []
    return visible(_nvidia_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(count: int, names: str | None) -> list[str]:
    """The GPUs, of `count`, that CUDA shows if CUDA_VISIBLE_DEVICES is `names`: those before the first unknown name."""
    numbers = [str(number) for number in range(count)]
    if names is None or not count:
        return numbers
    return list(takewhile(lambda name: name in numbers or name.startswith(("GPU-", "MIG-")), names.split(",")))


def without_slurm() -> dict[str, str]:
    """This process's environment, but for the variables by which Lightning takes it for a task of SLURM's.

    A sweep may itself be such a task. Its trials are not: they would take its rank for theirs.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM_") or key == "SLURM_CONF"}


def cpu_cores() -> list[int]:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone has it
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _nvidia_gpus() -> int:
    """How many GPUs NVIDIA's driver finds; 0 without a driver."""
    count = ctypes.c_uint(0)
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libnvidia-ml.so.1")
        if driver.nvmlInit_v2() == 0:
            driver.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return count.value


def accelerator(trainer: "Trainer", gpus: int, environment: Mapping[str, str] = os.environ) -> str:
    """`cuda` or `cpu`: what a trial is trained on.

    gpus: the number of GPUs that torch can use. environment: the variables of the process that trains it.

    Raises an InputError if they cannot do what the config says. Lightning would fail later, wait for other nodes
    without an end, or silently use another precision.
    """
    mistakes = []
    if trainer.tokenised_bleu and find_spec("sacremoses") is None:
        install = "pip install -c constraints.txt -e '.[wmt]'"
        mistakes.append(f"trainer.tokenised_bleu = True: needs the package sacremoses; {install}, or set it to False")
    if trainer.num_nodes > 1 and not LAUNCHER_VARIABLES & environment.keys():
        remedy = "needs srun or torchrun, which start this command on every node; use one, or leave it out"
        mistakes.append(f"trainer.num_nodes = {trainer.num_nodes}: {remedy}")
    gpus = gpus if trainer.accelerator != "cpu" else 0
    for key, value, remedy in (
        ("accelerator", "gpu", "choose auto or cpu"),
        ("precision", "16-mixed", "choose bf16-mixed or 32-true"),
    ):
        if not gpus and getattr(trainer, key) == value:
            mistakes.append(f"trainer.{key} = {value}: needs a GPU, but torch finds none here; {remedy}")
    if gpus and trainer.devices > gpus:
        remedy = "lower it, or choose trainer.accelerator=cpu"
        mistakes.append(f"trainer.devices = {trainer.devices}: must be at most {gpus}, the GPUs found here; {remedy}")
    if mistakes:
        raise InputError(*mistakes)
    return "cuda" if gpus else "cpu"
