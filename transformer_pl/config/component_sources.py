"""Digests of the code of components and tasks that are not in `transformer_pl`, and copies that stay with a trial.

The code of a class has three parts: the statement that defines it, with the statements of its file to which that one
refers, directly or through others; the statements of this file that do something when it is imported; and, as a whole,
every other file of the user's that this code imports. Other classes in the file may change without a new digest. But if
the code looks names up while it runs, the whole file counts.

The files are read, and no module is imported. So every process finds the same code, and a result from a stranger, which
may name any module, runs nothing. The digest leaves out installed packages, code that is chosen at run time, and files
that the code opens by itself.
"""

import ast
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from transformer_pl.config import Component, Data
from transformer_pl.config.components import is_core
from transformer_pl.runtime.digests import text_digest
from transformer_pl.runtime.errors import installed

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (ast.ClassDef, *FUNCTIONS)
STARTED = time.time()
_last_seen: dict[str, str] = {}  # by the path of a class: the digest of its code when `forget_edited` last saw it
LOOKUPS = {"globals", "vars", "eval", "exec", "__import__", "import_module"}  # by a name made at run time


def source_digests(components: Mapping[str, Component]) -> dict[str, str]:
    """Digests of the code of those components that are not in `transformer_pl`, under the same names.

    components: by slot, and callbacks by their path.
    """
    return {name: _digest(component.path) for name, component in components.items() if not is_core(component.path)}


def task_digest(data: Data) -> dict[str, str]:
    """A digest of the code of a task, which decides what is read and scored. Empty for a task in `transformer_pl`."""
    return {} if is_core(data.task) else {"task": _digest(data.task)}


def keep_sources(components: Iterable[Component], folder: Path) -> None:
    """Copy the files of the code of components to a folder, in place of what was kept there."""
    if folder.is_symlink():  # the link alone is removed, not the folder behind it
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    for component in components:
        for module, (spec, _) in _code(component.path).items():
            file = Path(str(spec.origin))
            depth = module.count(".") + (2 if spec.submodule_search_locations else 1)  # a package is a folder
            copy = folder.joinpath(*file.parts[-depth:])  # below the folder that it is imported from
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def forget_edited(components: Iterable[Component]) -> bool:
    """Forget the modules of components whose code was edited after this process had imported it; returns whether any.

    The next import reads the files anew. It is for a notebook, whose process sees many edits.
    """
    edited = False
    for path in {component.path for component in components if not is_core(component.path)}:
        code, digest = _code(path), _digest(path)
        changed = max((os.stat(str(spec.origin)).st_ctime for spec, _ in code.values()), default=0.0)
        if _last_seen.get(path, digest) != digest or (path not in _last_seen and changed > STARTED):
            edited = True
            for module in code:
                package, _, name = module.rpartition(".")
                sys.modules.pop(module, None)
                if package in sys.modules:  # a folder without an __init__.py
                    vars(sys.modules[package]).pop(name, None)
        _last_seen[path] = digest
    return edited


# ---------------------------------------------------------------------------------------------------------------------
# The code of a class


def _digest(path: str) -> str:
    code = [ast.unparse(statement) for _, statements in _code(path).values() for statement in statements]
    return text_digest("\n".join(code))


def _code(path: str) -> dict[str, tuple[ModuleSpec, list[ast.stmt]]]:
    """The code of a class: by module of the user's, as they are found, the spec and the statements that count."""
    module, _, name = path.rpartition(".")
    code: dict[str, tuple[ModuleSpec, list[ast.stmt]]] = {}
    to_read = deque([module])
    while to_read:
        module = to_read.popleft()
        spec = _spec(module) if module not in code and _is_users(module) else None
        if spec and spec.has_location and spec.origin:
            statements = _statements(Path(spec.origin))
            if not code:  # the file of the class itself
                statements = _referred(statements, name)
            code[module] = spec, statements
            for statement in statements:
                to_read.extend(_imported(statement, spec.parent or ""))
        if "." in module:
            to_read.append(module.rpartition(".")[0])  # the packages above are imported, too
    return code


