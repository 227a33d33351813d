"""Errors in what a user wrote, and warnings: how they are collected and printed."""

import difflib
import re
import reprlib
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


SHOWN = 200  # characters of a value that a message shows
_BRIEF = reprlib.Repr()
_BRIEF.maxlist = _BRIEF.maxdict = _BRIEF.maxtuple = _BRIEF.maxset = 8  # entries; of aliased YAML there may be billions
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 4, SHOWN, SHOWN


def shown(value: Any) -> str:
    """A value of the user's as a message shows it: on one line, shortened in its middle where it is long."""
    text = value if isinstance(value, str) else _BRIEF.repr(value) if isinstance(value, list | dict) else str(value)
    if len(text) > SHOWN:
        text = f"{text[: SHOWN - 80]}...{text[-40:]} ({len(text):,} characters)"
    return _printable(text)


def message_of(error: BaseException) -> str:
    """What an exception says. A user's own exception may fail to say it, in any way."""
    try:
        return str(error)
    except BaseException:
        return "its message cannot be read, as its __str__ fails"


def _printable(text: str) -> str:
    """The text with characters that would move a terminal's cursor escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


LISTED = "\n  "  # before each entry of a list in a message, which is otherwise one line


def as_printed(message: str) -> str:
    """The message with its long words, such as paths, shortened, and ends of lines in a user's words escaped."""
    short = re.sub(rf"\S{{{2 * SHOWN},}}", lambda word: shown(word[0]), message)
    return LISTED.join(map(_printable, short.split(LISTED)))


class InputError(ValueError):
    """Invalid input. A command prints every message and ends with exit code 2 before it starts anything.

    Each message names the place, the constraint, the value (see `shown`) and the remedy. One error may carry several.
    """

    def __init__(self, *messages: str):
        self.messages = tuple(dict.fromkeys(map(as_printed, messages)))
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
    print(f"warning: {as_printed(message)}", file=sys.stderr, flush=True)


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, or all of them."""
    names = list(names)
    if not names:
        return ""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    by_end = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {(by_end or close)[0]}?" if by_end or close else f"; known: {', '.join(names)}"
