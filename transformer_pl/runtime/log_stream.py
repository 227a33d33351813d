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


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append standard output and standard error to a log file, unless standard output is that file already."""
    with path.open("ab", buffering=0) as log:
        if os.path.samestat(os.fstat(1), os.fstat(log.fileno())):
            yield
        else:
            out, err = LogStream(sys.stdout, log), LogStream(sys.stderr, log)
            with redirect_stdout(out), redirect_stderr(err):
                yield
