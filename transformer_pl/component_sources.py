"""The source files of components: which they are, whether their code has changed, and copies that stay with a trial.

The sources of a component are its file, the `__init__.py` of the packages above it, and the files that these import,
without the core and installed packages.
"""

import ast
import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import NamedTuple

from transformer_pl.components import is_core
from transformer_pl.config import SLOTS, Component, Data, Model
from transformer_pl.runtime.errors import InputError, installed

UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)  # what `ast` raises, such as for no Python
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class SourceFile(NamedTuple):
    """A file of a module."""

    file: Path
    name: Path  # its path below the folder that the module is imported from, such as ablations/no_position.py


def source_digests(model: Model) -> dict[str, str]:
    """By slot, a digest of the code of every component that is not the core's. Another code makes another trial."""
    return {slot: _digest(source_files(component)) for slot, component in own_components(model).items()}


def is_own_task(data: Data) -> bool:
    """Whether the task is not the core's."""
    return not is_core(data.task)


def task_digest(data: Data) -> dict[str, str]:
    """A digest of the code of a task that is not the core's: it decides what is read and what is scored."""
    return {"task": _digest(source_files(Component(path=data.task)))} if is_own_task(data) else {}


def source_files(component: Component) -> list[SourceFile]:
    """The source files of a component. They are read, not imported: every process must find the same ones."""
    return list(_files(component.path.rpartition(".")[0], set()))


def code_digest(file: Path) -> str:
    """The sha256 of a file's code: comments, docstrings and layout do not count."""
    content = file.read_bytes()
    with suppress(*UNPARSED):
        tree = ast.parse(content)
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        content = ast.unparse(tree).encode()
    return hashlib.sha256(content).hexdigest()


def keep_sources(model: Model, folder: Path) -> None:
    """Copy the sources of a model's components to a folder, in place of what was kept there."""
    shutil.rmtree(folder, ignore_errors=True)
    for component in own_components(model).values():
        for source in source_files(component):
            copy = folder / source.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.file, copy)


def own_components(model: Model) -> dict[str, Component]:
    """By slot, the components that are not the core's."""
    slots = [slot for slot in SLOTS if not is_core(getattr(model, slot).path)]
    return {slot: getattr(model, slot) for slot in slots}


def changed_files(components: Iterable[Component], folder: Path) -> list[Path]:
    """The names of sources whose code is not that of their copies in a folder, or that are only on one side.

    components: all that the copies belong to.
    """
    sources = {source.name: source.file for component in components for source in source_files(component)}
    copies = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    in_both = sources.keys() & copies.keys()
    unchanged = {name for name in in_both if code_digest(sources[name]) == code_digest(copies[name])}
    return [name for name in dict.fromkeys((*sources, *copies)) if name not in unchanged]


@contextmanager
def kept_sources(model: Model, folder: Path) -> Iterator[None]:
    """Import components from the copies in a folder, as long as the context lasts, where their code has changed.

    Raises an InputError where there are no copies.
    """
    own = own_components(model).values()
    if own and not folder.is_dir():
        raise InputError(f"{folder}: must hold the components that were trained, but is missing; train the trial anew")
    if not changed_files(own, folder):
        yield
        return
    tops = {path.relative_to(folder).parts[0].partition(".")[0] for path in folder.iterdir()}

    def taken_out() -> dict:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in tops}

    present, writes_bytecode = taken_out(), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes_bytecode
        taken_out()
        sys.modules.update(present)


def _digest(files: list[SourceFile]) -> str:
    return hashlib.sha256("".join(code_digest(source.file) for source in files).encode()).hexdigest()


def _files(name: str, seen: set[str]) -> Iterator[SourceFile]:
    """Yield a module's file, then those of the packages above it and of the modules that it imports."""
    spec = _spec(name)
    if name in seen or spec is None:
        return
    seen.add(name)
    if spec.has_location and spec.origin is not None:
        file = Path(spec.origin)
        is_package = spec.submodule_search_locations is not None
        depth = name.count(".") + 1 + is_package
        yield SourceFile(file, Path(*file.parts[-depth:]))
        for node in ast.walk(_tree(file)):
            for imported in _imports(node, spec.parent):
                if _is_users(imported):
                    yield from _files(imported, seen)
    if "." in name:
        yield from _files(name.rpartition(".")[0], seen)


def _tree(file: Path) -> ast.AST:
    """The syntax tree of a file; an empty one for a file that is no Python."""
    with suppress(*UNPARSED):
        return ast.parse(file.read_bytes())
    return ast.Module([], [])


def _imports(node: ast.AST, package: str | None) -> list[str]:
    """The names that a syntax node imports and that may be modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        with suppress(ImportError):  # a relative import outside of a package, which fails when it runs, too
            base = resolve_name("." * node.level + (node.module or ""), package or "")
            return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return []


def _is_users(name: str) -> bool:
    """Whether a module is neither the core's, nor installed, nor built into Python."""
    top = name.partition(".")[0]
    spec = _spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return top != "transformer_pl" and any(place and os.sep in place and not installed(place) for place in places)


def _spec(name: str) -> ModuleSpec | None:
    with suppress(Exception):  # importing a parent package may raise anything
        return find_spec(name)
    return None
