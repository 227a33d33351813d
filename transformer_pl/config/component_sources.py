"""Digests of the code of components and tasks that are not in `transformer_pl`, and copies that stay with a trial.

The code of a class is its whole file, and every file of the user's that can be reached from there, at any depth:
- by an import, wherever it stands in a file;
- by a text that names a module: an argument of a call or its default, an option, and any text of a file that uses
  `importlib` or the like (BY_NAME); also by the path of its file, `tools/ops.py`;
- by a word of a text of a file that has one of IMPORTERS; and as a module beside it, if what it imports is no text.

A package that is itself imported or named counts with all its modules, since it may import them from a list, or when
they are asked for. So does a package above an imported module, if its `__init__.py` has more than imports and
constants. Comments, docstrings and layout do not count.

The files are read, and no module is imported. So every process finds the same code, and a result from a stranger, which
may name any module, runs nothing. Therefore the file of a class may not have `sys.path`, by which more is found once it
has run. The digests leave out installed packages, and files that the code opens by itself (see `option_files` for those
that its options name).
"""

import ast
import importlib
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from inspect import getmodulename
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.config import Component, Data
from transformer_pl.config.components import is_core
from transformer_pl.config.option_files import mapped
from transformer_pl.runtime.digests import text_digest
from transformer_pl.runtime.environment import process_began
from transformer_pl.runtime.errors import InputError, installed
from transformer_pl.runtime.files import reading

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PLAIN = "Module Import ImportFrom alias Assign Name Constant Tuple List Load Store"  # imports and constants
TEXTS = {ast.Call: ("args", "keywords"), ast.arguments: ("defaults", "kw_defaults")}  # where they may name a module
# In a file that has one of these any text may name a module
BY_NAME = re.compile(
    r"\b(importlib|import_module|__import__|sys|pkgutil|pydoc|runpy|exec|eval|ImportString)\b|modules\["
)
IMPORTERS = {"import_module", "__import__", "resolve_name", "locate", "run_module", "run_path", "exec", "eval"}
NAME = re.compile(r"(\.*([\w-]+(\.[\w-]+)*)?)(\.?([:{%]\S*)?)")  # a text that names a module, and what stands behind
Code = dict[str, str] | str  # by file, a digest of its code; for a class without files of the user's the digest of none
_last_seen: dict[Path, bytes] = {}  # by file: its content when `forget_edited` last saw it


def source_digests(components: Mapping[str, Component]) -> dict[str, Code]:
    """The code of those components that are not in `transformer_pl`, under the same names.

    components: by slot, and callbacks by their path.
    """
    own = {name: _code(part).values() for name, part in components.items() if not is_core(part.path)}
    return {
        name: {file.name: text_digest(file.code) for file in files} or text_digest("") for name, files in own.items()
    }


def by_path(parts: Iterable[Component]) -> dict[str, Component]:
    """Components by their path. Those of one class are one, with the options of all, whose code counts."""
    same: dict[str, list[Component]] = {}
    for part in parts:
        same.setdefault(part.path, []).append(part)
    together = {path: {"options": {str(n): one.options for n, one in enumerate(ones)}} for path, ones in same.items()}
    return {path: one if not more else one.model_copy(update=together[path]) for path, (one, *more) in same.items()}


def task_digest(data: Data) -> dict[str, Code]:
    """The code of a task, which decides what is read and scored. Empty for a task in `transformer_pl`."""
    return source_digests({"task": Component(path=data.task)})


def keep_sources(components: Iterable[Component], folder: Path) -> None:
    """Copy the files of the code of components to a folder, in place of what was kept there."""
    if folder.is_symlink():  # the link alone is removed, not the folder behind it
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    for component in components:
        for file in _code(component).values() if not is_core(component.path) else ():
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.content)


def forget_edited(components: Iterable[Component]) -> None:
    """Forget the modules of components of whose files one has changed since this process may have imported it.

    The next import reads the files anew. It is for a notebook, whose process sees many edits.
    """
    for component in components:
        code = {} if is_core(component.path) else _code(component)
        edited = [file for file in code.values() if _is_edited(file)]  # which sees each
        for module in code if edited else ():
            for name in (module, module.rpartition(".")[0]):  # which may be a folder without an __init__.py
                sys.modules.pop(name, None)


