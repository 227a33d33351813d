"""The code of components and tasks that are not the core's: a digest of it, and copies that stay with a trial.

The code of a class is its statement, the statements of its file that this one refers to, and so on, also in other files
of the user's that it imports names from. Other classes of a file may change. What a file does when it is imported
counts. All of a file counts that is imported as a module or by `*`, and where it cannot be known what its code refers
to: `globals`, `eval`, `__getattr__` of a module.
Files are read, not imported: every process must find the same.
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

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OPAQUE = {"globals", "eval", "exec", "__import__", "import_module"}  # what code that uses these refers to is not known


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
        for module in _modules(component.path):
            copy = folder / module.place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(module.file, copy)


# ---------------------------------------------------------------------------------------------------------------------
# The code of a class


class _Module:
    """A file of the user's, and which of its statements are needed."""

    def __init__(self, name: str, spec: ModuleSpec):
        self.file, self.package, self.needed = Path(str(spec.origin)), spec.parent or "", set[int]()
        depth = name.count(".") + (2 if spec.submodule_search_locations else 1)  # a package is a folder
        self.place = Path(*self.file.parts[-depth:])  # below the folder that it is imported from
        tree = _tree(self.file)
        self.body = [one for statement in tree.body for one in _single_imports(statement)]
        self.binding: dict[str, list[int]] = {}  # the statements that bind a name
        for index, statement in enumerate(self.body):
            for bound in _bound(statement):
                self.binding.setdefault(bound, []).append(index)
        self.is_opaque = not self.binding.keys().isdisjoint(("*", "__getattr__"))
        self.effects = [i for i, one in enumerate(self.body) if not (_bound(one) or _is_main(one))]


def _digest(path: str) -> str:
    code = [ast.unparse(module.body[index]) for module in _modules(path) for index in sorted(module.needed)]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def _modules(path: str) -> list[_Module]:
    """The user's modules that hold the code of a class."""
    modules: dict[str, _Module | None] = {}  # None: not the user's
    module, _, name = path.rpartition(".")
    _need(modules, module, name)
    return [module for module in modules.values() if module]


def _need(modules: dict[str, _Module | None], name: str, attribute: str) -> None:
    """Take the statements that bind an attribute of a module; all of the module for `*`, and for "" none of it."""
    if name not in modules:
        modules[name] = None
        if "." in name:  # the packages above are imported first
            _need(modules, name.rpartition(".")[0], "")
        spec = _spec(name)
        if spec and spec.has_location and spec.origin and _is_users(name):
            modules[name] = new = _Module(name, spec)
            _take(modules, new, new.effects)
            for statement in new.body:  # these modules are imported, too
                for _, imported, _ in _imports(statement, new.package):
                    _need(modules, imported, "")
    module = modules[name]
    if module and attribute:
        is_known = attribute in module.binding and not module.is_opaque
        _take(modules, module, module.binding[attribute] if is_known else range(len(module.body)))


def _take(modules: dict[str, _Module | None], module: _Module, indexes: Iterable[int]) -> None:
    """Take statements of a module, and what they refer to."""
    for index in indexes:
        if index in module.needed:
            continue
        module.needed.add(index)
        for node in ast.walk(module.body[index]):
            for _, imported, attribute in _imports(node, module.package):
                _need(modules, imported, attribute)
            name = node.id if isinstance(node, ast.Name) else getattr(node, "value", None)  # or a type in quotes
            if isinstance(node, ast.Global) or (isinstance(node, ast.Name) and name in OPAQUE):
                _take(modules, module, range(len(module.body)))
            elif isinstance(name, str):
                _take(modules, module, module.binding.get(name, ()))


def _is_main(statement: ast.stmt) -> bool:
    """Whether a statement runs only where its file is the program: `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    bound = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = [node for node in ast.walk(statement) if isinstance(node, DOCUMENTED)]
    bound |= {getattr(node, "name", "") for node in inner}  # in a branch, such as `try`
    return bound | {name for node in ast.walk(statement) for name, *_ in _imports(node, "")}


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, str, str]]:
    """What a node imports: the name that it binds, the module, and its attribute (`*`: all, or the module itself)."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], alias.name, "*"
    elif isinstance(node, ast.ImportFrom):
        base = ""
        with suppress(ImportError):  # a relative import outside of a package, which fails when it runs, too
            base = resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            is_module = bool(base) and _is_users(base) and _spec(f"{base}.{alias.name}") is not None
            source = (f"{base}.{alias.name}", "*") if is_module else (base, alias.name)
            yield alias.asname or alias.name, *source


def _single_imports(statement: ast.stmt) -> list[ast.stmt]:
    """An import of several names as one statement for each, so that another name is no change of the others."""
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
    return [statement]


def _tree(file: Path) -> ast.Module:
    """The syntax tree of a file without docstrings; for a file that is no Python, its bytes as a constant."""
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([ast.Expr(ast.Constant(content))], [])
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree


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
