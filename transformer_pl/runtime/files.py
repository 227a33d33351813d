"""Writes files atomically, and reads JSON and YAML strictly."""

import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import TypeAdapter, ValidationError

from transformer_pl.runtime.errors import InputError, shown, warn

MOST_BYTES = 1 << 28  # of a file that is read as a whole
CORE_RULES = (  # what is not text by YAML 1.2. By 1.1, which PyYAML has, `on` and `no` are booleans, and 1e-4 is text
    ("null", "(~|null|Null|NULL|)$"),
    ("bool", "(true|True|TRUE|false|False|FALSE)$"),
    ("int", "([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"),
    ("float", r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
)


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
        with part.open("rb") as file:
            os.fsync(file.fileno())  # its bytes are on the disk before it has its name
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it from another disk or where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def open_to_append(path: Path) -> io.FileIO:
    """Open a file to append to it, without a buffer. A link at this path is removed; its target stays as it is."""
    if path.is_symlink():
        path.unlink()
    return io.FileIO(path, "a", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def check_regular(path: Path) -> None:
    """Raise an OSError for what is neither a file nor a folder, such as a named pipe, which may never have an end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it must be a file")


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises an OSError, also for one that is too large, and for what is no file."""
    check_regular(path)
    content = bytearray()
    with path.open("rb") as file:
        while piece := file.read(1 << 16):  # which takes memory for all that it may read
            content += piece
            if len(content) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")
    return bytes(content)


def read_text(path: Path) -> str:
    """The content of a file in UTF-8. Raises an OSError as `read_bytes` does, or a ValueError for what is no UTF-8."""
    return read_bytes(path).decode("utf-8-sig")


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[Path]:
    """Turn an error of reading a file into an InputError that names the file. What is no file is not read."""
    try:
        if path.exists():
            check_regular(path)
        yield path
    except InputError:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or shown(f"{type(error).__name__}: {error}")
        raise InputError(f"{path}: cannot be read: {reason}; {remedy}") from None


def why_unwritable(folder: Path) -> str | None:
    """Why 1 MiB cannot be written into a folder; None if it can. Makes the folder if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 20))  # a full disk accepts an empty file, but not this
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        remedy = "make room, or choose another folder with --runs"
        return f"{folder}: must be writable, with room on its disk, but: {error.strerror}; {remedy}"
    return None


def check_writable(folder: Path) -> None:
    """Make a folder. Raises an InputError with the system's reason where nothing can be written into it."""
    if reason := why_unwritable(folder):
        raise InputError(reason)


def parse_json(text: bytes | str, form: Any) -> Any:
    """The value of a JSON text. Raises a ValueError that says, on one line, where it does not have the type `form`."""
    try:
        return _validator(form).validate_json(text)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(": ".join(filter(None, [".".join(map(str, mistake["loc"])), mistake["msg"]]))) from None


_validator = cache(TypeAdapter)


def read_json(path: Path, form: Any = dict[str, Any]) -> Any:
    """The object in a JSON file; empty where there is none, and, with a warning, where it cannot be read.

    form: the type that it must have, see `trials/records.py`.
    """
    try:
        return parse_json(read_bytes(path), form)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        warn(f"{path}: cannot be read and counts as missing: {shown(getattr(error, 'strerror', None) or error)}")
    return {}


class _StrictLoader(yaml.SafeLoader):
    """YAML by CORE_RULES. A key that is set twice is refused, where plain YAML silently takes the last value."""

    yaml_implicit_resolvers = {None: [(f"tag:yaml.org,2002:{tag}", re.compile(form)) for tag, form in CORE_RULES]}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        place, node = self.peek_event(), super().compose_node(parent, index)
        if node is not None and node.end_mark is None:  # it is being read
            self._refuse("an alias must not be inside of what it stands for", place)
        return node

    def _refuse(self, problem: str, place: Any) -> NoReturn:
        raise yaml.constructor.ConstructorError(None, None, problem, place.start_mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else key_node
            if key in seen:
                self._refuse(f"key {shown(key)!r} is set twice", key_node)
            seen.add(key)
        return node


class _TextLoader(_StrictLoader):
    """The same, but numbers stay text, as they are written."""

    yaml_implicit_resolvers = {None: _StrictLoader.yaml_implicit_resolvers[None][:2]}


def _whole_number(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    """A whole number that is written as Python writes it: 0123 may be a name, and YAML 1.1 reads another number."""
    number = int(node.value, 0 if node.value[:2] in ("0o", "0x") else 10)
    if str(number) != node.value.removeprefix("+"):
        loader._refuse(f"{shown(node.value)} is the number {number}; write {number}, or '{shown(node.value)}'", node)
    return number


def _real_number(loader: _StrictLoader, node: yaml.ScalarNode) -> float:
    number = float(loader.construct_yaml_float(node))
    if math.isinf(number) and "inf" not in node.value.lower():  # 123e45678901 may be the id of a trial
        loader._refuse(f"{shown(node.value)} is too large for a number; put it in quotes", node)
    return number


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _real_number)


def parse_yaml(text: str, numbers: bool = True) -> Any:
    """The value of a YAML text. Raises a YAMLError or a ValueError for what is none.

    numbers: whether numbers are read; else they are text. A number that would not come back as it was written is none,
    where that may lose something: 0123, 0x10, 123e45678901.
    """
    return yaml.load(text, _StrictLoader if numbers else _TextLoader)


def read_yaml(path: Path, numbers: bool = True) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. An InputError names the file, and the line where it is known.

    numbers: as for `parse_yaml`.
    """
    try:
        content = parse_yaml(read_text(path), numbers)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a YAML file") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: {error.problem}; correct the YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, 5,000 digits
        raise InputError(f"{path}: is not YAML: {str(error).splitlines()[0]}; correct it") from None
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{path}: must hold keys and values, but is {kind}")
    return content
