"""What commands print to: a terminal, or a pipe or a file, where no line is broken; and a log beside it."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, TaskID
from rich.segment import Segment
from rich.status import Status

from transformer_pl.runtime.files import open_to_append

UNBROKEN = 1000  # columns of what is not a terminal: a name that a program looks for stays on one line
PIPED = 120  # columns of a table there
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters, but the tab and the end of a line


def plain(text: str) -> str:
    """The text with its control characters escaped. With them, a runs folder of a stranger could steer the terminal."""
    return STEERING.sub(lambda character: ascii(character[0])[1:-1], text)


def for_output(text: str) -> str:
    """How to print a text for programs: unchanged, but `plain` on a terminal."""
    return plain(text) if sys.stdout.isatty() else text


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Send to standard error what users' code, and programs that it starts, print meanwhile."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)


class PlainConsole(Console):
    """A console whose texts are `plain`."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)


def announce(what: str) -> None:
    """Tell who waits at a terminal what a command does before its first output. Standard output stays as it is."""
    if sys.stderr.isatty():
        print(plain(what), file=sys.stderr)


def command_console() -> Console:
    """The console of a command's standard output. COLUMNS, where it is set, is its width."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNBROKEN
    return PlainConsole(width=width, highlight=False, markup=False, emoji=False)


def table_width(console: Console) -> int:
    """The columns that a table may take."""
    return PIPED if console.width == UNBROKEN else console.width


def say(console: Console, line: object) -> None:
    """Print a line of text. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=not console.is_terminal)


def say_next(console: Console, what: str) -> None:
    """Say what to do next; on standard error where the output goes to a program or into a file."""
    if console.is_terminal:
        say(console, f"next, {what}")
    else:
        print(plain(f"next, {what}"), file=sys.stderr)


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_duration(seconds: float) -> str:
    """1:02:03, 2:03, 0:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def duration_range(low: float, high: float) -> str:
    """From so many seconds to so many: 11 to 23 minutes."""
    size, unit = next(((size, unit) for size, unit in ((3600, "hours"), (60, "minutes")) if low >= 2 * size), (1, "s"))
    return f"{low / size:.0f} to {high / size:.0f} {unit}"


def short_number(number: float, digits: int = 3) -> str:
    """A number in three digits and a unit, or as a power of ten: 412K, 63.1M, 3.2e16."""
    if number >= 1e10:
        return f"{number:.1e}".replace("e+", "e")
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.0f}"


def short_numbers(numbers: Sequence[int]) -> list[str]:
    """Numbers below 10 billion, in as many digits as it takes that different ones look different: 431K, 431.04K."""
    different = len(set(numbers))
    enough = (digits for digits in range(3, 10) if len({short_number(n, digits) for n in numbers}) == different)
    digits = next(enough, 10)
    return [short_number(number, digits) for number in numbers]


@contextmanager
def shown_stages(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show what is being done: a line for each stage, in a terminal with a bar.

    Yields a function. Call it with the name of a stage, how much of it is done, and how much there is, if known.
    """
    with Progress(console=console, transient=True, disable=not console.is_interactive) as progress:
        bars: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=total)
                if not console.is_interactive:
                    say(console, stage)
            progress.update(bars[stage], completed=done)

        yield show


@contextmanager
def waiting(console: Console, what: str) -> Iterator[Status]:
    """Show what a command waits for, until it is done. Where the output is no terminal, it gets a line."""
    if not console.is_terminal:
        say(console, what)
    with console.status(what) as status:
        yield status


class LogStream(io.TextIOBase):
    """A text stream that writes to another stream and to a log file."""

    def __init__(self, stream: TextIO, log: io.FileIO):
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        with suppress(OSError):  # a full disk
            self._log.write(text.encode("utf-8", "replace"))
        with suppress(OSError):  # an output that was closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append standard output and standard error to a log file, unless standard output is that file already."""
    with open_to_append(path) as log:  # on a full disk, closing it cannot fail
        if os.path.samestat(os.fstat(1), os.fstat(log.fileno())):
            yield
        else:
            out, err = LogStream(sys.stdout, log), LogStream(sys.stderr, log)
            with redirect_stdout(out), redirect_stderr(err):
                yield
