"""Files written atomically, and locked; and the rule for names of files."""

import errno
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
from pydantic import BaseModel, ValidationError

from transformer_pl.runtime.errors import warn

LONGEST_NAME = 128  # characters: W&B's limit for a project and a group, and about half of a file system's limit


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    unfinished = path.with_name(f".{path.name}.{secrets.randbits(62)}")  # processes of two machines may share an id
    try:
        unfinished.write_text(text, encoding="utf-8")
        put_in_place(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def put_in_place(unfinished: Path, path: Path) -> None:
    """Give a file that was written to its end its name, once its bytes are on the disk."""
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, json_text(value))


def json_text(value: object) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def try_writing(folder: Path) -> None:
    """Write 1 MiB into a folder and remove it. Raises an OSError where that fails, such as on a full disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(1 << 20))  # a full disk accepts an empty file, but not this
        probe.flush()
        os.fsync(probe.fileno())


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of an empty file, which is made if needed. Waits while another process holds it."""
    with filelock.FileLock(path):
        yield


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text of a file of at most `limit` bytes. Raises an OSError or a UnicodeDecodeError."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content.decode()


def load_json(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    """The content of a JSON file.

    Raises an OSError where it cannot be read, and a ValueError where it is no JSON or does not match the schema.
    """
    content = json.loads(path.read_bytes())
    try:
        schema.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return content


def read_json(path: Path, schema: type[BaseModel], consequence: str) -> dict[str, Any] | None:
    """The content of a JSON file, or None where there is none. One that cannot be loaded gives a warning and None.

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
