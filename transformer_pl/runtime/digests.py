"""Hashes by which files, settings and code are known: SHA-256 in hexadecimal digits."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def text_digest(text: str, digits: int = 64) -> str:
    """The first digits of the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def value_digest(value: object, digits: int = 12, default: Callable[[Any], object] | None = None) -> str:
    """The first digits of the hash of a value as JSON, whatever the order of its keys.

    default: turns a value of another class into one that JSON has.
    """
    return text_digest(json.dumps(value, sort_keys=True, default=default), digits)


def file_digest(path: Path) -> str:
    """The hash of a file's content. Raises an OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
