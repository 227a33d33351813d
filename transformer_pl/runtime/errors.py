"""Errors in what a user wrote, and warnings: how they are collected and printed."""

import difflib
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


class InputError(ValueError):
    """Invalid input. A command prints every message and ends with exit code 2 before it starts anything.

    Each message names the place, the constraint, the value and the remedy. One error may carry several messages.
    """

    def __init__(self, *messages: str):
        self.messages = tuple(dict.fromkeys(messages))
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
    print(f"warning: {message}", file=sys.stderr, flush=True)


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, or all of them."""
    names = list(names)
    if not names:
        return ""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    by_end = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {(by_end or close)[0]}?" if by_end or close else f"; known: {', '.join(names)}"
