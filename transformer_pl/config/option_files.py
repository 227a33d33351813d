"""Files that options name: a path counts by the content of its file or folder, wherever that lies.

A path is what `pathlib` has made, and a text where the declared type says path, also in lists, tuples and mappings. A
default counts, too, as the class reads its file; so does the default of a class from which that one is derived.
"""

import hashlib
import inspect
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from transformer_pl.config import Component, Config, custom_components_by_key
from transformer_pl.config.components import before_options, inherited_options, is_core
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import reading

ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)
SEVERAL = (list, tuple, set, frozenset, Iterator)
Use = Callable[[Path], Any]  # what stands in the place of a path; None: nothing does


def file_contents(component: Component, before: int) -> dict[str, Any]:
    """By option, its value with {"content": SHA-256} in the place of each path, for the options that have one.

    A path that does not exist stays as it is written. Of a default nothing counts but the files that exist.

    before: how many arguments the constructor has before its options. Raises an InputError for a file that cannot be
    read, and for a value that is no path where its type says path.
    """
    return _values(component, before, lambda path: {"content": _digest(path, _state(path))} if path.exists() else None)


def missing_files(component: Component, before: int) -> list[Path]:
    """The paths of a component where nothing lies."""
    found: list[Path] = []
    _values(component, before, found.append)
    return [path for path in found if not path.exists()]


def option_contents(config: Config) -> dict[str, Any]:
    """By key, such as `model.position.file`, the `file_contents` of a config's components."""
    return {
        f"{key}.{name}": value
        for key, component in custom_components_by_key(config).items()
        for name, value in file_contents(component, before_options(key)).items()
    }


def _values(component: Component, before: int, use: Use) -> dict[str, Any]:
    values: dict[str, Any] = {}
    options: dict[str, inspect.Parameter] = {}
    if not is_core(component.path):
        with suppress(Exception):  # of a class that cannot be imported, which `check_components` reports
            options = inherited_options(component, before)
    for name, option in options.items():
        is_given, says_path = name in component.options, _says_path(option.annotation)
        value = component.options[name] if is_given else option.default
        if says_path and value not in (None, "", option.empty):
            try:
                value = TypeAdapter(_without_text(option.annotation), config=ANY_CLASS).validate_python(value)
            except ValidationError:
                if not is_given:  # else `check_components` reports it
                    place = f"{component.path}: option {name} = {shown(value)}"
                    raise InputError(f"{place}: must be a path by default, as its type says; give it one") from None
        value = _used(value, use, is_given)
        if value is not None and (says_path or not is_given):
            values[name] = value
    return values


def _used(value: Any, use: Use, is_given: bool) -> Any:
    """A value with something in the place of its paths; None for a default without a path for which there is that."""
    if isinstance(value, os.PathLike):
        path = Path(value)
        with reading(path, "fix it or its permissions"):
            return use(path.expanduser()) or (str(path) if is_given else None)
    if isinstance(value, Mapping):
        value = sorted(value.items(), key=str)
    if isinstance(value, SEVERAL):
        values = [_used(part, use, is_given) for part in value]
        return values if is_given or any(values) else None
    return value if is_given else None


def _says_path(kind: Any) -> bool:
    """Whether a type is Path, or has it among its parts."""
    plain = get_origin(kind) or kind
    return any(map(_says_path, get_args(kind))) or (inspect.isclass(plain) and issubclass(plain, os.PathLike))


def _without_text(kind: Any) -> Any:
    """A type in which a text that may be a path is one: Path in the place of `str | Path`."""
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        others = [part for part in parts if part not in (str, Any)]
        return reduce(operator.or_, map(_without_text, others if any(map(_says_path, parts)) else parts))
    return get_origin(kind)[tuple(map(_without_text, parts))] if _says_path(kind) and parts else kind


def _files(path: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """A file, or the files of a folder in the order of their names, but no folder that a link puts into itself."""
    if not path.is_dir():
        yield path
    elif (folder := path.resolve()) not in above:
        for child in sorted(path.iterdir()):
            yield from _files(child, above | {folder})


def _state(path: Path) -> tuple[Any, ...]:
    """What changes with the content of a file or folder: the size and time of each file."""
    return tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in _files(path) if file.exists())


@cache  # a process reads large files once, unless their state changes
def _digest(path: Path, state: tuple[Any, ...]) -> str:
    digest = hashlib.sha256()
    for file in _files(path):
        if file.exists() and not file.is_file():
            raise InputError(f"{file}: must be a file or a folder, whose content counts; give another path")
        digest.update(f"{file.relative_to(path)}:".encode() if path.is_dir() else b"")
        if file.exists():  # unlike the target of a link
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
