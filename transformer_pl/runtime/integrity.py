"""Whether a file still holds what was written to it: the digest of its bytes, and the shape of its JSON.

Flipped bytes load in silence, and a power cut leaves files empty, cut short or filled with zeros.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from transformer_pl.runtime.errors import warn


def sha256(path: Path) -> str:
    """64 hexadecimal digits. A GB takes about a second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, digest: str | None) -> None:
    """Raise a ValueError where the sha256 of a file is not `digest`, and an OSError where it cannot be read.

    None: it was written without one, and is only looked for.
    """
    if digest is None:
        path.stat()
    elif sha256(path) != digest:
        raise ValueError("its bytes are not those that were written (their sha256 differs)")


def load_json(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """The content of a JSON file. Raises a ValueError where it is damaged or not of the shape, and an OSError."""
    try:
        content = json.loads(path.read_bytes().decode())
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))) from None
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return content


def read_json(path: Path, shape: type[BaseModel], otherwise: str) -> dict[str, Any] | None:
    """The content of a JSON file; None without one. None, too, for a damaged one, which a warning names.

    otherwise: what becomes of it then, for the warning.
    """
    try:
        return load_json(path, shape)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warn(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; {otherwise}")
        return None
