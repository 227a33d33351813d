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
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel

from transformer_pl.config import Component
from transformer_pl.config.components import NamedByText, adapter, is_core, mentions, options_of_class
from transformer_pl.runtime.digests import file_digest
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import reading


def file_contents(component: Component, before: int) -> dict[str, Any]:
    """By option, its value with {"content": SHA-256} in the place of each path, for the options that name files.

    A path that does not exist stays as it is written.

    before: how many arguments the constructor has before its options. Raises an InputError that names the option for a
    file that cannot be read, and for a value that does not have the declared type.
    """
    contents: dict[str, Any] = {}
    for name, (value, declared) in _values(component, before).items():
        found: list[Path] = []
        try:
            replaced = mapped(value, partial(_content, found), declared)
        except InputError as error:
            raise InputError(*(f"{component.path}: option {name}: {message}" for message in error.messages)) from None
        if found:
            contents[name] = replaced
    return contents


def missing_files(component: Component, before: int) -> list[Path]:
    """The paths of a component where nothing lies."""
    paths = [path for value, declared in _values(component, before).values() for path in _paths(value, declared)]
    return [path for path in paths if not path.exists()]


def content_digest(path: Path) -> str:
    """The SHA-256 of a file, or of the files of a folder. A process reads it once, unless its files change."""
    return _digest(path, tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in _files(path)))


def _values(component: Component, before: int) -> dict[str, tuple[Any, Any]]:
    """By option, the values that may name files, those given and defaults, each with its declared type."""
    values: dict[str, tuple[Any, Any]] = {}
    options: dict[str, inspect.Parameter] = {}
    if not is_core(component.path):
        with suppress(Exception):  # of a class that cannot be imported, which `check_components` reports
            options = options_of_class(component, before, inherited=True)
    for name, option in options.items():
        value, declared = component.options.get(name, option.default), option.annotation
        if mentions(declared, os.PathLike) or (name in component.options and declared is not option.empty):
            value = _typed(value, option, f"{component.path}: option {name}", name in component.options)
        if any(_paths(option.default, Any)):
            declared = os.PathLike  # text too, in the place of such a default
        values[name] = value, declared
    return values


def _typed(value: Any, option: inspect.Parameter, place: str, is_given: bool) -> Any:
    """The value of an option by its declared type.

    Raises an InputError for a default that is no path though its type says path, and for a text of which nobody knows
    whether it is a path, as the type is unknown.
    """
    declared = option.annotation
    if value in (None, "", option.empty) or mentions(declared, NamedByText):
        return value
    try:
        return adapter(declared, any_class=True).validate_python(value)
    except Exception:  # also of a type that pydantic does not know
        if not is_given:
            rule = "must be a path by default, as its type says; give it one"
            raise InputError(f"{place} = {shown(value)}: {rule}") from None
    with suppress(Exception):
        if adapter(declared).pydantic_complete:  # then `check_components` reports the value
            return value
    texts: list[Any] = []
    mapped(value, lambda part, _: texts.append(part) if isinstance(part, str) else None)
    if texts:
        rule = f"must have a type that pydantic can read, so that a file counts by its content, but has {declared}"
        remedy = "declare it as Path, str, or a dataclass of these"
        raise InputError(f"{place} = {shown(value)}: {rule}; {remedy}")
    return value


def _paths(value: Any, declared: Any) -> list[Path]:
    """The paths in the value of an option."""
    found: list[Path | None] = []
    mapped(value, lambda *part: found.append(_path(*part)), declared)
    return [path for path in found if path is not None]


def _path(part: Any, declared: Any) -> Path | None:
    """The path that a part of a value is, by itself or as a text where its type says path; None for another part."""
    is_text = isinstance(part, str) and part != "" and mentions(declared, os.PathLike)
    return Path(part).expanduser() if is_text or isinstance(part, os.PathLike) else None


def _content(found: list[Path], part: Any, declared: Any) -> Any:
    """What stands in the place of a part of an option's value. found: gets the path that it is, if it exists."""
    if (path := _path(part, declared)) is None:
        return part
    with reading(path, "fix it or its permissions"):
        if not path.exists():
            return str(part)
        found.append(path)
        return {"content": content_digest(path)}


def mapped(value: Any, use: Callable[[Any, Any], Any], declared: Any = Any) -> Any:
    """A value with what `use(part, declared)` returns in the place of each part. A text that is a key stays as it is.

    declared: the type of the value, which its parts have, too; those of a dataclass, a model and a named tuple have
    types of their own.
    """
    if named := _fields(value):
        hints: dict[str, Any] = {}
        with suppress(Exception):  # a text that is no type
            hints = get_type_hints(type(value))
        return [[name, mapped(part, use, hints.get(name, Any))] for name, part in sorted(named.items())]
    if isinstance(value, Mapping):
        value = sorted(value.items(), key=str)
        return [
            [key if isinstance(key, str) else use(key, declared), mapped(part, use, declared)] for key, part in value
        ]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)  # its own order differs between processes
    if isinstance(value, list | tuple | Iterator):
        return [mapped(part, use, declared) for part in value]
    return use(value, declared)


def _fields(value: Any) -> dict[str, Any]:
    """The parts by name of a dataclass, a model of pydantic's or a named tuple."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if isinstance(value, type) or not (is_dataclass(value) or isinstance(value, BaseModel)):
        return {}
    slots = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
    return slots | getattr(value, "__dict__", {})


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
