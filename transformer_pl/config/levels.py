"""Merges the levels of settings (scale, file, variant, command line) over the defaults, and makes a config of them.

Values may come as text, as W&B's agent spells them (`1e-05`, `None`, `False`), and are read by the declared type.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ValidationError

from transformer_pl.config import COMPONENTS, EXTENSIONS, KEYS, WITH_OPTIONS, Config, is_known_key, unknown_key
from transformer_pl.config.constraints import BrokenConstraint, broken_constraints
from transformer_pl.config.types import Positive, Section, constraint_of, plain_value
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import read_yaml

SCALES = Path(__file__).parent / "scales"
DEFAULT_SCALE = "demo"
OF_SEEDS = ("looks", "base_seeds")  # parameters of a grid that say how its seeds are given out; a trial has none
MEASURED = "measured"  # an entry of a scale's file that is no key: what is known of base at this scale


class Level(NamedTuple):
    """Keys and values from one place, such as the scale or the command line. Errors name the place."""

    place: str
    values: Mapping[str, Any]


def merge(levels: Iterable[Level]) -> dict[str, tuple[Any, str]]:
    """Merge levels, lowest first: return each key's value and the place that it comes from.

    A level that names a component, or callbacks, drops the options that lower levels gave for its slot. A level that
    names a dataset drops the subset and the revision that lower levels gave.
    """
    merged: dict[str, tuple[Any, str]] = {}
    for place, values in levels:
        for slot in values.keys() & set(WITH_OPTIONS):
            merged = {key: v for key, v in merged.items() if not key.startswith(f"{slot}.")}
        if values.keys() & {"data.path", "data.hub"}:
            merged = {key: v for key, v in merged.items() if key not in ("data.subset", "data.revision")}
        merged |= {key: (value, place) for key, value in values.items()}
    return merged


def resolve(levels: Iterable[Level]) -> Config:
    """Merge levels, lowest first, over the defaults. Raises an InputError that lists every mistake of `read_levels`."""
    config, mistakes = read_levels(levels)
    if mistakes:
        raise InputError(*mistakes)
    return config


def read_levels(levels: Iterable[Level]) -> tuple[Config, list[str]]:
    """Merge levels, lowest first, over the defaults: the config of all keys that can be read, and the mistakes.

    A mistake is an unknown key, a value of a wrong type or a broken constraint.
    """
    merged = merge(levels)
    config, wrong = _read_by_type(merged)
    messages = list(wrong.values())
    for keys, constraint in [*broken_constraints(config), *_options_of_no_single_class(merged, config)]:
        if not wrong.keys() & set(keys):
            places = dict.fromkeys(merged[key][1] for key in keys if key in merged)
            flat = {key: value for key, (value, _) in merged.items()} | config.flat()
            values = ", ".join(f"{key} = {shown(flat[key])}" for key in keys)
            messages.append(f"{' and '.join(places) or 'defaults'}: {values}: {constraint}")
    return config, messages


def _options_of_no_single_class(merged: Mapping[str, Any], config: Config) -> Iterator[BrokenConstraint]:
    """Options of callbacks or loggers that are written as keys, although the list does not name exactly one class."""
    for slot in EXTENSIONS:
        options = [key for key in merged if key.startswith(f"{slot}.") and is_known_key(key)]
        if options and len(config.trainer.extensions[slot]) != 1:
            remedy = "write the options of several classes in the list, such as [{my.Stop: {step: 5}}, my.Log]"
            yield (slot, *options), f"{slot} must name exactly one class, of which these are options; {remedy}"


def type_errors(level: Level) -> list[str]:
    """The mistakes of single keys: an unknown name, or a value of a wrong type. Constraints are not checked."""
    return list(_read_by_type(merge([level]))[1].values())


def _read_by_type(merged: Mapping[str, tuple[Any, str]]) -> tuple[Config, dict[str, str]]:
    """Return the config of all keys that can be read, and an error message for each of the others."""
    wrong = {}
    for key, (value, place) in merged.items():
        if not is_known_key(key):
            wrong[key] = f"{place}: {key} = {shown(value)}: {unknown_key(key)}"
    while True:
        right = {key: v for key, v in merged.items() if not wrong.keys() & {key, key.rpartition(".")[0]}}
        try:
            return Config.model_validate(_nest(right)), wrong
        except ValidationError as error:
            for mistake in error.errors():
                key = ".".join(str(name) for name in mistake["loc"][:2])
                value, place = merged[key]
                example = f", such as {KEYS[key]}" if key in (*COMPONENTS, "data.task") else ""
                wrong[key] = f"{place}: {key} = {shown(value)}: {constraint_of(mistake)}{example}"


def _nest(merged: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """Turn dotted keys into the nested dictionaries that pydantic reads."""
    nested: dict[str, Any] = {}
    for key, (value, _) in merged.items():
        section, _, name = key.partition(".")
        name, _, option = name.partition(".")
        if not name:
            nested[section] = value
        elif (slot := f"{section}.{name}") in WITH_OPTIONS:
            component = nested.setdefault(section, {}).setdefault(name, {"path": KEYS[slot], "options": {}})
            if option:
                component["options"][option] = plain_value(value)
            else:
                component["path"] = value
        else:
            nested.setdefault(section, {})[name] = value
    return nested


def scale_names() -> list[str]:
    """The scales that ship."""
    return sorted(path.stem for path in SCALES.glob("*.yaml"))


def scale_choices() -> str:
    """What an option for a scale takes, in words."""
    return f"{', '.join(scale_names())} or your own YAML"


def scale_level(scale: str) -> Level:
    """The keys of a scale, by its name or by the path of a user's YAML file."""
    values = _read_scale(scale)
    values.pop(MEASURED, None)
    if "seed" in values:
        raise InputError(f"scale {scale}: seed = {shown(values['seed'])}: is not the scale's; give --seed or --seeds")
    return Level(f"scale {scale}", values)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class Spread(Section):
    """The law of how the rows of a table spread from seed to seed (table/moderation.py)."""

    spread: Positive  # a standard deviation
    freedom: Positive  # degrees of freedom: how much alike rows are


