"""Files that options name: a path counts by the content of its file or folder, wherever that lies.

A path is what `pathlib` has made, and a text where the declared type says path, also in lists, tuples, mappings and
dataclasses. A default counts, too, as the class reads its file; so does the default of a class from which that one is
derived.
"""

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from transformer_pl.config import Component
from transformer_pl.config.components import is_core, mentions, options_of_class
from transformer_pl.runtime.digests import file_digest
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import reading

ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)


def file_contents(component: Component, before: int) -> dict[str, Any]:
    """By option, its value with {"content": SHA-256} in the place of each path, for the options that name files.

    A path that does not exist stays as it is written.

    before: how many arguments the constructor has before its options. Raises an InputError that names the option for a
    file that cannot be read, and for a value that is no path where its type says path.
    """
    contents: dict[str, Any] = {}
    for name, value in _values(component, before).items():
        found: list[Path] = []
        try:
            replaced = _mapped(value, partial(_content, found))
        except InputError as error:
            raise InputError(*(f"{component.path}: option {name}: {message}" for message in error.messages)) from None
        if found:
            contents[name] = replaced
    return contents


def missing_files(component: Component, before: int) -> list[Path]:
    """The paths of a component where nothing lies."""
    parts: list[Any] = []
    _mapped(_values(component, before), parts.append)
    return [Path(part) for part in parts if isinstance(part, os.PathLike) and not Path(part).expanduser().exists()]


def content_digest(path: Path) -> str:
    """The SHA-256 of a file, or of the files of a folder. A process reads it once, unless its files change."""
    return _digest(path, tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in _files(path)))


def _values(component: Component, before: int) -> dict[str, Any]:
    """By option, the values that may name files: those given, and defaults. Path stands for text that its type says."""
    values: dict[str, Any] = {}
    options: dict[str, inspect.Parameter] = {}
    if not is_core(component.path):
        with suppress(Exception):  # of a class that cannot be imported, which `check_components` reports
            options = options_of_class(component, before, inherited=True)
    for name, option in options.items():
        value, parts = component.options.get(name, option.default), list[Any]()
        _mapped(option.default, parts.append)
        says_path = mentions(option.annotation, os.PathLike)
        if says_path and value not in (None, "", option.empty):
            try:
                value = TypeAdapter(option.annotation, config=ANY_CLASS).validate_python(value)
            except ValidationError:
                if name not in component.options:  # else `check_components` reports it
                    place = f"{component.path}: option {name} = {shown(value)}"
                    raise InputError(f"{place}: must be a path by default, as its type says; give it one") from None
        if says_path or any(isinstance(part, os.PathLike) for part in parts):
            values[name] = value
    return values


def _content(found: list[Path], part: Any) -> Any:
    """What stands in the place of a part of an option's value. found: gets the path that it is, if it exists."""
    if not isinstance(part, os.PathLike | str) or not part:
        return part
    path = Path(part).expanduser()
    with reading(path, "fix it or its permissions"):
        if not path.exists():
            return str(part)
        found.append(path)
        return {"content": content_digest(path)}


def _mapped(value: Any, use: Callable[[Any], Any]) -> Any:
    """A value with what `use` returns in the place of each part of it. A text that is a key stays as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        value = sorted(value.items(), key=str)
        return [[key if isinstance(key, str) else use(key), _mapped(part, use)] for key, part in value]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)  # its own order differs between processes
    return [_mapped(part, use) for part in value] if isinstance(value, list | tuple | Iterator) else use(value)


def _files(path: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """A file, or the files of a folder in the order of their names, but no folder that a link puts into itself."""
    if path.is_dir():
        if (folder := path.resolve()) not in above:
            for child in sorted(path.iterdir()):
                yield from _files(child, above | {folder})
    elif path.is_file():
        yield path
    elif path.exists():  # unlike the target of a link
        raise InputError(f"{path}: must be a file or a folder, whose content counts; give another path")


@cache
def _digest(path: Path, state: tuple[tuple[Path, int, int], ...]) -> str:
    """state: what changes with the content: each file, its size and time."""
    digest = hashlib.sha256()
    for file, *_ in state:
        digest.update(f"{file.relative_to(path)}:".encode() if path.is_dir() else b"")
        digest.update(bytes.fromhex(file_digest(file)))
    return digest.hexdigest()
