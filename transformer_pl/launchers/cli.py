"""The options that choose a launcher. A launcher is a module with `open_launcher`, named in LAUNCHERS."""

import argparse
from pathlib import Path
from types import ModuleType

from transformer_pl.command_line import Options, whole_number
from transformer_pl.launchers import Launcher, local, slurm, slurm_queue
from transformer_pl.runtime.errors import InputError

LAUNCHERS: dict[str, ModuleType] = {"local": local, "slurm": slurm}
OPTIONS = {"devices": "local", "per_device": "local", "slurm": "slurm"}  # by name: the launcher that they are for


def add_launcher_options(group: Options) -> None:
    """Add --launcher and the options of the launchers to a group of the help."""
    group.add_argument(
        "--launcher", choices=LAUNCHERS, default="local", help="where trials are trained (%(default)s: this machine)"
    )
    group.add_argument(
        "--devices",
        type=whole_number(),
        metavar="N",
        help="use N GPUs of this machine, or N CPU cores where no GPU is used (default: all)",
    )
    group.add_argument(
        "--per-device",
        type=whole_number(),
        metavar="K",
        help="run K trials on each GPU, each pinned to its own CPU cores",
    )
    group.add_argument(
        "--slurm", type=Path, metavar="FILE", help="for --launcher slurm: YAML file of sbatch options for one trial"
    )


def chosen_launcher(options: argparse.Namespace, folder: Path) -> Launcher:
    """The launcher that the options describe. folder: of the sweep.

    Raises an InputError, also for an option of another launcher.
    """
    for name, launcher in OPTIONS.items():
        if getattr(options, name) is not None and launcher != options.launcher:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag}: is for --launcher {launcher}, not for {options.launcher}; leave it out")
    return LAUNCHERS[options.launcher].open_launcher(options, folder)


def queued_trials(runs: Path, must_answer: bool = False) -> dict[str, str]:
    """The trials of a runs folder that any launcher trains or will train, by id: `queued`, or `running`.

    must_answer: raise an InputError where a launcher does not answer; else warn.
    """
    return slurm_queue.queued_trials(runs, must_answer)