class _Analysed(NamedTuple):
    """What a file's content says."""

    code: str  # without comments and docstrings
    imports: Sequence[tuple[str, Sequence[str]]]  # modules, and the names of each that stand in `from a import b`
    texts: Sequence[str]  # that may name modules
    words: Sequence[str]  # of texts, in a file that imports by name
    by_name: bool  # whether any text may name a module
    beside: bool  # whether any module beside the file may be imported
    adds_places: bool  # whether it has `sys.path`
    is_plain: bool  # whether it holds imports and constants alone


class _File(NamedTuple):
    """A file of the user's."""

    place: Path
    name: str  # below the folder that it is imported from
    content: bytes
    code: str  # without comments and docstrings


def _is_edited(file: _File) -> bool:
    """Whether a file has changed since the last call or, at the first, since this process began."""
    before, _last_seen[file.place] = _last_seen.get(file.place), file.content
    since = os.stat(file.place).st_ctime >= process_began()  # the time of a change, which no program can set
    return since if before is None else before != file.content


# ---------------------------------------------------------------------------------------------------------------------
# The code of a class


def _code(component: Component) -> dict[str, _File]:
    """By module, the files of the user's that a component consists of."""
    importlib.invalidate_caches()  # the finders of modules look anew
    _users.cache_clear()
    _spec.cache_clear()
    code, folders = dict[str, _File](), set[Path]()  # folders of which all counts, once; a link may lead into itself
    # Modules, and whether all that lies in a folder of this name counts
    found = [(component.path.rpartition(".")[0], True)]
    mapped(component.options, lambda part, _: found.extend(_named([part] if isinstance(part, str) else [])))
    for module, whole in found:  # which grows meanwhile
        if not module or not (spec := _users(module)):
            continue
        if spec.has_location and spec.origin and module not in code:
            code[module] = file = _read(spec)
            says, package = _analysed(file.content), spec.parent or ""
            found += _imported(says.imports, package)
            found += _beside(file.place, package) if says.beside else []
            found += [*_named(says.texts, package, says.by_name), *_named(says.words, package)]
            whole = whole or not says.is_plain
        if whole:
            found += [(f"{module}.{name}", True) for name in _modules_in(spec, folders)]
        found.append((module.rpartition(".")[0], False))  # a package is imported with its modules
    _check_places(code.get(component.path.rpartition(".")[0]))
    return code


def _check_places(file: _File | None) -> None:
    """Raise an InputError where the file of a class may say where modules lie."""
    if file and _analysed(file.content).adds_places:
        rule = "must not have sys.path, by which other processes would find other code"
        raise InputError(f"{file.place}: {rule}; put its folders into the environment variable PYTHONPATH")


def _read(spec: ModuleSpec) -> _File:
    """The file of a module."""
    place = Path(str(spec.origin))
    with reading(place, "unpack it if it is in a zip file, or fix its permissions"):
        content = place.read_bytes()
    name = "/".join([*filter(None, (spec.parent or "").split(".")), place.name])
    return _File(place, name, content, _analysed(content).code)


def _beside(place: Path, package: str) -> list[tuple[str, bool]]:
    """The modules that lie beside a file of a package."""
    names = filter(None, (getmodulename(path) for path in sorted(place.parent.iterdir())))
    return [(f"{package}.{name}".lstrip("."), False) for name in names]


