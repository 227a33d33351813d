"""The code of components and tasks that are not the core's: a digest of it, and copies that stay with a trial.

The code of a class is its statement, the statements of its file that this one refers to, and so on; what its file does
when it is imported; and every other file of the user's that this code imports, whole. Other classes of its file may
change. Files are read, not imported: every process must find the same.
"""

import ast
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path

from transformer_pl.config import Component, Data
from transformer_pl.config.components import is_core
from transformer_pl.runtime.errors import installed
from transformer_pl.runtime.signals import component_code

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_digests(components: Mapping[str, Component]) -> dict[str, str]:
    """By slot, a digest of the code of every component that is not the core's. Another code makes another trial.

    components: by slot, or by key; the digests are by slot.
    """
    own = {key: component.path for key, component in components.items() if not is_core(component.path)}
    return {key.rpartition(".")[2]: _digest(path) for key, path in own.items()}


def task_digest(data: Data) -> dict[str, str]:
    """A digest of the code of a task that is not the core's: it decides what is read and what is scored."""
    return {} if is_core(data.task) else {"task": _digest(data.task)}


def keep_sources(components: Iterable[Component], folder: Path) -> None:
    """Copy the files of the code of components to a folder, in place of what was kept there."""
    if folder.is_symlink():  # what lies behind it stays as it is
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    for component in components:
        for module, (spec, _) in _code(component.path).items():
            file = Path(str(spec.origin))
            depth = module.count(".") + (2 if spec.submodule_search_locations else 1)  # a package is a folder
            copy = folder.joinpath(*file.parts[-depth:])  # below the folder that it is imported from
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


# ---------------------------------------------------------------------------------------------------------------------
# The code of a class


def _digest(path: str) -> str:
    code = [ast.unparse(statement) for _, statements in _code(path).values() for statement in statements]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def _code(path: str) -> dict[str, tuple[ModuleSpec, list[ast.stmt]]]:
    """By module of the user's, in the order in which they are found: the statements of the code of a class."""
    module, _, name = path.rpartition(".")
    code: dict[str, tuple[ModuleSpec, list[ast.stmt]]] = {}
    found = [module]
    for module in found:  # which grows
        spec = _spec(module) if module not in code and _is_users(module) else None
        if spec and spec.has_location and spec.origin:
            statements = _statements(Path(spec.origin))
            code[module] = spec, statements if code else _referred(statements, name)
            found += [one for statement in code[module][1] for one in _imported(statement, spec.parent or "")]
        found += [module.rpartition(".")[0]] if "." in module else []  # the packages above are imported, too
    return code


def _referred(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements of a file that bind a name, those that they refer to, and those that bind nothing, but run.

    All of them where it cannot be known which bind the name.
    """
    binding: dict[str, list[int]] = {}
    for index, statement in enumerate(statements):
        for bound in _bound(statement):
            binding.setdefault(bound, []).append(index)
    if name not in binding or "*" in binding:
        return statements
    needed = {index for index, one in enumerate(statements) if not (_bound(one) or _is_main(one))}
    found = [*needed, *binding[name]]
    for index in found:  # which grows
        needed.add(index)
        for node in ast.walk(statements[index]):
            referred = node.id if isinstance(node, ast.Name) else getattr(node, "value", None)  # or a type in quotes
            if isinstance(referred, str):
                found += [one for one in binding.get(referred, ()) if one not in needed]
    return [statements[index] for index in sorted(needed)]


def _is_main(statement: ast.stmt) -> bool:
    """Whether a statement runs only where its file is the program: `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    bound = set()
    for node in [statement] if isinstance(statement, DEFINITIONS) else ast.walk(statement):
        if isinstance(node, DEFINITIONS):  # also in a branch, such as `try`
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return bound


def _imported(statement: ast.stmt, package: str) -> Iterator[str]:
    """The modules that a statement imports. Of `from a import b` these are `a`, and `a.b` where that is one."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # a relative import outside of a package, which fails when it runs, too
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _single_imports(statement: ast.stmt) -> list[ast.stmt]:
    """An import of several names as one statement for each, so that another name is no change of the others."""
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
    return [statement]


def _statements(file: Path) -> list[ast.stmt]:
    """The statements of a file, without docstrings; for a file that is no Python, its bytes as a constant."""
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return [ast.Expr(ast.Constant(content))]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return [one for statement in tree.body for one in _single_imports(statement)]


def _is_users(name: str) -> bool:
    """Whether a module is neither the core's, nor installed, nor built into Python."""
    top = name.partition(".")[0]
    spec = _spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return top != "transformer_pl" and any(place and os.sep in place and not installed(place) for place in places)


def _spec(name: str) -> ModuleSpec | None:
    with suppress(Exception), component_code():  # importing a parent package may raise anything
        return find_spec(name)
    return None
