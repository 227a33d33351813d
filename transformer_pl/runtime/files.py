"""Files written atomically, checked by their sha256, and locked; and the rule for names of files.

Reads are checked because flipped bytes load without an error, and a power cut leaves files empty, cut short or filled
with zeros.
"""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ValidationError

from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.errors import warn

LONGEST_NAME = 128  # characters: W&B's limit for a project and a group, and about half of a file system's limit

OTHER_BYTES = "its bytes are not those that were written (their sha256 differs)"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of network file systems without locks


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    unfinished = path.with_name(f".{path.name}.{_own_number()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
        put_in_place(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _own_number() -> int:
    """A number that no other process takes: those on other machines, or in other containers, may have this one's id."""
    return secrets.randbits(62)


def put_in_place(unfinished: Path, path: Path) -> None:
    """Give a file that was written to its end its name, once its bytes are on the disk.

    A folder in its place is set aside.
    """
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    if path.is_dir() and not path.is_symlink():
        warn(f"{path}: must be a file, but is a folder; it is set aside as {set_aside(path).name}")
    crash_point("a file: before it has its name")
    unfinished.replace(path)
    crash_point("a file: after it has its name")


def set_aside(path: Path, stays: bool = False) -> Path:
    """Rename something damaged to `NAME.damaged`, or with the next free number, and return that path.

    stays: it keeps its old name as well, until something else gets that name.
    """
    endings = chain([""], (f"-{number}" for number in count(2)))
    names = (path.with_name(f"{path.name}.damaged{ending}") for ending in endings)
    for aside in names:
        if stays:
            with suppress(FileExistsError):
                os.link(path, aside)
                return aside
        elif not os.path.lexists(aside):
            return path.rename(aside)
    raise AssertionError("there is always another number")


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, json_text(value))


def json_text(value: object) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def try_writing(folder: Path) -> None:
    """Write 1 MiB into a folder and remove it. Raises an OSError where that fails, such as on a full disk."""
    probe = folder / f".probe.{_own_number()}"
    folder.mkdir(parents=True, exist_ok=True)
    with probe.open("wb") as file:
        probe.unlink()  # now, so that a process that is killed leaves nothing
        file.write(bytes(1 << 20))  # a full disk accepts an empty file, but not this
        file.flush()
        os.fsync(file.fileno())


def try_lock(file: IO, kind: int) -> bool:
    """Take a lock (fcntl.LOCK_SH or LOCK_EX) without waiting; False where another process holds it.

    On a file system that has no locks everybody has it, so nothing may rely on it alone.
    """
    try:
        _lock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(file: IO, operation: int) -> None:
    """Call flock; nothing on a file system without locks."""
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of an empty file, which is made if needed. Waits while another process holds it.

    Where the file system has no locks, it does nothing: use it to save double work, not to prevent it.
    """
    with path.open("a") as file:
        _lock(file, fcntl.LOCK_EX)
        yield


def sha256(path: Path) -> str:
    """The digest of a file as 64 hexadecimal digits. A GB takes about a second."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, digest: str | None) -> None:
    """Raise a ValueError where the sha256 of a file is not `digest`, and an OSError where the file cannot be read.

    None: older versions stored no digest; then the file must only exist.
    """
    if digest is None:
        path.stat()
    elif sha256(path) != digest:
        raise ValueError(OTHER_BYTES)


def read_checked(path: Path, digest: str | None) -> bytes:
    """The bytes of a file, read once. Raises as `check_digest` does."""
    check_regular(path)
    content = path.read_bytes()
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(OTHER_BYTES)
    return content


def check_regular(path: Path) -> None:
    """Raise an OSError for a path that is no file but a pipe or a device, to read which might never end.

    Also where there is nothing. A folder is left to the error of opening it.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text of a file of at most `limit` bytes. Raises an OSError or a UnicodeDecodeError."""
    check_regular(path)
    if path.stat().st_size > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return path.read_text(encoding="utf-8")


def load_json(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    """The content of a JSON file.

    Raises an OSError where it cannot be read, and a ValueError where it is damaged or does not match the schema.
    """
    check_regular(path)
    try:
        content = json.loads(path.read_bytes().decode())
        schema.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))) from None
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return content


def read_json(path: Path, schema: type[BaseModel], consequence: str) -> dict[str, Any] | None:
    """The content of a JSON file, or None where there is none. A damaged file gives a warning and None.

    consequence: what the warning says will happen without the file.
    """
    try:
        return load_json(path, schema)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warn(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; {consequence}")
        return None


def broken_name_rule(name: str, without: str = "") -> str | None:
    r"""The rule that a name breaks which must not lead out of its folder; None if it breaks none.

    without: characters that are forbidden beside `/` and `\`.
    """
    forbidden = "/\\" + without
    if (
        0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and name not in (".", "..")
        and not set(name) & set(forbidden)
    ):
        return None
    characters = f"1 to {LONGEST_NAME} printable characters, none of {' '.join(forbidden)}"
    return f"must be a plain name: {characters}, not . or .."
