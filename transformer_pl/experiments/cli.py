"""What commands on a sweep file share: the options that choose its trials, and the folder of its results."""

import argparse
import hashlib
import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_pl.levels import DEFAULT_SCALE, scale_names
from transformer_pl.runtime.command_line import (
    CommandParser,
    Options,
    folder_name,
    names,
    text,
    whole_number,
    whole_numbers,
)
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.trials.names import as_folder, sweep_title
from transformer_pl.trials.runs_folder import DEFAULT_RUNS

BUDGET = 8  # tries per row of --retune
SHIPPED = Path(__file__).parents[1] / "sweeps"  # the sweep files that come with the package


def sweep_file(word: str) -> Path:
    """Read the path of a sweep file, or, where there is no such file, the name of one that ships: `table3_A`."""
    path = Path(word)
    if path.suffix or len(path.parts) != 1 or os.path.isfile(path):
        return path
    shipped = {file.stem: file for file in sorted(SHIPPED.glob("*.yaml"))}
    if word not in shipped:
        near = suggestion(word, shipped)
        raise argparse.ArgumentTypeError(
            f"{shown(repr(word))} must be a sweep file, or the name of one that ships{near}"
        )
    return shipped[word]


def as_typed(file: Path) -> str:
    """The word that `sweep_file` reads as this path."""
    return file.stem if file.parent == SHIPPED else str(file)


def add_sweep_options(parser: CommandParser) -> Options:
    """Add the options that choose the trials of a sweep file, and the runs folder. Returns their group."""
    group = parser.add_argument_group("which trials")
    add_row_options(group, f"the file's, or {DEFAULT_SCALE}")
    group.add_argument("--seeds", type=_seeds, metavar="1,2", help="the seeds of each row (the file's, or 1)")
    return group


def add_row_options(group: Options, scale: str) -> None:
    """Add the options that choose the rows of a sweep file, and the runs folder. scale: --scale's default, in words."""
    group.add_argument("--scale", type=text, metavar="S", help=f"{', '.join(scale_names())} or your own YAML ({scale})")
    group.add_argument(
        "--set",
        type=_setting,
        nargs="+",
        action=_Settings,
        default={},
        metavar="KEY=VALUE",
        help="values that win over the file's; for all keys: python -m transformer_pl.train --help",
    )
    group.add_argument(
        "--runs", type=folder_name, default=DEFAULT_RUNS, metavar="DIR", help="the folder of all results (%(default)s)"
    )


def add_retune_options(group: Options) -> None:
    """Add --retune and --budget."""
    group.add_argument(
        "--retune",
        type=names,
        metavar="KEY,KEY",
        help="tune these keys for each row separately, by the same small search",
    )
    group.add_argument(
        "--budget",
        type=whole_number(2, ": base's own values are one try"),
        metavar="K",
        help=f"for --retune: trials per row ({BUDGET})",
    )


def complete_retune_options(options: argparse.Namespace) -> None:
    """Fill in the default of --budget. Raises an InputError where it is given without --retune."""
    if not options.retune:
        refuse_options(options, ["budget"], "is for --retune, which is not given")
    options.budget = options.budget or BUDGET


def add_beside_option(group: Options) -> None:
    """Add the option that says what a table stands beside."""
    group.add_argument(
        "--beside",
        choices=("none", "paper"),
        help="whether the table shows the paper's numbers (paper, unless the text is your own)",
    )


def add_storage_option(group: Options) -> None:
    """Add the option that says where a search keeps its study."""
    group.add_argument(
        "--storage", type=text, metavar="URL", help="a database (the file study.journal in the sweep's folder)"
    )


def refuse_options(options: argparse.Namespace, flags: Sequence[str], why: str) -> None:
    """Raise an InputError for the first of these options that was given."""
    for flag in flags:
        if getattr(options, flag):
            raise InputError(f"--{flag.replace('_', '-')}: {why}; leave it out")


def sweep_folder(sweep: Any, options: argparse.Namespace) -> Path:
    """`runs/sweeps/<name>@<scale>`; --set and --retune make another table, so they add a short hash."""
    name = as_folder(sweep_title(sweep.name, sweep.scale))
    settings = sorted(options.set.items())
    if options.retune:
        settings += [("--retune", options.retune), ("--budget", options.budget)]
    if settings:
        name += "-" + hashlib.sha256(repr(settings).encode()).hexdigest()[:6]
    return options.runs / "sweeps" / name


def other_table(options: argparse.Namespace) -> str:
    """The options that make another table of the sweep file, as they are typed. Its folder's name has their hash."""
    words = ["--set", *(f"{key}={value}" for key, value in options.set.items())] if options.set else []
    if options.retune:
        words += ["--retune", ",".join(options.retune), "--budget", str(options.budget)]
    return shlex.join(words)


def kept_options(options: argparse.Namespace) -> dict[str, str]:
    """What plan.json keeps of the options: those of `other_table`, and the command that shows the table."""
    words = ["python", "-m", "transformer_pl.report", as_typed(options.file)]
    words += ["--scale", options.scale] if options.scale else []
    words += ["--seeds", ",".join(options.seeds)] if options.seeds else []
    words += ["--runs", str(options.runs)] if options.runs != DEFAULT_RUNS else []
    differs = other_table(options)
    return {"differs": differs, "command": " ".join([shlex.join(words), differs]).strip()}


def make_folder(folder: Path) -> None:
    """Make a folder and try to write into it. Raises an InputError with the system's reason if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder}: must be a folder that can be written, but: {error.strerror}; choose another --runs"
        ) from None


class _Settings(argparse.Action):
    """Collects KEY=VALUE pairs in a mapping. --set may be given several times, each key once."""

    def __call__(self, parser: Any, namespace: Any, pairs: Any, option_string: str | None = None) -> None:
        settings = dict(getattr(namespace, self.dest))
        for key, value in pairs:
            if key in settings:
                raise argparse.ArgumentError(self, f"{key} is set twice; set it once")
            settings[key] = value
        setattr(namespace, self.dest, settings)


def _seeds(word: str) -> list[str]:
    return [str(seed) for seed in whole_numbers()(word)]


def _setting(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{shown(repr(word))} must be KEY=VALUE, such as model.h=4")
    return key, value
