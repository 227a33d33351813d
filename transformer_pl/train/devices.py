"""What a trial is trained on, and whether a launcher has started the command. Needs no torch."""

import os
from collections.abc import Mapping
from importlib.util import find_spec

from transformer_pl.config import Trainer
from transformer_pl.runtime.errors import InputError

# Variables by which Lightning knows that srun, torchrun or LSF has started this command on every node. Of other
# launchers it does not know the rank when it is imported: each process would take itself for the first.
LAUNCHER_VARIABLES = {"SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "LSB_DJOB_RANKFILE"}


def without_slurm() -> dict[str, str]:
    """This process's environment, but for the variables by which Lightning takes it for a task of SLURM's.

    A sweep may itself be such a task. Its trials are not: they would take its rank for theirs.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM_") or key == "SLURM_CONF"}


def accelerator(trainer: Trainer, gpus: int, environment: Mapping[str, str] = os.environ) -> str:
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
