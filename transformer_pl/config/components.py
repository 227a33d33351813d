"""Builds components from their import paths: there is no registry, the path is the name.

A component of the model is built as `Class(config, site, **options)`, and the model itself as
`Class(config, **options)`. A tokenizer, an intervention, a callback and a logger are built as `Class(**options)`. The
signature of the constructor is the schema of the options.
"""

import ast
import builtins
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import is_typeddict
from yaml import YAMLError

from transformer_pl.config import (
    Component,
    Config,
    Model,
    Optim,
    Sizes,
    custom_components,
    custom_components_by_key,
    is_option,
)
from transformer_pl.config.types import NoBool, constraint_of, plain_value
from transformer_pl.runtime.errors import InputError, described, shown, suggestion
from transformer_pl.runtime.files import parse_yaml
from transformer_pl.runtime.signals import component_code

# Lightning's base class of each kind of extension. Only its name, because importing Lightning takes seconds.
BASES = {"trainer.callbacks": "Callback", "trainer.loggers": "Logger"}
# How many arguments a constructor has before its options: by key or, for a key that is not listed, by section.
ARGUMENTS = {"model.architecture": 1, "model": 2, "optim": 2, "data.batches": 5, "data": 0, "decode": 0, "trainer": 0}
# What training uses of a part that has it: of parts of which keys, and what these are called.
HOOKS = {
    "at_step": (
        ("model.", "optim.loss", "optim.optimizer", "data.batches"),
        "the model, losses, optimizers and batches",
    ),
    "auxiliary": (("model.", "optim.loss"), "the model and losses"),
    "carries": (("model.",), "the model"),
}
SECRETS = {"api_key", "apikey", "access_key", "secret", "password", "passwd"}
SECRETS |= {"token", "auth_token", "access_token", "api_token"}


class NamedByText:
    """A class of which the project makes an instance for the text that an option has, as `Teacher`."""


def before_options(key: str) -> int:
    """How many arguments the constructor of a key's component takes before its options."""
    return ARGUMENTS.get(key, ARGUMENTS[key.partition(".")[0]])


def build(component: Component, *arguments: Any, **given: Any) -> Any:
    """Build a component from these arguments, followed by its options.

    arguments: for a component of the model its `Sizes` and its site (see `Site`), which is None for the embedding; for
    the model its `Sizes`; for an optimizer the parameters and the rate; for a schedule and a loss `Sizes` and `Optim`.
    given: further options. Each is passed on only if the constructor takes it, its value fits, and the component does
    not set it.
    """
    component_class = import_component(component.path)
    with component_code():
        options = _options(component, component_class, len(arguments), given)
        own = _parameters(component_class, len(arguments))
        return component_class(*arguments, **{name: value for name, value in options.items() if name in own})


def build_groups(component: Component, named_parameters: Any) -> Any:
    """The groups of parameters that an optimizer's class makes, by its `groups`; it gets the options that it declares.

    named_parameters: pairs of a name and a parameter.
    """
    component_class: Any = import_component(component.path)
    options, own = _options(component, component_class, 2, {}), _parameters(component_class.groups, 1)
    return component_class.groups(named_parameters, **{name: value for name, value in options.items() if name in own})


def optimizer_options(optim: Optim) -> dict[str, Any]:
    """What every optimizer is offered, as `given` of `build`: `fused`, where no other implementation is chosen."""
    is_fused = not {"foreach", "differentiable"} & optim.optimizer.options.keys()
    return {"betas": (optim.beta1, optim.beta2), "eps": optim.eps} | ({"fused": True} if is_fused else {})


def with_own(config: Sizes, slot: str, component_class: type) -> Sizes:
    """The sizes, in which a slot is filled by the component that an architecture brings for it.

    Raises an InputError if the row fills this slot as well.
    """
    name = component_class.__qualname__
    if given := custom_components(config).get(slot):
        rule = f"must be the paper's, because model.architecture brings {name}"
        raise InputError(f"model.{slot} = {given.path}: {rule}; leave it out")
    own: dict[str, Any] = {slot: Component(path=f"{component_class.__module__}.{name}")}
    return config._replace(**own)


