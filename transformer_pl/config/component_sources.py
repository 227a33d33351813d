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

from transformer_pl.config import Component, Data, Model, not_papers
from transformer_pl.config.components import is_core
from transformer_pl.runtime.errors import InputError, installed

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_digests(model: Model) -> dict[str, str]:
    """By slot, a digest of the code of every component that is not the core's. Another code makes another trial."""
    return {slot: _digest(component) for slot, component in own_components(model).items()}


def is_own_task(data: Data) -> bool:
    """Whether the task is not the core's."""
    return not is_core(data.task)


def task_digest(data: Data) -> dict[str, str]:
    """A digest of the code of a task that is not the core's: it decides what is read and what is scored."""
    return {"task": _digest(Component(path=data.task))} if is_own_task(data) else {}


def source_files(component: Component) -> dict[Path, Path]:
    """The source files of a component, by their paths below the folder that each is imported from.

    They are read, not imported: every process must find the same ones.
    """
    return dict(_files(component.path.rpartition(".")[0], set()))


def code_digest(file: Path) -> str:
    """The sha256 of a file's code: comments, docstrings and layout do not count."""
    tree = _tree(file)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def keep_sources(model: Model, folder: Path) -> None:
    """Copy the sources of a model's components to a folder, in place of what was kept there."""
    shutil.rmtree(folder, ignore_errors=True)
    for component in own_components(model).values():
        for name, file in source_files(component).items():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def own_components(model: Model) -> dict[str, Component]:
    """By slot, the components that are not the core's."""
    return {slot: component for slot, component in not_papers(model).items() if not is_core(component.path)}


def changed_files(components: Iterable[Component], folder: Path) -> list[Path]:
    """The names of sources whose code is not that of their copies in a folder, or that are only on one side.

    components: all that the copies belong to.
    """
    sources = {name: file for component in components for name, file in source_files(component).items()}
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
    tops = {path.stem for path in folder.iterdir()}

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


def _digest(component: Component) -> str:
    digests = map(code_digest, source_files(component).values())
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _files(name: str, seen: set[str]) -> Iterator[tuple[Path, Path]]:
    """Yield a module's file, with its path below the folder that it is imported from.

    Then those of the packages above it, and of the modules that it imports.
    """
    spec = _spec(name)
    if name in seen or spec is None:
        return
    seen.add(name)
    if spec.has_location and spec.origin is not None:
        file = Path(spec.origin)
        depth = name.count(".") + (2 if spec.submodule_search_locations else 1)  # a package is a folder
        yield Path(*file.parts[-depth:]), file
        for node in ast.walk(_tree(file)):
            for imported in _imports(node, spec.parent):
                if _is_users(imported):
                    yield from _files(imported, seen)
    if "." in name:
        yield from _files(name.rpartition(".")[0], seen)


def _tree(file: Path) -> ast.Module:
    """The syntax tree of a file; for a file that is no Python, its bytes as a constant."""
    content = file.read_bytes()
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.parse(content)
    return ast.Module([ast.Expr(ast.Constant(content))], [])


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
