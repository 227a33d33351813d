"""Parts of the model by import path: no registry, the path is the name.

A part is built as `Class(config, site, **options)`; its constructor's signature is the schema of its options.
"""

import ast
import hashlib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from transformer_pl.config import SEAMS, Model, Part, Sizes, is_papers, nearest
from transformer_pl.errors import InputError

READING = ConfigDict(coerce_numbers_to_str=True)  # 16 has been read as a number, wherever it is to go


def build(part: Part, config: Sizes, site: str | None) -> Any:
    """The part at its place: site is `encoder`, `decoder` or `cross`; None for the embedding, which all share."""
    made = load(part.path)
    return made(config, site, **_options(part, made))


def load(path: str) -> type:
    """The class at an import path. Raises an InputError that names the file and line where the import fails."""
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"{path}: no module {error.name}; it must be importable from here") from None
        raise InputError(f"{path}: {where(error)}: {error}") from None
    except Exception as error:
        raise InputError(f"{path}: {where(error)}: {type(error).__name__}: {error}") from None
    if not inspect.isclass(getattr(found, name, None)):
        classes = [
            known for known, value in vars(found).items() if inspect.isclass(value) and value.__module__ == module
        ]
        raise InputError(f"{path}: {module} holds no class {name}{nearest(name, classes)}")
    return getattr(found, name)


def check(model: Model) -> list[str]:
    """What is wrong with the parts that are not the paper's: import, signature, options. Its own are not imported."""
    messages = []
    for seam in SEAMS:
        part = getattr(model, seam)
        if not is_papers(seam, part):
            try:
                _options(part, load(part.path))
            except InputError as error:
                messages += [f"model.{seam} = {message}" for message in error.messages]
    return messages


def sources(model: Model) -> dict[str, str]:
    """The sha256 of the file of every part that is not the core's: editing it makes another trial.

    So does editing what it imports, but for the core and for what is installed.
    """
    digests = {}
    for seam in SEAMS:
        part = getattr(model, seam)
        if not part.path.startswith("transformer_pl."):
            files = dict.fromkeys(_files(sys.modules[load(part.path).__module__], set()))
            digests[seam] = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return digests


def _files(module: ModuleType, seen: set[str]) -> Iterator[Path]:
    """A module's file, then those of the modules it imports that are neither the core's nor installed."""
    file = Path(getattr(module, "__file__", None) or "")
    if module.__name__ in seen or not file.name:
        return
    seen.add(module.__name__)
    yield file
    for node in ast.walk(ast.parse(file.read_bytes())) if file.suffix == ".py" else ():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__)
            names = [base, *(f"{base}.{name}" for name in names)]
        for name in names:
            if name in sys.modules and _is_own(sys.modules[name]):
                yield from _files(sys.modules[name], seen)


def _is_own(module: ModuleType) -> bool:
    installed = {"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name}
    file = Path(getattr(module, "__file__", None) or "")
    return module.__name__.partition(".")[0] != "transformer_pl" and not installed & set(file.parts)


def _options(part: Part, made: type) -> dict[str, Any]:
    """The options by the constructor's declared types. Raises an InputError for all that do not fit at once."""
    accepted = _accepted(made)
    messages, options = [], {}
    for name, value in part.options.items():
        if name not in accepted:
            known = nearest(name, accepted) if accepted else "; it takes none"
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


def defined(part: type) -> str:
    """The file and line at which a class is written."""
    return f"{inspect.getsourcefile(part)}, line {inspect.getsourcelines(part)[1]}"


def where(error: Exception) -> str:
    """The file and line that an exception came from: a user's own, where there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in reversed(traceback.extract_tb(error.__traceback__)) if "importlib" not in f.filename]
    own = (f for f in frames if "site-packages" not in f.filename)  # not where torch noticed it
    frame = next(own, frames[0] if frames else None)
    return f"{frame.filename}, line {frame.lineno}" if frame else "import"
