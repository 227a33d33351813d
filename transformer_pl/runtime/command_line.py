"""The command line of every command: the parser, the readers of values, the exit code.

The options of a command are the fields of a dataclass, each made by `option`: its type, default and sentence are the
parser's, the help's, the API's and those of the command line that is written into a script or a plan.
"""

import argparse
import csv
import errno
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field, fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from transformer_pl.runtime import signals
from transformer_pl.runtime.environment import NAME, project_version
from transformer_pl.runtime.errors import InputError, shown, suggestion

DEFAULT_RUNS = Path("runs")

Options = TypeVar("Options")


# ---------------------------------------------------------------------------------------------------------------------
# The parser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Texts keep their indented lines; the others are paragraphs. What is too wide is broken between words.

    An example and what it does, with blanks between them, come on lines of their own.
    """

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=22)  # what options mean begins early

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(re.sub(r"^(\S.*)\n(?=\S)", r"\1 ", text, flags=re.M), width, indent)

    def format_help(self) -> str:
        lines = super().format_help().splitlines()
        return "".join(f"{part}\n" for line in lines for part in self._broken(line) or [""])

    def _broken(self, line: str) -> list[str]:
        if len(line) <= self._width:
            return [line]
        usage, indent = re.match("(usage: )?( *)", line).groups("")  # type: ignore[union-attr]  # it matches everywhere
        after = " " * len(usage) + (indent and indent + "    ")
        wrapped = partial(textwrap.wrap, width=self._width, break_long_words=False, break_on_hyphens=False)
        example, *what = re.split(r"(?<=\S)  +(?=\S)", line, maxsplit=1)
        if what and (column := line.index(what[0])) <= self._width // 3:  # a table
            return wrapped(line, subsequent_indent=" " * column)
        parts = [(example, ""), *((text, after) for text in what)]
        return [part for text, first in parts for part in wrapped(text, initial_indent=first, subsequent_indent=after)]


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports a wrong command line as an InputError.

    Options must be spelled in full. The texts of the help keep their lines.
    """

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **options)
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

    0: done. 1: a trial failed, or the output was closed. 2: the input is invalid, nothing was started.
    128 + signal number: stopped by a signal.
    """
    signals.install_handler(signals.raise_stopped)
    try:
        _prepare_outputs()
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except InputError as error:
        code = 2
        print(*(f"error: {message}" for message in error.messages), sep="\n", file=sys.stderr)
    except signals.Stopped as stopped:
        code = stopped.exit_code
        print(stopped, file=sys.stderr)
    except BrokenPipeError:  # such as `| head`, which ends before the output does
        code = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as Python flushes it again
    except OSError as error:  # of any path that somebody has given
        if error.errno != errno.ENAMETOOLONG:
            raise
        code = 2
        print(f"error: {shown(error.filename)}: must be a path, but: {error.strerror}; give another", file=sys.stderr)
    sys.exit(code)


def _prepare_outputs() -> None:
    """Let files and pipes get UTF-8; a terminal shows `?` for what it lacks.

    Raises an InputError where an output was closed by `>&-`, as the next file that is opened would take its place.
    """
    if None in (sys.stdout, sys.stderr):
        raise InputError("standard output, standard error: must be open; send to /dev/null what you do not want")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


# ---------------------------------------------------------------------------------------------------------------------
# Readers of values, for the `type` of an option. argparse reports their errors with the option's name.


def whole_number(at_least: int = 1) -> Callable[[str], int]:
    """A reader of one whole number."""

    def read(word: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", word) or int(word) < at_least:
            raise must_be(word, f"be a whole number of at least {at_least}")
        return int(word)

    return read


def names(word: str) -> tuple[str, ...]:
    """Read different names with commas between them. A name with a comma in it stands in double quotes."""
    words = tuple(name for line in csv.reader(io.StringIO(word, newline=""), skipinitialspace=True) for name in line)
    if not words or not all(words) or len(set(words)) < len(words):
        raise must_be(word, "be different values with commas between")
    return words


def whole_numbers(word: str, at_least: int = 1) -> tuple[int, ...]:
    """Read different whole numbers with commas between them."""
    return tuple(map(whole_number(at_least), names(word)))


def folder_name(word: str) -> Path:
    """Read the path of a folder, which need not exist yet. `~` is read as a shell reads it."""
    return Path(os.path.expanduser(word))


def must_be(word: str, constraint: str) -> argparse.ArgumentTypeError:
    """The error with which a reader refuses a value. constraint: what follows `must`."""
    return argparse.ArgumentTypeError(f"{shown(repr(word))} must {constraint}")


# ---------------------------------------------------------------------------------------------------------------------
# Options, stated once


def option(help: str, default: Any = None, group: str = "", **more: Any) -> Any:
    """A field of a dataclass that is an option of a command. Its type says how its value is read, unless `type` does.

    help: a sentence, with the default in parentheses. default: a value, or a function that makes it; MISSING where one
    is required. group: the heading of the help under which it stands. more: what else argparse's add_argument takes;
    `positional=True` for a word without a name; `convert`, what makes the value of the words of an option that takes
    several.
    """
    kind = "default_factory" if callable(default) else "default"
    return field(**{kind: default}, metadata={"help": help, "group": group, **more})


def runs_option(group: str = "") -> Any:
    """The option that names the runs folder."""
    help = f"the folder of all results ({DEFAULT_RUNS})"
    return option(help, default=DEFAULT_RUNS, metavar="DIR", group=group, type=folder_name)


def add_options(parser: CommandParser, kind: type) -> None:
    """Add the options of a dataclass to a parser, by groups. Their defaults stay there."""
    types, groups = get_type_hints(kind), dict[str, Any]({"": parser})
    for stated in _options(kind):
        how = {} if "nargs" in stated.metadata else _by_type(types[stated.name])
        about = {"default": None, **how, **stated.metadata}
        title, is_positional = about.pop("group"), about.pop("positional", False)
        about.pop("convert", None)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(stated.name if is_positional else _flag(stated), **about)


def options_of(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """The options of a dataclass from what a parser has read. Raises an InputError."""
    convert = {stated.name: stated.metadata.get("convert", lambda value: value) for stated in fields(kind)}  # type: ignore[arg-type]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return kind(**{name: convert[name](value) for name, value in values.items() if value is not None})


def words_of(options: Any) -> list[str]:
    """The command line that gives these options."""
    words: list[str] = []
    for stated in _options(options):
        value = getattr(options, stated.name)
        if stated.metadata.get("positional"):
            words.insert(0, str(value))
        elif value != stated.default and value not in ((), {}):
            words += _words(stated, value)
    return words


def _words(stated: Field, value: Any) -> list[str]:
    """The words that give an option a value other than its default."""
    flag = _flag(stated)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, Mapping):
        return [flag, *(f"{key}={setting}" for key, setting in value.items())]
    several = [str(part) for part in value] if isinstance(value, tuple) else [str(value)]
    if stated.metadata.get("action") == "append":  # pairs
        return [word for pair in value for word in (flag, "=".join(map(str, pair)))]
    return [flag, *(several if "nargs" in stated.metadata else [",".join(several)])]


def refuse_options(options: object, flags: Sequence[str], why: str) -> None:
    """Raise an InputError for the first of these options that was given."""
    for flag in flags:
        if getattr(options, flag) not in (None, False, [], (), {}):
            raise InputError(f"--{flag.replace('_', '-')}: {why}; leave it out")


def _options(kind: Any) -> list[Field]:
    """The fields of a dataclass that are options."""
    return [stated for stated in fields(kind) if stated.metadata]


def _flag(stated: Field) -> str:
    return f"--{stated.name.replace('_', '-')}"


def _by_type(declared: Any) -> dict[str, Any]:
    """How argparse reads a value of a declared type."""
    if declared is bool:
        return {"action": "store_true"}
    if NoneType in get_args(declared):
        declared = next(kind for kind in get_args(declared) if kind is not NoneType)
    if get_origin(declared) is Literal:
        return {"choices": get_args(declared)}
    if declared is bool:
        return {"action": argparse.BooleanOptionalAction}
    readers = {int: whole_number(), Path: Path, float: float, tuple[str, ...]: names, tuple[int, ...]: whole_numbers}
    return {"type": readers.get(declared, str)}