def build_derived(key: str, component: Component, base: type) -> Any:
    """Build the component of a key whose class must be derived from `base`. No other class is built.

    Raises an InputError that begins with the key.
    """
    try:
        if not issubclass(import_component(component.path), base):  # a file of results may name any class
            raise InputError(f"{component.path}: must be derived from {base.__module__}.{base.__qualname__}; derive it")
        return build(component)
    except InputError as error:
        raise InputError(*(f"{key} = {message}" for message in error.messages)) from None
    except Exception as error:
        raise InputError(f"{key} = {component.path}: fails at {described(error)}; fix it") from None


def import_component(path: str) -> type:
    """Import the class at a path. Raises an InputError that names the file and line where the import fails."""
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module_name:
        raise InputError(f"{path}: must be the import path of a class, MODULE.CLASS, such as my_ablation.Alibi")
    try:
        with component_code():
            module = importlib.import_module(module_name)
            component_class = getattr(module, name, None)  # a module may have a __getattr__ of its own
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            place = f"start in the folder that holds {missing.replace('.', '/')}.py, or add that to PYTHONPATH"
            raise InputError(f"{path}: no module {missing}; {place}") from None
        raise InputError(f"{path}: {described(error)}") from None
    if inspect.isroutine(component_class):
        rule = "must be a class, whose signature tells the options, but is a function"
        raise InputError(f"{path}: {rule}; write a class that builds what the function returns, and calls it")
    if not inspect.isclass(component_class):
        held = vars(module).items()  # what the module would only load when asked is not loaded for a message
        known = [known for known, value in held if inspect.isclass(value) and value.__module__ == module_name]
        raise InputError(f"{path}: {module_name} holds no class {name}{suggestion(name, known)}")
    return component_class


def check_components(config: Config, whole: bool = True) -> list[str]:
    """Messages for mistakes in the import, signature or options of each component that is not the default.

    whole: whether options without a default must be given.
    """
    messages = []
    extensions = [(key, extension) for key, listed in config.trainer.extensions.items() for extension in listed]
    for key, component in [*custom_components_by_key(config).items(), *extensions]:
        try:
            component_class, base = import_component(component.path), BASES.get(key)
            given = {"save_dir": "."} if base else None  # a logger gets it where it takes one
            _options(component, component_class, before_options(key), given, whole)
            messages += [f"{key} = {component.path}: {rule}" for rule in unused_hooks(key, component_class)]
            if base and base not in [parent.__name__ for parent in component_class.__mro__]:
                messages.append(f"{key} = {component.path}: must be derived from Lightning's {base}")
        except InputError as error:
            messages += [f"{key} = {message}" for message in error.messages]
        except Exception as error:  # the signature cannot be read
            messages.append(f"{key} = {component.path}: {described(error)}")
    return messages


def unused_hooks(key: str, part: Any) -> list[str]:
    """What must hold of `at_step` and the like, for each of them that a part of this key has, and nothing uses."""
    remedy = "call it otherwise, or do in another method what it does"
    return [
        f"must have no attribute {name}, which is used of {parts} alone; {remedy}"
        for name, (keys, parts) in HOOKS.items()
        if hasattr(part, name) and not key.startswith(keys)
    ]


def carrying(model: Model | Sizes, option: str | None = None) -> dict[str, Component]:
    """By slot, the components whose class says `carries = True` (see `Carrying`), of these those with an option."""
    found = {}
    for slot, component in custom_components(model).items():
        with suppress(InputError):  # which `check_components` reports
            options = {None, *options_of_class(component, before_options(f"model.{slot}"))}
            if getattr(import_component(component.path), "carries", False) and option in options:
                found[slot] = component
    return found


def is_consecutive(config: Config) -> bool:
    """Whether row b of each training batch goes on where row b of the batch before has ended: see `TrainStream`."""
    batches = custom_components(config.data).get("batches")
    with suppress(InputError):
        return batches is not None and getattr(import_component(batches.path), "consecutive", False)
    return False


