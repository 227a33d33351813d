"""Errors in what a user wrote, and warnings: how they are collected and printed."""

import difflib
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")

CORE = Path(__file__).parents[1]
FEW = 20  # names that a message lists
PACKAGES = {"site-packages", "dist-packages"}  # the names of folders of installed packages
SHOWN = 200  # characters of a value that a message shows


def shown(value: Any) -> str:
    """A value of the user's as a message shows it: on one line, shortened in its middle where it is long."""
    text = str(value)
    if len(text) > SHOWN:
        text = f"{text[: SHOWN - 80]}...{text[-40:]} ({len(text):,} characters)"
    return _printable(text)


def _printable(text: str) -> str:
    """The text on one line, with characters that would move a terminal's cursor escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class InputError(ValueError):
    """Invalid input. A command prints every message and ends with exit code 2 before it starts anything.

    Each message names the place, the constraint, the value (see `shown`) and the remedy. One error may carry several.
    """

    def __init__(self, *messages: str):
        self.messages = tuple(dict.fromkeys(map(_printable, messages)))
        super().__init__("\n".join(self.messages))


def collect_errors(function: Callable[[Value], Result], values: Iterable[Value]) -> dict[Value, Result]:
    """Call a function for each value and return the results by value.

    Raises one InputError with the messages of all values for which the function raised one.
    """
    results: dict[Value, Result] = {}
    messages: list[str] = []
    for value in values:
        try:
            results[value] = function(value)
        except InputError as error:
            messages += error.messages
    if messages:
        raise InputError(*messages)
    return results


@cache
def warn(message: str) -> None:
    """Print a warning to standard error; each message once per process."""
    print(f"warning: {_printable(message)}", file=sys.stderr, flush=True)


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, or all of them where they are few.

    Of dotted names, such as keys, the last parts are compared.
    """
    by_end = {known.rpartition(".")[2]: known for known in names}
    if close := difflib.get_close_matches(name.rpartition(".")[2], by_end, n=1):
        return f"; did you mean {by_end[close[0]]}?"
    return f"; known: {', '.join(by_end.values())}" if 0 < len(by_end) <= FEW else ""


def described(error: BaseException) -> str:
    """An exception with the file and line that it came from: the innermost of the user's own, where there is one."""
    calls = [(call.filename, call.lineno) for call in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        calls.append((error.filename or "", error.lineno))
    others = [call for call in calls if not call[0].startswith("<") and not installed(call[0])]
    users = [call for call in others if not Path(call[0]).is_relative_to(CORE)]
    file, line = (users or others or calls or [("import", None)])[-1]
    return f"{file}, line {line}: {type(error).__name__}: {error}"


def installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    path = os.path.abspath(file)
    return any(path.startswith(place) for place in _places_of_packages())


@cache
def _places_of_packages() -> tuple[str, ...]:
    """The folders of Python and of installed packages, each with a separator at its end."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    others = [Path(place) for place in sys.path if Path(place).name in PACKAGES]  # perhaps of another environment
    folders += [str(place) for place in others if any(place.glob("*.*-info"))]
    return tuple(os.path.join(os.path.abspath(folder), "") for folder in folders)