class Measured(Section):
    """What is known of the rows of a scale before anything has been trained here."""

    priors: dict[str, Spread] = {}  # by measure, such as bleu or loss
    seconds: Annotated[tuple[Positive, ...], BeforeValidator(_listed)] = ()  # a training of base, on each processor
    processor: str = "the one that the scale was measured on"  # the processors on which it takes so long


def scale_measured(scale: str) -> Measured:
    """What a scale's file states as `measured`. Raises an InputError for what cannot be."""
    try:
        return Measured.model_validate(_read_scale(scale).get(MEASURED) or {})
    except ValidationError as error:
        places = ((".".join(map(str, (MEASURED, *mistake["loc"]))), mistake) for mistake in error.errors())
        raise InputError(*(f"scale {scale}: {place}: {constraint_of(mistake)}" for place, mistake in places)) from None


def _read_scale(scale: str) -> dict[str, Any]:
    names = scale_names()
    if scale not in names and not scale.endswith((".yaml", ".yml")):
        raise InputError(f"scale = {shown(scale)}: no such scale; known: {', '.join(names)}, or a file such as my.yaml")
    path = SCALES / f"{scale}.yaml" if scale in names else Path(scale)
    return {str(key): value for key, value in read_yaml(path).items()}


def parse_variant(variant: str, place: str) -> Level:
    """Read a variant: `base`, or `key=value` pairs separated by blanks."""
    words = [] if variant.strip() == "base" else variant.split() or [""]
    return read_pairs(words, f"{place} variant {shown(repr(variant))}")


def read_pairs(words: Iterable[str], place: str) -> Level:
    """Read words such as `model.h=4`, each split at its first `=`."""
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in values:
            raise InputError(f"{place}: {shown(repr(word))}: must be key=value, such as model.h=4, and each key once")
        values[key] = value
    return Level(place, values)
