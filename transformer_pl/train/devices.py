"""What a trial is trained on, and whether a launcher has started the command. Needs no torch."""

import os
import re

from transformer_pl.config import Trainer
from transformer_pl.runtime.environment import RANKS_OF
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.machine import emulates_bfloat16, has_bfloat16
from transformer_pl.runtime.terminal import counted

# Lightning takes this process for one of several if one of these variables is set.
RANK_VARIABLES = re.compile(
    "(LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|(TORCHELASTIC|JSM)_.*|SLURM_(?!CONF$).*"
    f"|{RANKS_OF}"
)
TORCHRUN, STEP = "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"  # set by torchrun, and by srun


def hide_ranks() -> None:
    """Remove RANK_VARIABLES from the environment.

    They may be set although no other process was started: managers of pods set RANK, images of vendors LOCAL_RANK, and
    sbatch SLURM_NTASKS. And if a sweep is a task of SLURM, its trials would take the rank of the task for their own.
    """
    for name in filter(RANK_VARIABLES.fullmatch, list(os.environ)):
        del os.environ[name]


def join_world(trainer: Trainer) -> None:
    """Let this process be one of devices * nodes if torchrun or srun has started so many; else hide its ranks.

    Call it before Lightning is imported. Raises an InputError where they have started another number of processes. A
    trial of one device may be any task of an srun step: each task is then a trial of its own.
    """
    env, nodes, count = os.environ, trainer.num_nodes, trainer.num_nodes * trainer.devices
    if RANKS_OF in env:  # Lightning has started it, to help the trial's first process
        return
    if TORCHRUN in env:
        launcher, found = "torchrun", _number("WORLD_SIZE")
        found_nodes = found // _number("LOCAL_WORLD_SIZE")
    else:
        launcher, found, found_nodes = "srun", _number(STEP), _number("SLURM_STEP_NUM_NODES")
    if found == 1 or (launcher == "srun" and count == 1):
        hide_ranks()
    elif (found, found_nodes) != (count, nodes):
        raise InputError(
            f"trainer.devices = {trainer.devices}, trainer.num_nodes = {nodes}: must be the processes that {launcher} "
            f"has started, {found} on {counted(found_nodes, 'node')}; change them, or how {launcher} is called"
        )
    elif launcher == "srun":  # the variables that Lightning reads may be those of the whole job
        env |= {"RANK": env["SLURM_PROCID"], "SLURM_NTASKS": str(count), "SLURM_NNODES": str(nodes)}
        env |= {"SLURM_NTASKS_PER_NODE": str(trainer.devices), "SLURM_NODELIST": env["SLURM_STEP_NODELIST"]}
        port = 15_000 + (10 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 10_000
        env.setdefault("MASTER_PORT", str(port))  # not that of another step


def is_first_rank() -> bool:
    """Whether this process trains alone or leads the others. To be asked after `join_world`."""
    return RANKS_OF not in os.environ and os.environ.get("RANK", "0") == "0"


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return max(1, int(value)) if value.isdecimal() else 1


def accelerator(trainer: Trainer, gpus: int) -> str:
    """`cuda` or `cpu`: what a trial is trained on, named to Lightning so that it cannot choose another.

    gpus: the number of GPUs that torch can use.

    Raises an InputError if this machine cannot do what the config says. Lightning would fail later, wait without an end
    for other nodes, or silently use another precision.
    """
    mistakes = []
    if trainer.num_nodes > 1 and not {TORCHRUN, STEP} & os.environ.keys():
        remedy = "needs srun or torchrun, which start this command on every node; use one, or leave it out"
        mistakes.append(f"trainer.num_nodes = {trainer.num_nodes}: {remedy}")
    gpus = gpus if trainer.accelerator != "cpu" else 0
    if not gpus:
        needs = "needs a GPU, but torch finds none here"
        if trainer.accelerator == "gpu":
            mistakes.append(f"trainer.accelerator = gpu: {needs}; choose auto or cpu")
        if trainer.precision == "16-mixed":
            mistakes.append(f"trainer.precision = 16-mixed: {needs}; choose bf16-mixed or 32-true")
    if gpus and trainer.precision.startswith("bf16") and not has_bfloat16():
        remedy = "but this machine has only older ones; choose 16-mixed or 32-true"
        mistakes.append(f"trainer.precision = {trainer.precision}: needs a GPU of compute capability 8, {remedy}")
    if gpus and trainer.devices > gpus:
        remedy = "lower it, or choose trainer.accelerator=cpu"
        mistakes.append(f"trainer.devices = {trainer.devices}: must be at most {gpus}, the GPUs found here; {remedy}")
    if mistakes:
        raise InputError(*mistakes)
    _warn_of_emulation(trainer.precision, gpus)
    return "cuda" if gpus else "cpu"


def _warn_of_emulation(precision: str, gpus: int) -> None:
    """Warn of a precision for which the processor takes much longer than for float32. gpus: those that are used."""
    if not gpus and precision.startswith("bf16") and emulates_bfloat16():
        slow = "this processor has no AVX-512, and needs more than ten times as long for it as for 32-true"
        warn(f"trainer.precision = {precision}: {slow}; choose 32-true, which makes other trials")
