"""The command line of every command: the parser, the readers of values, the options of sweep files, the exit code."""

import argparse
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from transformer_pl.levels import DEFAULT_SCALE, read_pairs, scale_names
from transformer_pl.runtime import signals
from transformer_pl.runtime.environment import NAME, project_version
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.trials.runs_folder import DEFAULT_RUNS, as_folder, sweep_title

BUDGET = 8  # tries per row of --retune
SHIPPED = Path(__file__).parent / "sweeps"  # the sweep files that come with the package
Options = argparse._ArgumentGroup  # a group of options in the help, to which more are added


# ---------------------------------------------------------------------------------------------------------------------
# The parser


_help_formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=22)  # what options mean begins early


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports a wrong command line as an InputError.

    Options must be spelled in full. The texts of the help keep their lines.
    """

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, formatter_class=_help_formatter, **options)
        version = f"{NAME} {project_version()}"
        self.add_argument("-V", "--version", action="version", version=version, help="show the version and exit")

    def parse_args(self, argv: Any, namespace: Any = None) -> Any:  # type: ignore[override]  # argv is required here
        """The options of a command line. Raises an InputError."""
        options, unknown = self.parse_known_intermixed_args(argv, namespace)
        for word in unknown:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            is_option = word.startswith("-")
            remedy = f"no such option{suggestion(word.partition('=')[0], known)}" if is_option else "one word too many"
            self.error(f"{shown(word)}: {remedy}")
        return options

    def error(self, message: str) -> NoReturn:
        end = " " if message.endswith("?") else "; "
        raise InputError(f"command line: {message}{end}see {self.prog} --help")


def run_command(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a command on this process's arguments, and end the process with its exit code.

    0: done. 1: a trial failed, or nobody reads the output any more. 2: the input is invalid, nothing was started.
    128 + signal number: stopped by a signal.
    """
    signals.install_handler(signals.raise_stopped)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except InputError as error:
        sys.stdout.flush()
        for message in error.messages:
            print(f"error: {message}", file=sys.stderr)
        code = 2
    except signals.Stopped as stopped:
        print(stopped, file=sys.stderr)
        code = stopped.exit_code
    except BrokenPipeError:  # such as `| head`, which ends before the output does
        sys.stderr.close()
        code = 1
    sys.exit(code)


# ---------------------------------------------------------------------------------------------------------------------
# Readers of values, for the `type` of an option. argparse reports their errors with the option's name.


def whole_number(at_least: int = 1) -> Callable[[str], int]:
    """A reader of one whole number."""

    def read(word: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", word) or int(word) < at_least:
            raise _must(word, f"be a whole number of at least {at_least}")
        return int(word)

    return read


def text(word: str) -> str:
    """Read a text that is not empty."""
    if not word:
        raise argparse.ArgumentTypeError("is empty; give a value, or leave it out")
    return word


def names(word: str) -> list[str]:
    """Read different names with commas between them."""
    words = word.split(",")
    if not all(words) or len(set(words)) < len(words):
        raise _must(word, "be different values with commas between")
    return words


def whole_numbers(word: str, at_least: int = 1) -> list[int]:
    """Read different whole numbers with commas between them."""
    return [whole_number(at_least)(one) for one in names(word)]


def folder_name(word: str) -> Path:
    """Read the path of a folder, which need not exist yet. `~` is read as a shell reads it."""
    folder = Path(os.path.expanduser(word))
    if not word or os.path.isfile(folder) or str(folder).startswith("~"):
        raise _must(word, "be a folder; choose another")
    return folder


def sweep_file(word: str) -> Path:
    """Read the path of a sweep file, or, where there is no such file, the name of one that ships: `table3_A`."""
    path = Path(word)
    if path.suffix or len(path.parts) != 1 or os.path.isfile(path):
        return path
    shipped = {file.stem: file for file in sorted(SHIPPED.glob("*.yaml"))}
    if word not in shipped:
        raise _must(word, f"be a sweep file, or the name of one that ships{suggestion(word, shipped)}")
    return shipped[word]


def _seeds(word: str) -> list[str]:
    return [str(seed) for seed in whole_numbers(word, 0)]


def _must(word: str, constraint: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{shown(repr(word))} must {constraint}")


# ---------------------------------------------------------------------------------------------------------------------
# The options of commands on a sweep file


def add_row_options(group: Options, scale: str) -> None:
    """Add the options that choose the rows of a sweep file, and the runs folder. scale: --scale's default, in words."""
    group.add_argument("--scale", type=text, metavar="S", help=f"{', '.join(scale_names())} or your own YAML ({scale})")
    keys = "values that win over the file's; for all keys: python -m transformer_pl.train --help"
    group.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=keys)
    add_runs_option(group)


def add_runs_option(group: Options | CommandParser) -> None:
    """Add the option that names the runs folder."""
    help = "the folder of all results (%(default)s)"
    group.add_argument("--runs", type=folder_name, default=DEFAULT_RUNS, metavar="DIR", help=help)


def add_sweep_options(parser: CommandParser) -> None:
    """Add the options that choose the trials of a sweep file, their table, and where a search keeps its study."""
    group = parser.add_argument_group("which trials")
    add_row_options(group, f"the file's, or {DEFAULT_SCALE}")
    group.add_argument("--seeds", type=_seeds, metavar="1,2", help="the seeds of each row (the file's, or 1)")
    tuned = "tune these keys for each row separately, by the same small search"
    group.add_argument("--retune", type=names, metavar="KEY,KEY", help=tuned)
    group.add_argument("--budget", type=whole_number(2), metavar="K", help=f"for --retune: trials per row ({BUDGET})")
    study = "of a search: a database (the file study.journal in the sweep's folder)"
    group.add_argument("--storage", type=text, metavar="URL", help=study)
    beside = "whether the table shows the paper's numbers (paper, unless the text is your own)"
    group.add_argument("--beside", choices=("none", "paper"), help=beside)


def complete_sweep_options(options: argparse.Namespace) -> None:
    """Read --set into a mapping, and fill in the default of --budget, which is an error without --retune."""
    options.set = read_pairs(options.set, "--set").values
    if not options.retune:
        refuse_options(options, ["budget"], "is for --retune, which is not given")
    options.budget = options.budget or BUDGET


def refuse_options(options: argparse.Namespace, flags: Sequence[str], why: str) -> None:
    """Raise an InputError for the first of these options that was given."""
    for flag in flags:
        if getattr(options, flag):
            raise InputError(f"--{flag.replace('_', '-')}: {why}; leave it out")


# ---------------------------------------------------------------------------------------------------------------------
# The folder of a sweep's results


def sweep_folder(sweep: Any, options: argparse.Namespace) -> Path:
    """`runs/sweeps/<name>@<scale>`; --set and --retune make another table, so they add a short hash."""
    name = as_folder(sweep_title(sweep.name, sweep.scale))
    if differs := other_table(options):
        name += "-" + hashlib.sha256(differs.encode()).hexdigest()[:6]
    return options.runs / "sweeps" / name


def other_table(options: argparse.Namespace) -> str:
    """The options that make another table of the sweep file, as they are typed."""
    words = ["--set", *(f"{key}={value}" for key, value in sorted(options.set.items()))] if options.set else []
    if options.retune:
        words += ["--retune", ",".join(options.retune), "--budget", str(options.budget)]
    return shlex.join(words)
