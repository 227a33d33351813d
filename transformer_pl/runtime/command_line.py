"""The command line of every command: the parser, the readers of values that several commands share, the exit code."""

import argparse
import errno
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from transformer_pl.runtime import signals
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.files import LONGEST_NAME
from transformer_pl.runtime.version import NAME, project_version

Options = argparse._ArgumentGroup  # a group of options in the help, to which more are added


class HelpShown(Exception):
    """The parser has printed the help that `--help` asks for. The command has nothing else to do."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports a wrong command line as an InputError.

    Options must be spelled in full. Setting an option twice is an error. The texts of the help keep their lines.
    """

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **options)
        self.register("action", None, _StoreOnce)  # the default action, also of groups
        self.add_argument("-V", "--version", action=_Version, nargs=0, help="show the version and exit")

    def parse_args(self, argv: Any, namespace: Any = None) -> Any:  # type: ignore[override]  # argv is required here
        """The options of a command line. Raises an InputError."""
        words = list(argv)
        self._check_commas(words)
        options, unknown = self.parse_known_intermixed_args(words, namespace)
        wrong = next((word for word in unknown if word.startswith("-")), None)
        if wrong:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            near = suggestion(wrong.partition("=")[0], known)
            self.error(f"{shown(' '.join(unknown))}: no such option{near}")
        if unknown:
            last = self._get_positional_actions()[-1].metavar
            self.error(f"{shown(' '.join(unknown))}: one {last} at a time; leave it out")
        return options

    def _check_commas(self, words: Sequence[str]) -> None:
        """Refuse `--seeds 1 2`: the second number would be read as a word of its own."""
        for place, word in enumerate(words):
            option, _, value = word.partition("=")
            action = self._option_string_actions.get(option)
            if action is not None and re.fullmatch("[0-9]+,[0-9]+", str(action.metavar)):
                numbers = [value] * bool(value) + [*itertools.takewhile(_is_whole, words[place + 1 :])]
                if len(numbers) > 1:
                    self.error(f"{option}: must be separated by commas: {option} {','.join(numbers)}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """argparse calls this after it has printed the help."""
        raise HelpShown

    def error(self, message: str) -> NoReturn:
        end = " " if message.endswith("?") else "; "
        raise InputError(f"command line: {message}{end}see {self.prog} --help")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The options in one column, and what they mean in a second one that begins early."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=22)


class _Version(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        print(f"{NAME} {project_version()}")
        parser.exit()


class _StoreOnce(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "is set twice; set it once")
        setattr(namespace, self.dest, value)


LONGEST_NUMBER = 18  # digits
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # what writing to a device that takes no more raises

# Readers of values, for the `type` of an option. argparse reports their errors with the option's name.


def whole_number(at_least: int = 1, remark: str = "") -> Callable[[str], int]:
    """A reader of one whole number. remark: what the error message adds, such as why the bound is what it is."""

    def read(text: str) -> int:
        if not _is_whole(text) or int(text) < at_least:
            raise argparse.ArgumentTypeError(
                f"{shown(repr(text))} must be a whole number of at least {at_least}{remark}"
            )
        return int(text)

    return read


def whole_numbers(at_least: int = 0, example: str = "1,2") -> Callable[[str], list[int]]:
    """A reader of different whole numbers with commas between them."""

    def read(text: str) -> list[int]:
        words = text.split(",")
        if all(map(_is_whole, words)):
            numbers = [int(word) for word in words]
            if len(set(numbers)) == len(numbers) and min(numbers) >= at_least:
                return numbers
        bound = f" of at least {at_least}" if at_least else ""
        raise argparse.ArgumentTypeError(
            f"{shown(repr(text))} must be different whole numbers{bound} with commas between, such as {example}"
        )

    return read


def _is_whole(text: str) -> bool:
    return bool(re.fullmatch(f"[0-9]{{1,{LONGEST_NUMBER}}}", text))


def positive_number(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text if text.isascii() else "")  # which would read the digits of every script
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} must be a number above 0, such as 9.5")
    return number


def text(word: str) -> str:
    """Read a text that is not empty."""
    if not word:
        raise argparse.ArgumentTypeError("is empty; give a value, or leave it out")
    return word


def names(text: str) -> list[str]:
    """Read different names with commas between them."""
    words = text.split(",")
    if not all(words) or len(set(words)) < len(words):
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} must be different keys with commas between")
    return words


def folder_name(text: str) -> Path:
    """Read the path of a folder, which need not exist yet. `~` is read as a shell reads it."""
    folder = Path(os.path.expanduser(text))
    if not text or (os.path.exists(folder) and not os.path.isdir(folder)):
        raise argparse.ArgumentTypeError(f"{shown(repr(text))} must be a folder; choose another")
    if str(folder).startswith("~"):
        raise argparse.ArgumentTypeError(
            f"{shown(repr(text))} must be a folder, but there is no such user; choose another"
        )
    try:
        folder.joinpath(*["n" * LONGEST_NAME] * 3).exists()  # the files of a trial lie so deep
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{shown(repr(text))} must be a folder, but: {error.strerror}; choose another"
        ) from None
    return folder


def run_command(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a command on this process's arguments, and end the process with its exit code.

    0: done. 1: a trial failed, or nobody reads the output any more. 2: the input is invalid, nothing was started.
    128 + signal number: stopped by a signal.
    """
    signals.install_handler(signals.raise_stopped)
    try:
        with signals.component_code():  # a component that calls sys.exit must not look like a finished command
            code = main(sys.argv[1:])
        sys.stdout.flush()
    except HelpShown:
        code = 0
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
    except OSError as error:
        if error.errno not in FULL:
            raise
        with suppress(OSError):
            print(f"error: {error.strerror}: the output cannot be written; make room", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        code = 1
    sys.exit(code)
