"""Digests of the code of components and tasks that are not in `transformer_pl`, and copies that stay with a trial.

The code of a class has three parts: the statement that defines it, with the statements of its file to which that one
refers, directly or through others; the statements of this file that do something when it is imported; and, as a whole,
every other file of the user's that this code imports, or that is imported with its file. Other classes in the file may
change without a new digest. But if the code looks names up while it runs, or imports its own file, the whole file
counts.

The files are read, and no module is imported. So every process finds the same code, and a result from a stranger, which
may name any module, runs nothing. The digest leaves out installed packages, code that is chosen at run time, and files
that the code opens by itself (see `option_files` for those that its options name).
"""

import ast
import importlib
import itertools
import os
import pkgutil
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from transformer_pl.config import Component, Data
from transformer_pl.config.components import is_core
from transformer_pl.runtime.digests import text_digest
from transformer_pl.runtime.environment import process_began
from transformer_pl.runtime.errors import installed
from transformer_pl.runtime.files import reading

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (ast.ClassDef, *FUNCTIONS)
IMPORTS = (ast.Import, ast.ImportFrom)
IMPORTING = {"__import__", "import_module"}  # functions
LOOKUPS = {"globals", "vars", "eval", "exec", *IMPORTING}  # by a name made at run time
NEVER_TRUE = {"__name__ == '__main__'", "'__main__' == __name__", "TYPE_CHECKING"}
_last_seen: dict[str, bytes] = {}  # by file: its content when `forget_edited` last saw it


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
            copy.write_bytes(_content(spec))


def forget_edited(components: Iterable[Component]) -> None:
    """Forget the modules of components of whose files one has changed since this process may have imported it.

    The next import reads the files anew. It is for a notebook, whose process sees many edits.
    """
    for path in {component.path for component in components if not is_core(component.path)}:
        code = _code(path)
        if any([_is_edited(spec) for spec, _ in code.values()]):  # a list, as each is to be seen
            for module in code:
                for name in (module, module.rpartition(".")[0]):  # which may be a folder without an __init__.py
                    sys.modules.pop(name, None)


def _is_edited(spec: ModuleSpec) -> bool:
    """Whether a module's file has changed since the last call or, at the first, since this process began."""
    file, content = str(spec.origin), _content(spec)
    before, _last_seen[file] = _last_seen.get(file), content
    if before is not None:
        return before != content
    return os.stat(file).st_ctime >= process_began()  # the time of a change, which no program can set


# ---------------------------------------------------------------------------------------------------------------------
# The code of a class


def _digest(path: str) -> str:
    code = [ast.unparse(statement) for _, statements in _code(path).values() for statement in statements]
    return text_digest("\n".join(code))


def _code(path: str, whole: bool = False) -> dict[str, tuple[ModuleSpec, list[ast.stmt]]]:
    """The code of a class: by module of the user's, as they are found, the spec and the statements that count.

    whole: whether its own file counts as a whole, because code that counts imports it.
    """
    own, _, name = path.rpartition(".")
    code: dict[str, tuple[ModuleSpec, list[ast.stmt]]] = {}
    imported = [own]
    importlib.invalidate_caches()  # the finders of modules look anew
    for module in imported:  # which grows meanwhile
        if module not in code and (spec := _users_file(module)):
            statements = _statements(_content(spec))
            counted = statements if code or whole else _referred(statements, name)
            code[module] = spec, counted
            run = [one for one in statements if one in counted or isinstance(one, IMPORTS)]
            imported += itertools.chain.from_iterable(_imported(statement, spec.parent or "") for statement in run)
        if (above := module.rpartition(".")[0]) and above not in imported:  # a package is imported with its modules
            imported.append(above)
    return code if whole or own not in imported[1:] else _code(path, whole=True)


