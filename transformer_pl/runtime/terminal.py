"""What commands print to: a terminal, or a pipe or a file, where no line is broken."""

import io
import os
import sys
from contextlib import suppress

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from transformer_pl.runtime.signals import Stopped

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
    """Ask a question and wait for its answer: True for `y` and `yes`. Nothing, and the end of the input, are no."""
    console.print(f"{question} [y/N] ", end="")
    try:
        answer = input()
    except EOFError:
        answer = ""
        console.print()
    except Stopped:
        console.print()
        raise
    return answer.strip().lower() in ("y", "yes")


def can_answer() -> bool:
    """Whether a person sits before this command: in the background, input would stop it."""
    try:
        return sys.stdout.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # standard input is no terminal, or closed
        return False


def fits(console: Console, table: Table) -> bool:
    """Whether no cell of a table without a box must be broken."""
    widths = [max(column.width or 0, *map(cell_len, _cells(column))) for column in table.columns]
    return sum(widths) + table.padding[1] * (len(widths) - 1) <= console.width


def _cells(column: Column) -> list[str]:
    return [str(column.header), *map(str, column.cells)]


def print_table(console: Console, table: Table) -> None:
    """Print a table without a box. One that fits is written at once: rich takes a millisecond for each row.

    Its cells are strings of one line, and its columns have no widths set.
    """
    if not fits(console, table):
        console.print(table)
        return
    gap, padded = " " * table.padding[1], []
    for column in table.columns:
        cells = _cells(column)
        width = max(map(cell_len, cells))
        missing = [" " * (width - cell_len(cell)) for cell in cells]
        pairs = zip(missing, cells, strict=True) if column.justify == "right" else zip(cells, missing, strict=True)
        padded.append(list(map("".join, pairs)))
    header, *lines = (gap.join(cells).rstrip() for cells in zip(*padded, strict=True))
    console.print(Text(header, style="bold"), soft_wrap=True)
    if lines:
        console.out("\n".join(lines), highlight=False)


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
