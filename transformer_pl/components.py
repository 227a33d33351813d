"""Parts of the model by import path: no registry, the path is the name.

A part is built as `Class(config, site, **options)`; its constructor's signature is the schema of its options.
"""

import ast
import hashlib
import importlib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from transformer_pl.config import SLOTS, Component, Model, Sizes, is_papers, suggestion
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code

CORE = Path(__file__).parent
READING = ConfigDict(coerce_numbers_to_str=True)  # 16 has been read as a number, wherever it is to go


def build(part: Component, config: Sizes, site: str | None) -> Any:
    """The part at its place: site is `encoder`, `decoder` or `cross`; None for the embedding, which all share."""
    made = import_component(part.path)
    options = _options(part, made)
    with component_code():
        return made(config, site, **options)


def import_component(path: str) -> type:
    """The class at an import path. Raises an InputError that names the file and line where the import fails."""
    module, _, name = path.rpartition(".")
    try:
        with component_code():
            found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"{path}: no module {error.name}; it must be importable from here") from None
        raise InputError(f"{path}: {error_place(error)}: {error}") from None
    except Exception as error:
        raise InputError(f"{path}: {described(error)}") from None
    if not inspect.isclass(getattr(found, name, None)):
        classes = [
            known for known, value in vars(found).items() if inspect.isclass(value) and value.__module__ == module
        ]
        raise InputError(f"{path}: {module} holds no class {name}{suggestion(name, classes)}")
    return getattr(found, name)


def check_components(model: Model) -> list[str]:
    """What is wrong with the parts that are not the paper's: import, signature, options. Its own are not imported."""
    messages = []
    for seam in SLOTS:
        part = getattr(model, seam)
        if not is_papers(seam, part):
            try:
                with component_code():
                    _options(part, import_component(part.path))
            except InputError as error:
                messages += [f"model.{seam} = {message}" for message in error.messages]
            except Exception as error:  # of a signature that cannot be read
                messages.append(f"model.{seam} = {part.path}: {described(error)}")
    return messages


def source_digests(model: Model) -> dict[str, str]:
    """The sha256 of the file of every part that is not the core's: editing it makes another trial.

    So does editing what it imports, but for the core and for what is installed.
    """
    digests = {}
    for seam in SLOTS:
        part = getattr(model, seam)
        if not part.path.startswith("transformer_pl."):
            files = _files(part.path.rpartition(".")[0], set())
            digests[seam] = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return digests


def _files(name: str, seen: set[str]) -> Iterator[Path]:
    """A module's file, then those of the modules it imports that are neither the core's nor installed.

    By what is written, not by what some process has loaded: every process is to find the same.
    """
    spec = _spec(name)
    if name in seen or spec is None or not spec.has_location:
        return
    seen.add(name)
    file = Path(spec.origin)
    yield file
    for node in ast.walk(ast.parse(file.read_bytes())) if file.suffix == ".py" else ():
        for imported in _imports(node, spec.parent):
            if _is_own(imported):
                yield from _files(imported, seen)


def _imports(node: ast.AST, package: str | None) -> list[str]:
    """What may be modules of what a node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        with suppress(ImportError):  # relative, in a module of no package: meant to fail
            base = resolve_name("." * node.level + (node.module or ""), package)
            return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return []


def _is_own(name: str) -> bool:
    top = name.partition(".")[0]
    spec = _spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    return top != "transformer_pl" and any(place and os.sep in place and not _installed(place) for place in places)


def _spec(name: str) -> ModuleSpec | None:
    with suppress(Exception), component_code():  # whatever a package does that is imported on the way
        return find_spec(name)
    return None


def _installed(file: str) -> bool:
    return bool({"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name} & set(Path(file).parts))


def _options(part: Component, made: type) -> dict[str, Any]:
    """The options by the constructor's declared types. Raises an InputError for all that do not fit at once."""
    accepted = _accepted(made)
    messages, options = [], {}
    for name, value in part.options.items():
        if name not in accepted:
            known = suggestion(name, accepted) if accepted else "; it takes none"
            messages.append(f"{part.path}: option {name} = {value}: no such option{known}")
            continue
        try:
            options[name] = _typed(value, accepted[name].annotation)
        except ValidationError as error:
            law = error.errors()[0]["msg"].removeprefix("Input ").replace("should", "must")
            messages.append(f"{part.path}: option {name} = {value}: {law}")
    needed = [name for name, p in accepted.items() if p.default is p.empty and name not in part.options]
    messages += [f"{part.path}: option {name} must be given" for name in needed]
    if messages:
        raise InputError(*messages)
    return options


def _typed(value: object, declared: Any) -> object:
    """A value by its declared type; as it is where none is declared, or one that values cannot be read by."""
    if declared is inspect.Parameter.empty:
        return value
    try:
        return TypeAdapter(declared, config=READING).validate_python(value)
    except (PydanticUserError, NameError):
        return value


def _accepted(made: type) -> dict[str, inspect.Parameter]:
    """What the constructor takes by name, beside the config and the site."""
    try:
        parameters = inspect.signature(made, eval_str=True).parameters
    except NameError:  # a type that is imported for type checkers alone
        parameters = inspect.signature(made).parameters
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in list(parameters.items())[2:] if p.kind not in unnamed}


def definition_place(part: type) -> str:
    """The file and line at which a class is written; its module, where no line defines it."""
    try:
        return f"{inspect.getsourcefile(part)}, line {inspect.getsourcelines(part)[1]}"
    except (OSError, TypeError):  # made by a function, or built into Python
        return f"module {part.__module__}"


def described(error: Exception) -> str:
    """An exception with the file and line that it came from."""
    return f"{error_place(error)}: {type(error).__name__}: {error}"


def error_place(error: Exception) -> str:
    """The file and line that an exception came from: a user's own, where there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in reversed(traceback.extract_tb(error.__traceback__)) if "importlib" not in f.filename]
    written = [f for f in frames if not _installed(f.filename)]  # not where torch noticed it
    own = [f for f in written if not Path(f.filename).is_relative_to(CORE)]  # nor where the core did
    frame = next(iter(own or written or frames), None)
    return f"{frame.filename}, line {frame.lineno}" if frame else "import"
