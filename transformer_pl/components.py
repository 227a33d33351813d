"""Components by import path: there is no registry, the path is the name.

A component is built as `Class(config, site, **options)`; its constructor's signature is the schema of its options.
"""

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from transformer_pl.config import Component, Model, Sizes, not_papers
from transformer_pl.key_types import constraint_of
from transformer_pl.runtime.errors import InputError, message_of, shown, suggestion
from transformer_pl.runtime.signals import component_code
from transformer_pl.runtime.time_limit import time_limit

CORE = Path(__file__).parent
LONGEST_S = 300.0  # seconds that an import, or one check of a component, may take
READING = ConfigDict(coerce_numbers_to_str=True)  # `16` was read as a number, even where the option is text


def build(component: Component, config: Sizes, site: str | None) -> Any:
    """Build a component. site: `encoder`, `decoder` or `cross`; None for the embedding, which is built once for all."""
    component_class = import_component(component.path)
    options = _options(component, component_class)
    with component_code():
        return component_class(config, site, **options)


@contextmanager
def checked_code(what: str) -> Iterator[None]:
    """Run code of components that is tried out: it can neither end the command nor run for ever.

    what: names the components, for the message where the code does not end.
    """
    with component_code(), time_limit(what, LONGEST_S):
        yield


def import_component(path: str, beside: Path | None = None) -> type:
    """Import the class at a path. Raises an InputError that names the file and line where the import fails.

    beside: a folder that may hold a module which Python does not find, to say so.
    """
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module_name:
        raise InputError(f"{path}: must be the import path of a class, MODULE.CLASS, such as my_ablation.Alibi")
    try:
        with checked_code(f"the import of {path} ({_file(module_name)})"):
            module = importlib.import_module(module_name)
            found = getattr(module, name, None)  # a module may have a __getattr__ of its own
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            file = f"{error.name.replace('.', '/')}.py"
            folder = beside.resolve() if beside and (beside / file).is_file() else f"the folder that holds {file}"
            raise InputError(
                f"{path}: no module {error.name}; it must be importable from here: start the command in {folder}, or "
                "add that folder to PYTHONPATH"
            ) from None
        raise InputError(f"{path}: {error_place(error)}: {message_of(error)}") from None
    except Exception as error:
        raise InputError(f"{path}: {described(error)}") from None
    if not inspect.isclass(found):
        classes = [
            known for known, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module_name
        ]
        raise InputError(f"{path}: {module_name} holds no class {name}{suggestion(name, classes)}")
    return found


def check_components(model: Model, beside: Path | None = None) -> list[str]:
    """The mistakes of components that are not the paper's: import, signature, options. The paper's are not imported.

    beside: see `import_component`.
    """
    messages: list[str] = []
    for slot, component in not_papers(model).items():
        try:
            imported = import_component(component.path, beside)
            with checked_code(f"the signature of model.{slot} = {component.path} ({_file(imported.__module__)})"):
                _options(component, imported)
        except InputError as error:
            messages += [f"model.{slot} = {message}" for message in error.messages]
        except Exception as error:  # the signature cannot be read
            messages.append(f"model.{slot} = {component.path}: {described(error)}")
    return messages


def is_projects(module: str) -> bool:
    """Whether a module is of `transformer_pl`, or of the `ablations` beside it. Nothing is imported."""
    top = module.partition(".")[0]
    if top == "ablations":  # in another working folder there may be another package of this name
        spec = find_spec(top)
        places = spec.submodule_search_locations if spec else None
        return [Path(place).resolve() for place in places or ()] == [CORE.resolve().parent / top]
    return top == CORE.name


def installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    return bool({"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name} & set(Path(file).parts))


def _options(component: Component, component_class: type) -> dict[str, Any]:
    """Read the options by the constructor's declared types. Raises one InputError for all that do not fit."""
    accepted = _accepted(component_class)
    messages: list[str] = []
    options: dict[str, Any] = {}
    for name, value in component.options.items():
        if name not in accepted:
            known = suggestion(name, accepted) if accepted else "; it takes none"
            messages.append(f"{component.path}: option {name} = {shown(value)}: no such option{known}")
            continue
        try:
            options[name] = _typed(value, accepted[name].annotation)
        except ValidationError as error:
            messages.append(f"{component.path}: option {name} = {shown(value)}: {constraint_of(error.errors()[0])}")
    needed = [name for name, p in accepted.items() if p.default is p.empty and name not in component.options]
    messages += [f"{component.path}: option {name} must be given" for name in needed]
    if messages:
        raise InputError(*messages)
    return options


def default_options(component: Component) -> dict[str, Any]:
    """The defaults of the options of a component that is not the paper's, by name."""
    accepted = _accepted(import_component(component.path))
    return {name: parameter.default for name, parameter in accepted.items() if parameter.default is not parameter.empty}


def without_defaults(model: Model) -> Model:
    """The model without the options that have their defaults: these make no other model. The components are checked."""
    changed = {}
    for slot, component in not_papers(model).items():
        if component.options:
            defaults, typed = default_options(component), _options(component, import_component(component.path))
            # True equals 1, so the types count
            default = {n for n, value in typed.items() if n in defaults and repr(value) == repr(defaults[n])}
            options = {name: value for name, value in component.options.items() if name not in default}
            changed[slot] = component.model_copy(update={"options": options})
    return model.model_copy(update=changed)


def _typed(value: object, declared: Any) -> object:
    """Read a value by its declared type. Without a type, or with one that pydantic cannot read, it stays as it is."""
    if declared is inspect.Parameter.empty:
        return value
    try:
        return TypeAdapter(declared, config=READING).validate_python(value)
    except ValidationError:
        raise
    except Exception:  # pydantic knows no such type, or it is a text that cannot be evaluated
        return value


def _accepted(component_class: type) -> dict[str, inspect.Parameter]:
    """The parameters of the constructor after config and site, by name."""
    try:
        parameters = inspect.signature(component_class, eval_str=True).parameters
    except Exception:  # a type that cannot be evaluated, such as one that is imported only for type checkers
        try:
            parameters = inspect.signature(component_class).parameters
        except (TypeError, ValueError):
            path = f"{component_class.__module__}.{component_class.__qualname__}"
            raise InputError(f"{path}: must be a torch.nn.Module, but is built into Python or C; derive one") from None
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    placed = [name for name, p in parameters.items() if p.kind in by_place]
    given = placed[:2]  # config and site, unless *args takes them
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if name not in given and p.kind not in unnamed}


def _file(module: str) -> str:
    """The file that Python would import a module from. Nothing is imported."""
    path = Path(*module.split("."))
    files = (Path(folder, name) for folder in sys.path for name in (path.with_suffix(".py"), path / "__init__.py"))
    return next((str(file) for file in files if file.is_file()), "no file of Python")


def definition_place(component: type) -> str:
    """The file and line of a class; its module, where no line defines it."""
    try:
        return f"{inspect.getsourcefile(component)}, line {inspect.getsourcelines(component)[1]}"
    except (OSError, TypeError):  # the class was made by a function, or is built into Python
        return f"module {component.__module__}"


def described(error: Exception) -> str:
    """An exception with the file and line that it came from."""
    return f"{error_place(error)}: {type(error).__name__}: {message_of(error)}"


def error_place(error: Exception) -> str:
    """The file and line that an exception came from: the innermost of the user's own files, where there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in reversed(traceback.extract_tb(error.__traceback__)) if "importlib" not in f.filename]
    not_installed = [f for f in frames if not installed(f.filename)]
    users = [f for f in not_installed if not Path(f.filename).is_relative_to(CORE)]
    frame = next(iter(users or not_installed or frames), None)
    return f"{frame.filename}, line {frame.lineno}" if frame else "import"
