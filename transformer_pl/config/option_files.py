"""Files that options name: an option declared as a `Path` counts by the content of its file, wherever that lies."""

import hashlib
import inspect
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from typing import Any, get_args

from transformer_pl.config import Component, Config, custom_components_by_key
from transformer_pl.config.components import before_options, declared_types
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import reading


def file_digests(component: Component, before: int) -> dict[str, str]:
    """By option, the SHA-256 of the file that it names, or of all files in the folder that it names.

    An option whose path does not exist is left out. before: how many arguments the constructor has before its options.
    Raises an InputError for a file that cannot be read.
    """
    if not component.options:
        return {}
    declared: dict[str, Any] = {}
    with suppress(InputError):  # a class that cannot be imported is reported by `check_components`
        declared = declared_types(component, before)
    paths = {
        name: Path(str(value)).expanduser()
        for name, value in component.options.items()
        if value is not None and _is_path(declared.get(name))
    }
    return {name: _digest(path, _state(path)) for name, path in paths.items() if path.exists()}


def option_contents(config: Config) -> dict[str, str]:
    """By key, such as `model.position.file`, the digests of the files of a config's components."""
    return {
        f"{key}.{name}": digest
        for key, component in custom_components_by_key(config).items()
        for name, digest in file_digests(component, before_options(key)).items()
    }


def _is_path(declared: Any) -> bool:
    """Whether a type is Path, or has it among its alternatives."""
    return any(_is_path(part) for part in get_args(declared)) or (
        inspect.isclass(declared) and issubclass(declared, PurePath | os.PathLike)
    )


def _files(path: Path) -> Iterator[Path]:
    yield from sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _state(path: Path) -> tuple[Any, ...]:
    """What changes with the content of a file or folder: the size and time of each file."""
    return tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in _files(path))


@cache  # a process reads large files once, unless their state changes
def _digest(path: Path, state: tuple[Any, ...]) -> str:
    digest = hashlib.sha256()
    for file in _files(path):
        with reading(file, "fix the file or its permissions"), file.open("rb") as content:
            digest.update(f"{file.relative_to(path)}:".encode() if path.is_dir() else b"")
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