def _referred(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements of a file that bind a name, those that they refer to, and those that run when it is imported.

    It returns all statements where it cannot be known which these are.
    """
    bound = list(map(_bound, statements))  # the names that each binds
    own = map(_bound, filter(lambda one: isinstance(one, DEFINITIONS) or _imports_users(one), statements))
    users_own = set[str]().union(*own)  # names of the user's own functions and classes
    everything = set[str]().union(*bound)
    if name not in everything or "*" in everything or any(map(_observes_subclasses, statements)):
        return statements
    needed, referred = set[int](), {name}
    found = {index for index, statement in enumerate(statements) if _runs(statement, users_own)}
    while found := (found | {index for index, names in enumerate(bound) if names & referred}) - needed:
        if any(_looks_up(statements[index]) for index in found):
            return statements
        needed |= found
        referred = set(itertools.chain.from_iterable(_names(statements[index]) for index in found))
        known = set[str]().union(*(bound[index] for index in needed))
        found = {index for index, statement in enumerate(statements) if _calls(statement, known)}
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
    for node in ast.walk(statement):
        if getattr(node, "id", None) in LOOKUPS or getattr(node, "attr", None) in LOOKUPS:  # a name, or an attribute
            return True
        if getattr(node, "attr", None) == "modules" and id(node) not in called:  # `sys.modules`, not torch's method
            return True
    return False


def _observes_subclasses(statement: ast.stmt) -> bool:
    """Whether a class changes when others are derived from it."""
    return any(
        (isinstance(node, FUNCTIONS) and node.name == "__init_subclass__")
        or (isinstance(node, ast.ClassDef) and any(keyword.arg == "metaclass" for keyword in node.keywords))
        for node in ast.walk(statement)
    )


def _imports_users(statement: ast.AST) -> bool:
    """Whether a statement or a call imports another file of the user's."""
    is_relative = isinstance(statement, ast.ImportFrom) and statement.level > 0
    return is_relative or any(map(_is_users, _imported(statement, "")))


def _runs(statement: ast.stmt, users_own: set[str]) -> bool:
    """Whether a statement may do something else than binding names when its file is imported.

    users_own: the names of the user's own functions and classes, which may do anything where they are called.
    """
    if isinstance(statement, IMPORTS):  # which `_code` follows
        return False
    importing = (node for node in _executed(statement) if isinstance(node, (*IMPORTS, ast.Call)))
    if any(map(_imports_users, importing)) or _calls(statement, users_own):
        return True
    is_definition = isinstance(statement, DEFINITIONS)
    return not is_definition and (not _bound(statement) or any(map(_has_effect, _executed(statement))))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """A node, and the nodes below it, but not the bodies of functions."""
    yield node
    if not isinstance(node, FUNCTIONS):
        for child in ast.iter_child_nodes(node):
            yield from _executed(child)


def _has_effect(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
    changes = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    return changes or isinstance(node, ast.Expr | ast.Delete)


def _calls(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement calls one of these names, or passes one to a call, when its file is imported."""
    called: Sequence[ast.AST] = [node for node in _executed(statement) if isinstance(node, ast.Call)]
    if isinstance(statement, DEFINITIONS):
        called = statement.decorator_list
    return any(isinstance(node, ast.Name) and node.id in names for call in called for node in ast.walk(call))


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


def _imported(statement: ast.AST, package: str) -> Iterator[str]:
    """The modules that a statement may import. Of `from a import b` these are `a`, and `a.b`, which may be a module."""
    for node in ast.walk(statement):
        with suppress(ImportError):  # a relative import outside of a package, which fails when it runs, too
            if isinstance(node, ast.Import):
                for alias in node.names:  # `import a.b` also binds `a`
                    yield from (alias.name, alias.name.partition(".")[0])
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in IMPORTING:
                names = [name.value for name in node.args[:1] if isinstance(name, ast.Constant)]
                yield from (resolve_name(name, package) for name in names if isinstance(name, str))


def _single_imports(statement: ast.stmt) -> list[ast.stmt]:
    """An import of several names as one statement for each, so that another name is no change of the others."""
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
    return [statement]


def _content(spec: ModuleSpec) -> bytes:
    """The bytes of a module's file."""
    with reading(Path(str(spec.origin)), "unpack it if it is in a zip file, or fix its permissions") as file:
        return file.read_bytes()


def _statements(content: bytes) -> list[ast.stmt]:
    """The statements of a file that may run when it is imported, or later, without docstrings.

    For a file that is no Python it is one statement, with its bytes as a constant.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return [ast.Expr(ast.Constant(content))]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    run = [statement for statement in tree.body if not _never_runs(statement)]
    return [single for statement in run for single in _single_imports(statement)]


def _never_runs(node: ast.AST) -> bool:
    """Whether a statement of a module is for type checkers, or runs only where its file is the program."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test).rpartition(".")[2] in NEVER_TRUE


def _users_file(module: str) -> ModuleSpec | None:
    """Where a module of the user's lies; None for any other, and for one that lies in no file."""
    spec = _spec(module) if _is_users(module) else None
    return spec if spec and spec.has_location and spec.origin else None


def _is_users(name: str) -> bool:
    """Whether a module is neither the core's, nor installed, nor built into Python."""
    top = name.partition(".")[0]
    spec = _spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return top != "transformer_pl" and any(place and os.sep in place and not installed(place) for place in places)


def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies; None where it is not found. Neither it nor a package above it is imported."""
    above = name.rpartition(".")[0]
    if not above:
        return _found(name, None)
    package = _spec(above)
    return package and _found(name, list(package.submodule_search_locations or []))


def _found(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Where one finder of Python finds a module, among these places."""
    for finder in sys.meta_path:
        with suppress(Exception):  # also of a finder that somebody has added
            if spec := finder.find_spec(name, places):
                return spec
    # Python's finder needs the package above, imported, for a folder without an __init__.py
    finders = filter(None, map(pkgutil.get_importer, places or ()))
    folders = [spec.submodule_search_locations or () for finder in finders if (spec := finder.find_spec(name))]
    spec = ModuleSpec(name, None)
    spec.submodule_search_locations = list(itertools.chain.from_iterable(folders))
    return spec if spec.submodule_search_locations else None