def evaluated_model(config: Config) -> Model:
    """The model as it is evaluated in the end: with `decode.memory` as the option `memory` of what carries."""
    if (memory := config.decode.memory) is None:
        return config.model
    own = carrying(config.model, "memory").items()
    given = {
        slot: component.model_copy(update={"options": component.options | {"memory": memory}})
        for slot, component in own
    }
    return config.model.model_copy(update=given)


def is_core(path: str) -> bool:
    """Whether an import path is of `transformer_pl`."""
    return path.startswith("transformer_pl.")


def own_parts(config: Config) -> dict[str, Component]:
    """The parts around the model that are not in `transformer_pl`, by a name that begins with their key."""
    around = custom_components_by_key(config).items()
    parts = {key: part for key, part in around if not key.startswith(("model.", "decode."))}
    parts |= {"data.task": Component(path=config.data.task)}
    for key, extensions in config.trainer.extensions.items():
        parts |= {f"{key}[{i}]": extension for i, extension in enumerate(extensions)}
    return {key: part for key, part in parts.items() if not is_core(part.path)}


def _options(
    component: Component,
    component_class: type,
    before: int,
    given: Mapping[str, Any] | None = None,
    whole: bool = True,
) -> dict[str, Any]:
    """Read the options by the constructor's declared types. Raises one InputError for all that do not fit.

    before: how many arguments the constructor has before its options. given: see `build`.
    whole: whether options without a default must be given.
    """
    accepted = _accepted(component_class, before)
    _refuse_secrets(component.path, component.options)
    messages: list[str] = []
    options = _offered(accepted, given or {})
    for name, value in component.options.items():
        if name not in accepted:
            known = suggestion(name, accepted) if accepted else "; it takes none"
            messages.append(f"{component.path}: option {name} = {shown(value)}: no such option{known}")
            continue
        try:
            options[name] = _typed(value, accepted[name])
        except ValueError as error:
            rule = constraint_of(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
            messages.append(f"{component.path}: option {name} = {shown(value)}: {rule}")
    for name, parameter in accepted.items():
        if whole and parameter.default is parameter.empty and name not in options | component.options:
            messages.append(f"{component.path}: option {name} must be given")
    if messages:
        raise InputError(*messages)
    _refuse_secrets(component.path, options)  # digits are text by now where the option is declared as text
    return options


def _refuse_secrets(path: str, options: Mapping[str, Any]) -> None:
    """Raise an InputError, which does not show the value, for a text that is called as passwords are."""
    for name, value in options.items():
        if name in SECRETS and isinstance(value, str):
            why = "must not be a text, which results, plans and W&B would show"
            raise InputError(f"{path}: option {name}: {why}; give it by an environment variable")
        for inner in value if isinstance(value, list | tuple) else [value]:
            if isinstance(inner, dict):
                _refuse_secrets(path, inner)


def option_value(config: Config, key: str) -> Any:
    """The value of an option, such as `optim.optimizer.momentum`: its default where it is not given.

    None if the key is no option, if the option has no default, and if it belongs to a list of callbacks or loggers that
    does not have exactly one entry.
    """
    if not is_option(key):
        return None
    section, slot, name = key.split(".")
    filled = getattr(getattr(config, section), slot)
    components = filled if isinstance(filled, tuple) else (filled,)
    values = [_defaults(config, f"{section}.{slot}", component) | component.options for component in components]
    return values[0].get(name) if len(values) == 1 else None


def _offered(accepted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a constructor takes of the options that `build` gives."""
    return {name: value for name, value in given.items() if name in accepted and _fits(value, accepted[name])}


def _defaults(config: Config, key: str, component: Component) -> dict[str, Any]:
    """By name, the values that the options of a key's component have where it does not set them."""
    accepted = options_of_class(component, before_options(key))
    given = optimizer_options(config.optim) if key == "optim.optimizer" else {}
    defaults = {name: one.default for name, one in accepted.items() if one.default is not one.empty}
    return defaults | _offered(accepted, given)


def options_of_class(component: Component, before: int, inherited: bool = False) -> dict[str, inspect.Parameter]:
    """The options that a component takes, by name, with their declared types.

    inherited: also those of the classes from which it is derived.
    """
    own, *parents = import_component(component.path).__mro__
    options: dict[str, inspect.Parameter] = {}
    for parent in reversed(parents) if inherited else ():
        with suppress(InputError):
            options |= _accepted(parent, before)
    return options | _accepted(own, before)


def mentions(declared: Any, kind: type) -> bool:
    """Whether a declared type is this class or one derived from it, or has one among its parts, as `list[Path]` has."""
    declared = getattr(declared, "__value__", declared)  # of an alias that `type` defines
    declared = getattr(declared, "__supertype__", declared)  # of a NewType
    plain = get_origin(declared) or declared
    is_kind = inspect.isclass(plain) and issubclass(plain, kind)
    parts = get_type_hints(plain).values() if is_typeddict(plain) else get_args(declared)
    return is_kind or any(mentions(part, kind) for part in parts)


def adapter(declared: Any, any_class: bool = False) -> TypeAdapter[Any]:
    """What reads a value by a declared type. Raises an error of pydantic's where it knows no such type.

    any_class: whether a class that pydantic does not know is the type of its instances.
    """
    # `16` was read as a number, even where the option is text
    config = ConfigDict(coerce_numbers_to_str=True, arbitrary_types_allowed=any_class)
    try:
        return TypeAdapter(declared, config=config)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # dataclasses and models have their own
            raise
        return TypeAdapter(declared)


def with_components(config: Config, change: Callable[[str, Component], Component]) -> Config:
    """The config with each component, and each callback, replaced by what `change(key, component)` returns."""
    changed: dict[str, Any] = {key: change(key, part) for key, part in custom_components_by_key(config).items()}
    changed["trainer.callbacks"] = tuple(change("trainer.callbacks", part) for part in config.trainer.callbacks)
    return config.with_values(changed)


def without_defaults(config: Config) -> Config:
    """The config without options that equal their defaults: to write out a default does not make another trial.

    Its components must have passed `check_components`.
    """

    def change(key: str, component: Component) -> Component:
        if not component.options:
            return component
        component_class, before = import_component(component.path), before_options(key)
        typed, defaults = _options(component, component_class, before, whole=False), _defaults(config, key, component)
        accepted = _accepted(component_class, before)
        options = {
            name: _listed(value, accepted[name].annotation)
            for name, value in component.options.items()
            if name not in defaults or repr(typed[name]) != repr(defaults[name])  # as text, because True equals 1
        }
        return component.model_copy(update={"options": options})

    return with_components(config, change)


def _typed(value: object, parameter: inspect.Parameter) -> object:
    """Convert a value to the declared type of an option or, if none is declared, to the type of its default.

    The value stays as it is if there is no type, or if pydantic does not know the type. Raises a ValueError.
    """
    declared, default = parameter.annotation, parameter.default
    value = _listed(value, declared)
    if declared is parameter.empty and isinstance(default, bool | int | float | str | tuple | PurePath):
        declared = int | float if isinstance(default, int | float) and not isinstance(default, bool) else type(default)
    if declared is parameter.empty or (value is None and (default is None or parameter.annotation is parameter.empty)):
        return value
    if declared in (int, float, int | float):
        declared = Annotated[declared, NoBool]
    try:
        read = adapter(declared).validate_python(value)
    except ValidationError:
        raise
    except Exception:  # pydantic knows no such type, or it is a text that cannot be evaluated
        return tuple(value) if isinstance(value, list) and isinstance(default, tuple) else value
    _check_text(value, read)
    return read


def _check_text(value: object, read: object) -> None:
    """Raise a ValueError for a number that became text, as nobody knows how it was written: 1.10 is 1.1."""
    if isinstance(value, list) and isinstance(read, list | tuple):
        for part in zip(value, read, strict=False):
            _check_text(*part)
    elif isinstance(value, float) and isinstance(read, str):
        raise ValueError("must be text that is no number, as 1.10 and 1.1 would be the same; begin it with a letter")


def _listed(value: object, declared: Any) -> object:
    """The list or mapping that a text such as [a.txt,b.txt] or {file: a.txt} spells, where the declared type is one.

    That is how a command line has what a file has without quotes; `plain_value` has read all others.
    """
    several = get_args(declared) if get_origin(declared) in (Union, UnionType) else [declared]
    kinds = [get_origin(kind) or kind for kind in several]
    is_list = any(kind in kinds for kind in (list, tuple, set, Sequence))
    is_mapping = any(
        is_dataclass(kind) or is_typeddict(kind) or (inspect.isclass(kind) and issubclass(kind, Mapping | BaseModel))
        for kind in kinds
    )
    ends = {"[]": is_list, "{}": is_mapping}
    if str not in kinds and isinstance(value, str) and ends.get(value[:1] + value[-1:]):
        with suppress(ValueError, YAMLError):
            return plain_value(parse_yaml(value, numbers=False))
    return value


def _fits(value: object, parameter: inspect.Parameter) -> bool:
    """Whether a value that is offered to every class fits this option, to judge by the option's default.

    A pair of betas does not fit a triple, and a single eps does not fit a pair.
    """
    try:
        read = _typed(value, parameter)
    except ValueError:
        return False
    default = parameter.default
    if default in (None, parameter.empty):
        return True
    if isinstance(default, tuple):
        return isinstance(read, tuple) and len(read) == len(default)
    return not isinstance(read, tuple)


def _accepted(component_class: type, before: int) -> dict[str, inspect.Parameter]:
    """The parameters that are options, by name: of a constructor, and of an optimizer's static method `groups`."""
    accepted = _parameters(component_class, before)
    if isinstance(inspect.getattr_static(component_class, "groups", None), staticmethod):
        accepted = _parameters(component_class.groups, 1) | accepted  # type: ignore[attr-defined]
    return accepted


@cache
def _parameters(component_class: Any, before: int) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor or a function, by name: all but the first `before` ones."""
    try:
        parameters = dict(inspect.signature(component_class).parameters)
    except (TypeError, ValueError):
        path = f"{component_class.__module__}.{component_class.__qualname__}"
        must = "a torch.nn.Module" if before else "a class of Python"
        raise InputError(f"{path}: must be {must}, but is built into Python or C; derive one") from None
    function = component_class.__init__ if inspect.isclass(component_class) else component_class
    if is_dataclass(component_class):
        for field in fields(component_class):
            if field.default_factory is not MISSING and field.name in parameters:
                parameters[field.name] = parameters[field.name].replace(default=field.default_factory())
    module_names = getattr(inspect.unwrap(function), "__globals__", {})
    names = _Names(vars(builtins) | module_names)
    for name, parameter in parameters.items():
        with suppress(Exception):  # a text that is no type
            holder = type("", (), {"__annotations__": {name: parameter.annotation}})
            declared = get_type_hints(holder, module_names, names, include_extras=True)[name]
            parameters[name] = parameter.replace(annotation=declared)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = [name for name, p in parameters.items() if p.kind in positional][:before]  # fewer where *args takes them
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if name not in first and p.kind not in unnamed}


class _Names(dict[str, Any]):
    """The names of a module in its annotations, also those that it imports for type checkers alone."""

    def __missing__(self, name: str) -> Any:
        """One of Python's own, such as Path; any other is a class of which nothing is known."""
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[self["__name__"]]))):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                top = (getattr(node, "module", alias.name) or "").partition(".")[0]
                if name == (alias.asname or alias.name.partition(".")[0]) and top in sys.stdlib_module_names:
                    if isinstance(node, ast.ImportFrom):
                        return getattr(importlib.import_module(str(node.module)), alias.name)
                    return importlib.import_module(alias.name if alias.asname else top)
        return type(name, (), {})


def named(slot: str, component: type) -> str:
    """How messages name a component: its key, path, file and line; its module where no line defines it."""
    try:
        place = f"{inspect.getsourcefile(component)}, line {inspect.getsourcelines(component)[1]}"
    except (OSError, TypeError):  # the class was made by a function, or is built into Python
        place = f"module {component.__module__}"
    return f"model.{slot} = {component.__module__}.{component.__qualname__} ({place})"


def component_names(config: Model | Sizes) -> str:
    """All components that are not the paper's, each with its key, file and line."""
    return ", ".join(named(slot, import_component(c.path)) for slot, c in custom_components(config).items())
