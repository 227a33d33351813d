"""Files of text, gzip or plain, read line by line. An error in one names the file and the line."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import check_regular, sha256

LONGEST_LINE = 1 << 24  # bytes; more is no sentence, but a file of another kind


def digest_of(path: Path) -> str:
    with _readable(path):
        return sha256(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        check_regular(path)
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}; fix the file or its permissions") from None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file, gzip or plain. What happens while it is read is reported, too."""
    with _readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield file


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, gzip or plain. Only \\n ends a line, not the other separators of Python."""
    with opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
            if len(line) > LONGEST_LINE:
                raise InputError(
                    f"{path} line {number}: must have at most {LONGEST_LINE:,} bytes, but has more; "
                    "break it into sentences"
                )
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path} line {number}: must be UTF-8, but byte {error.start + 1} of the line is "
                    f"0x{line[error.start]:02x}; convert the file to UTF-8"
                ) from None
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield text.removesuffix("\n").removesuffix("\r")
