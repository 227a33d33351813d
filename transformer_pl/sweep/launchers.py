"""Where trials are trained: on this machine, or by workers that another program starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformer_pl.sweep import slurm


class Launcher(Protocol):
    """A module that starts workers: each runs `python -m transformer_pl.sweep` with words whose paths are absolute."""

    def script_of(self, folder: Path, file: Path | None, count: int, words: Sequence[str]) -> str:
        """The script that starts `count` workers, as --plan shows it.

        folder: of the sweep. file: of the option that is named like the launcher. words: the arguments of each worker.
        Raises an InputError for mistakes in the file.
        """

    def submit(self, folder: Path, script: str) -> str:
        """Start the workers, and return a line that says how to see and to end them. Raises an InputError."""


LAUNCHERS: dict[str, Launcher | None] = {"local": None, "slurm": slurm}  # None: this command trains itself
