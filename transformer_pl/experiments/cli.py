"""The command line of whatever reads a sweep file: which trials are meant, and where they lie."""

import argparse
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_pl.runtime.command_line import (
    CommandParser,
    folder_name,
    names,
    whole_number,
    whole_numbers,
)
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.names import as_folder, sweep_title
from transformer_pl.trials.runs_folder import DEFAULT_RUNS


def add_sweep_options(parser: CommandParser) -> None:
    """What says which trials are meant, beside the sweep file."""
    parser.add_argument("--scale", help="a scale's name or a YAML file; replaces the file's")
    parser.add_argument("--seeds", type=_seeds, metavar="1,2", help="replaces the file's seeds")
    parser.add_argument(
        "--set", type=_setting, nargs="+", action=_Settings, default={}, metavar="KEY=VALUE", help="wins over the file"
    )
    parser.add_argument(
        "--runs", type=folder_name, default=DEFAULT_RUNS, metavar="DIR", help="where results lie (%(default)s)"
    )


def add_search_options(parser: CommandParser) -> None:
    """What says how values are found that the sweep file leaves open."""
    parser.add_argument(
        "--retune",
        type=names,
        metavar="KEY,KEY",
        help="give every row its own best value of these: the same small search for each",
    )
    parser.add_argument(
        "--budget",
        type=whole_number(2, ": base's own values are one try"),
        default=8,
        metavar="K",
        help="tries a row for --retune (%(default)s)",
    )
    parser.add_argument("--storage", metavar="URL", help="of a search's study, in place of a journal beside the table")


def refuse_options(options: argparse.Namespace, flags: Sequence[str], why: str) -> None:
    """Raises an InputError for the first of these options that was given."""
    for flag in flags:
        if getattr(options, flag):
            raise InputError(f"--{flag}: {why}; leave it out")


def sweep_folder(sweep: Any, options: argparse.Namespace) -> Path:
    """`runs/sweeps/<name>@<scale>`; a --set adds a short hash, as --retune does, for it makes another table."""
    name = sweep_title(sweep.name, sweep.scale)
    said = sorted(options.set.items())
    if options.retune:
        said += [("--retune", options.retune), ("--budget", options.budget)]
    if said:
        name += "-" + hashlib.sha256(repr(said).encode()).hexdigest()[:6]
    return options.runs / "sweeps" / as_folder(name)


def make_folder(folder: Path) -> None:
    """A folder to write results into. Raises an InputError where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: must be a folder that can be written, but: {error.strerror}; mend it") from None


class _Settings(argparse.Action):
    """KEY=VALUE pairs as a mapping; --set may be said several times, a key once."""

    def __call__(self, parser: Any, namespace: Any, pairs: list[tuple[str, str]], option_string: Any = None) -> None:
        settings = dict(getattr(namespace, self.dest))
        for key, value in pairs:
            if key in settings:
                raise argparse.ArgumentError(self, f"{key} is set twice; set it once")
            settings[key] = value
        setattr(namespace, self.dest, settings)


def _seeds(text: str) -> list[str]:
    return [str(seed) for seed in whole_numbers()(text)]


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE, such as model.h=4")
    return key, value
