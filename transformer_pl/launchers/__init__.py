"""Launchers: where trials are trained. Each is a file here; the scheduling in `experiments/launch.py` knows none.

A launcher starts a trial with its command line and resources, says how it is, stops it, and finds what runs already.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from transformer_pl.config import Trainer
from transformer_pl.runtime.environment import ROW, TRIAL
from transformer_pl.runtime.lease import Lease

if TYPE_CHECKING:
    from transformer_pl.experiments.plan import PlannedTrial

TRAIN = "transformer_pl.train"  # what trains a trial: `python -m transformer_pl.train ARGV`
SLEEPING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin while they wait starve the other trials


def with_key(argv: Sequence[str], key: str, value: object) -> list[str]:
    """The arguments of `train` with this value of a key, in place of another one."""
    option = f"--{key}="
    return [*(word for word in argv if not word.startswith(option)), f"{option}{value}"]


class Ended(NamedTuple):
    """How the training of a trial has ended, as far as its launcher knows. Its folder tells the rest."""

    ok: bool  # whether the launcher knows of no failure
    how: str  # for people: `with exit code 1`


class Training(Protocol):
    """A trial that a launcher has taken."""

    def begun(self) -> bool:
        """Whether its process has begun; False while it is queued."""

    def poll(self) -> Ended | None:
        """How it has ended; None before that. Called several times a second."""

    def terminate(self) -> None:
        """Ask it to save and end."""

    def kill(self) -> None:
        """End it at once."""


class Launcher(Protocol):
    """Where a command trains its trials. An InputError of a method ends the command before anything is started."""

    slots: int  # how many trials it takes at once, set by `allot`
    at_once: int  # how many of these it trains at once
    shares: bool  # whether some of them share the memory of a device, set by `allot`

    def check(self, trainers: Iterable[Trainer]) -> None:
        """Raise an InputError for everything that these trainer sections ask for and that cannot be had."""

    def opened(self, trial_count: int) -> AbstractContextManager[None]:
        """What is needed while trials are trained; enter it early, as it may take seconds to be ready.

        trial_count: how many trials are to be trained; there may be none.
        """

    def allot(self, trainers: Sequence[Trainer], trial_count: int, is_search: bool = False) -> None:
        """Decide how many trials run at once, and on what.

        trainers: of all trials. is_search: trials are drawn by how the earlier ones ended, so not all at once.
        """

    def describe(self, trials: Sequence["PlannedTrial"], undrawn: int = 0) -> str:
        """How many trials run at once on what. undrawn: how many more trials a search draws."""

    def preview(self, trials: Sequence["PlannedTrial"], argv: Callable[["PlannedTrial"], list[str]]) -> list[str]:
        """More lines of `--plan`: what would be submitted."""

    def threads(self, planned: "PlannedTrial") -> int | None:
        """The threads of each process of a trial, after `allot`; None where it is not trained on this machine."""

    def cpu_cores(self) -> int:
        """The CPU cores of this machine that train, after `allot`; 0 where GPUs do, or other machines."""

    def waits(self) -> str | None:
        """What it waits for before it can start anything; None: it is ready."""

    def queued(self) -> str | None:
        """Why trials that it has taken have not begun, for people; None where all have."""

    def attach(self, planned: "PlannedTrial") -> Training | None:
        """The training of a trial that an earlier command has started here, and that has not ended."""

    def start(self, planned: "PlannedTrial", argv: list[str], lease: Lease) -> Training:
        """Start `python -m transformer_pl.train ARGV`, at the latest at the next `submit`.

        lease: of the trial, which the caller closes, unless it is given to the trial's process. May raise an OSError.
        """

    def submit(self) -> None:
        """Start what `start` was given."""

    def stop(self, trainings: Sequence[Training], say: Callable[[str], None], ask: Callable[[str], bool]) -> None:
        """The command ends before these have ended. Returns when nothing is left that needs the command.

        ask: puts a question to whoever has stopped the command; no where nobody can answer.
        """


def trial_variables(planned: "PlannedTrial", threads: int) -> dict[str, str]:
    """The environment variables of a trial, whatever trains it. threads: of each of its processes."""
    return SLEEPING_THREADS | {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "WANDB_NAME": planned.name,
        ROW: planned.name.removesuffix(f" s{planned.config.seed}"),
        TRIAL: planned.identity.trial,
    }


def without_slurm() -> dict[str, str]:
    """This process's environment, but for the variables by which Lightning takes it for a task of SLURM's.

    A sweep may itself be such a task. Its trials are not: they would take its rank for theirs.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM_") or key == "SLURM_CONF"}