def _referred(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements of a file that bind a name, those that they refer to, and those that run when it is imported.

    It returns all statements where it cannot be known which these are.
    """
    binding: dict[str, list[int]] = {}  # by name, the indexes of the statements that bind it
    users_own = set[str]()  # names of the user's own functions and classes
    for index, statement in enumerate(statements):
        for bound in _bound(statement):
            binding.setdefault(bound, []).append(index)
        if isinstance(statement, DEFINITIONS) or _imports_users(statement):
            users_own |= _bound(statement)
    if name not in binding or "*" in binding or any(map(_observes_subclasses, statements)):
        return statements
    needed = set[int]()
    found = {index for index, statement in enumerate(statements) if _runs(statement, users_own)}
    found.update(binding[name])
    while found:
        if any(_looks_up(statements[index]) for index in found):
            return statements
        needed |= found
        referred = {reference for index in found for reference in _names(statements[index])}
        known = {bound for bound, indexes in binding.items() if needed.intersection(indexes)}
        found = {index for reference in referred for index in binding.get(reference, ())}
        found |= {index for index, statement in enumerate(statements) if _calls(statement, known)}
        found -= needed
    return [statements[index] for index in sorted(needed)]


def _names(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement refers to; texts count, as types may be in quotes."""
    for node in ast.walk(statement):
        referred = node.id if isinstance(node, ast.Name) else getattr(node, "value", None)
        if isinstance(referred, str):
            yield referred


def _looks_up(statement: ast.stmt) -> bool:
    """Whether a statement may find what it refers to by a name that is made at run time."""
    called = {id(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
    return any(
        (isinstance(node, ast.Name) and node.id in LOOKUPS)
        or (isinstance(node, ast.Attribute) and node.attr in LOOKUPS)
        # `sys.modules`, but not the method of torch's modules
        or (isinstance(node, ast.Attribute) and node.attr == "modules" and id(node) not in called)
        for node in ast.walk(statement)
    )


def _observes_subclasses(statement: ast.stmt) -> bool:
    """Whether a class changes when others are derived from it."""
    return any(
        (isinstance(node, FUNCTIONS) and node.name == "__init_subclass__")
        or (isinstance(node, ast.ClassDef) and any(keyword.arg == "metaclass" for keyword in node.keywords))
        for node in ast.walk(statement)
    )


def _imports_users(statement: ast.stmt) -> bool:
    """Whether a statement imports from another file of the user's."""
    is_relative = isinstance(statement, ast.ImportFrom) and statement.level > 0
    return is_relative or any(map(_is_users, _imported(statement, "")))


def _runs(statement: ast.stmt, users_own: set[str]) -> bool:
    """Whether a statement may do something else than binding names when its file is imported.

    users_own: the names of the user's own functions and classes, which may do anything where they are called.
    """
    if _is_main(statement):
        return False
    if isinstance(statement, DEFINITIONS):
        return _calls(statement, users_own)
    return not _bound(statement) or any(map(_has_effect, _executed(statement))) or _calls(statement, users_own)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node, but not the bodies of functions and classes."""
    yield node
    if not isinstance(node, DEFINITIONS):
        for child in ast.iter_child_nodes(node):
            yield from _executed(child)


def _has_effect(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
    changes = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    return changes or isinstance(node, ast.Expr | ast.Delete)


def _calls(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement calls one of these names, or passes one to a call, when its file is imported."""
    if _is_main(statement):
        return False
    called: Sequence[ast.AST] = [node for node in _executed(statement) if isinstance(node, ast.Call)]
    if isinstance(statement, DEFINITIONS):
        called = statement.decorator_list
    return any(isinstance(node, ast.Name) and node.id in names for call in called for node in ast.walk(call))


def _is_main(statement: ast.stmt) -> bool:
    """Whether a statement runs only where its file is the program: `if __name__ == "__main__"`."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and ast.unparse(statement.test) in ("__name__ == '__main__'", "'__main__' == __name__")
    )


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    bound = set()
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):  # in a branch, such as `try`
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return bound


def _imported(statement: ast.stmt, package: str) -> Iterator[str]:
    """The modules that a statement may import. Of `from a import b` these are `a`, and `a.b`, which may be a module."""
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
    return [single for statement in tree.body for single in _single_imports(statement)]


def _is_users(name: str) -> bool:
    """Whether a module is neither the core's, nor installed, nor built into Python."""
    top = name.partition(".")[0]
    spec = _spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return top != "transformer_pl" and any(place and os.sep in place and not installed(place) for place in places)


def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies; None where it is not found. Neither it nor a package above it is imported."""
    spec: ModuleSpec | None = None
    places: list[str] | None = None  # where to look: at first anywhere, then in the package above
    for depth in range(1, name.count(".") + 2):
        spec = _found(".".join(name.split(".")[:depth]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or [])
    return spec


def _found(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Where one finder of Python finds a module, among these places."""
    for finder in sys.meta_path:
        with suppress(Exception):  # also of a finder that somebody has added
            if spec := finder.find_spec(name, places):
                return spec
    # Python's finder needs the package above, imported, for a folder without an __init__.py
    folders = [os.path.join(place, name.rpartition(".")[2]) for place in places or ()]
    spec = ModuleSpec(name, None)
    spec.submodule_search_locations = [folder for folder in folders if os.path.isdir(folder)]
    return spec if spec.submodule_search_locations else None
