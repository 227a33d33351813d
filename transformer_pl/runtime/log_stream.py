"""Copy what a process prints to a log file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO


class LogStream:
    """A text stream that writes to another stream and to a log file."""

    def __init__(self, stream: TextIO, log: BinaryIO):
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        with suppress(OSError):  # a full disk: the terminal still gets the text
            self._log.write(text.encode(errors="replace"))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prints_to(path: Path) -> bool:
    """Whether the standard output of this process is that file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(1), path.stat())
    return False


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append standard output and standard error to a log file, unless standard output is that file already."""
    with path.open("ab", buffering=0) as log:
        if prints_to(path):
            yield
        else:
            out, err = LogStream(sys.stdout, log), LogStream(sys.stderr, log)
            with redirect_stdout(out), redirect_stderr(err):
                yield
