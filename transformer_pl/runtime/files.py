"""Files written atomically and read by a schema, and the rule for names of files."""

import json
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from transformer_pl.runtime.errors import InputError, warn

LONGEST_NAME = 128  # characters: W&B's limit for a project and a group, and about half of a file system's limit


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    with unfinished(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """The path of a new file, which is renamed to `path` when it is written to its end, or else removed."""
    part = path.with_name(f".{path.name}.{secrets.randbits(62)}")  # processes of two machines may share an id
    try:
        yield part
        put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


def put_in_place(part: Path, path: Path) -> None:
    """Give a file that was written to its end its name, once its bytes are on the disk."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[Path]:
    """An InputError that names the file, in place of an error of reading it."""
    try:
        yield path
    except InputError:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or repr(error)
        raise InputError(f"{path}: must be as it was written, but cannot be read: {reason}; {remedy}") from None


def read_json(path: Path, schema: type[BaseModel], consequence: str) -> dict[str, Any] | None:
    """The content of a JSON file, or None where there is none. One that does not match gives a warning and None.

    consequence: what the warning says will happen without the file.
    """
    try:
        content = json.loads(path.read_bytes())
        schema.model_validate(content)
        return content
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
    fits = 0 < len(name) <= LONGEST_NAME and name.isprintable() and name not in (".", "..")
    if fits and not set(name) & set(forbidden):
        return None
    characters = f"1 to {LONGEST_NAME} printable characters, none of {' '.join(forbidden)}"
    return f"must be a plain name: {characters}, not . or .."