@lru_cache(maxsize=4096)
def _analysed(content: bytes) -> _Analysed:
    """What a content says; of what is no Python nothing, and it counts as it is."""
    try:
        tree = ast.parse(content)
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        code = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it is no Python
        tree, code = ast.Module([], []), repr(content)
    imports = _imports(tree)
    by_name = bool(BY_NAME.search(code))
    is_plain = {type(node).__name__ for node in ast.walk(tree)}.issubset(PLAIN.split())
    adds_places = any(ast.unparse(node) == "sys.path" for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    adds_places |= any(module == "sys" and "path" in names for module, names in imports)
    texts, uses, by_text = sorted(_texts(tree, by_name)), _importers(tree), "ImportString" in code  # of pydantic
    words = sorted({word for text in texts for word in re.findall(r"\w[\w.]*\w", text)} if uses or by_text else [])
    beside = any(not is_text for is_text in uses)
    return _Analysed(code, imports, texts, words, by_name, beside, adds_places, is_plain)


def _imports(tree: ast.Module) -> list[tuple[str, Sequence[str]]]:
    imports = list[tuple[str, Sequence[str]]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append(("." * node.level + (node.module or ""), [alias.name for alias in node.names]))
    return imports


def _importers(tree: ast.Module) -> list[bool]:
    """For each place where one of IMPORTERS stands, whether it is called with a plain text."""
    named = [node for node in ast.walk(tree) if getattr(node, "id", getattr(node, "attr", None)) in IMPORTERS]
    plain = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and all(isinstance(part, ast.Constant) for part in [*node.args[:1], *(word.value for word in node.keywords)])
    }
    return [id(node) in plain for node in named]


def _imported(imports: Iterable[tuple[str, Sequence[str]]], package: str) -> Iterator[tuple[str, bool]]:
    """The modules that a file imports. In `from a import b` that is `a.b` where that is a module, and else `a`."""
    for module, names in imports:
        with suppress(ImportError):  # a relative import outside of a package, which fails when it runs, too
            base = resolve_name(module, package)
            yield from ((inner if _users(inner) else base, True) for inner in (f"{base}.{name}" for name in names))
            yield from [(base, True)] * (not names)


def _texts(tree: ast.Module, by_name: bool) -> set[str]:
    """The texts of a file that may name modules; where it imports by name these are all, and `.` is its package."""
    places: list[ast.AST] = [tree] if by_name else []
    for node in ast.walk(tree):
        places += [part for field in TEXTS.get(type(node), ()) for part in getattr(node, field) if part]
    constants = (node.value for place in places for node in ast.walk(place) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and (by_name or text.strip("."))}


def _named(texts: Iterable[str], package: str = "", folders: bool = False) -> Iterator[tuple[str, bool]]:
    """The modules that texts name, also with something behind them, as `ops.F`, `ops:F` and `plugins.{}` have.

    folders: whether a text may also name a folder without an `__init__.py`, as `data` in `open("data")` does not.
    """
    names = (text[:-3].lstrip("./").replace("/", ".") if text.endswith(".py") else text for text in texts)
    for match in filter(None, map(NAME.fullmatch, names)):
        with suppress(ImportError):  # a relative name outside of a package
            whole = resolve_name(match[1], package) if match[1] else ""
            shorter = [whole.rsplit(".", n)[0] for n in range(whole.count(".") + 1 if whole == match[1] else 1)]
            found = ((module, _users(module)) for module in filter(None, shorter))
            yield from [(module, True) for module, spec in found if spec and (spec.origin or folders or match[4])][:1]


def _modules_in(spec: ModuleSpec, done: set[Path]) -> Iterator[str]:
    """The names of the modules in a package or folder. A folder without an `__init__.py` needs a name of Python's.

    done: the folders that have been read, of which none is read again.
    """
    places = {Path(place).resolve() for place in spec.submodule_search_locations or ()} - done
    for folder in (place for place in places if place.parent.name.endswith(".zip") or place.is_dir()):
        done.add(folder)
        with reading(folder, "unpack it if it is in a zip file, or fix its permissions"):
            for path in sorted(folder.iterdir()):
                is_package = path.is_dir() and (path.name.isidentifier() or (path / "__init__.py").exists())
                yield from filter(None, [path.name if is_package else getmodulename(path)])


@cache
def _users(name: str) -> ModuleSpec | None:
    """Where a module or a folder of the user's lies: None for what is the core's, installed, or built into Python."""
    top = name.partition(".")[0]
    spec = _spec(top) if top != "transformer_pl" else None
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return _spec(name) if any(place and os.sep in place and not installed(place) for place in places) else None


@cache
def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies; None where it is not found. Neither it nor a package above it is imported."""
    places, above = None, name.rpartition(".")[0]
    if above:
        package = _spec(above)
        places = list(package.submodule_search_locations or []) if package else []
    added: list[Any] = [finder for finder in sys.meta_path if finder is not PathFinder]
    # Python's own comes first, because others may do more than find: that of setuptools changes imports at `pip`
    for finder in [PathFinder, *added] if places != [] else ():
        with suppress(Exception):
            if spec := finder.find_spec(name, places):
                return spec
    # Python's finder needs the package above, imported, for a folder without an __init__.py
    found = [finder.find_spec(name) for finder in map(pkgutil.get_importer, places or ()) if finder]
    spec = ModuleSpec(name, None)
    spec.submodule_search_locations = [place for one in found if one for place in one.submodule_search_locations or ()]
    return spec if spec.submodule_search_locations else None
