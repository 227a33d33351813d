"""What commands print to: a terminal, or a pipe or a file, where no line is broken."""

import io
import os
import sys
from contextlib import suppress

from rich.console import Console
from rich.prompt import Confirm

UNBROKEN = 1000  # columns of what is not a terminal: a name that a program looks for stays on one line


class CommandConsole(Console):
    """A console that raises an error where nobody reads its output any more: rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def command_console() -> Console:
    """The console of a command's standard output. COLUMNS, where it is set, is its width."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # of an output that was opened as a file, and is a terminal by now
            sys.stdout.reconfigure(errors="replace")  # an output that has no Δ shows a question mark
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNBROKEN
    return CommandConsole(width=width, highlight=False, markup=False, emoji=False)


def say(console: Console, line: object) -> None:
    """Print a line of text. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=not console.is_terminal)


def ask(console: Console, question: str) -> bool:
    """Ask a question and wait for its answer. Nothing, and the end of the input, are no."""
    with suppress(EOFError):
        return Confirm.ask(question, console=console, default=False)
    console.print()
    return False


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_duration(seconds: float) -> str:
    """1:02:03, 2:03, 0:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
