"""The types of the configuration's keys: limits of values, how text is read, and messages for what does not fit."""

import ast
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from transformer_pl.runtime.errors import shown
from transformer_pl.runtime.files import parse_yaml


def _number(value: object) -> object:
    """Refuse booleans, which pydantic would read as numbers: `model.h: true` is a mistake, not 1 head. 1e3 is 1000."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not a truth value")
    is_power = isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]*)?[eE]\+?[0-9]+", value)
    return float(value) if is_power else value  # type: ignore[arg-type]


def _multiplier(value: object) -> object:
    """Read `1/2` as well as `0.5`."""
    if not isinstance(value, str) or "/" not in value:
        return _number(value)
    try:
        return float(Fraction(value if value.isascii() else ""))  # Fraction reads the digits of every script
    except (ValueError, ArithmeticError):
        raise ValueError("must be a number, or a fraction such as 1/2") from None


CLASS_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
TEXT = r"^[^\x00-\x1f\x7f-\x9f]+$"  # no control characters: paths have no NUL, and an end of line would break tables
PLAIN = r"\w[\w.+-]*"  # becomes a folder below another, so it must not lead out of it
PLAIN_NAME, PLAIN_NAMES = rf"^{PLAIN}$", rf"^{PLAIN}(/{PLAIN})*$"
FURTHER_SET = rf"^(?P<name>{PLAIN})=(?P<folder>[^\x00-\x1f\x7f-\x9f]+?)(:(?P<split>{PLAIN}))?$"
FORMS = {
    FURTHER_SET: "NAME=FOLDER, or NAME=FOLDER:SPLIT, with a name of letters, digits and . _ + -",
    CLASS_PATH: "the import path of a class",
    TEXT: "text without control characters",
    PLAIN_NAME: "a short name of letters, digits and . _ + -",
    PLAIN_NAMES: "a name, or names with / between, of letters, digits and . _ + -",
}


RULES = {  # in place of pydantic's sentences, by the kind of a mistake
    "string_type": "must be text; write it in quotes",
    "model_type": "must hold keys and values",
    "dict_type": "must hold keys and values",
    "extra_forbidden": "is not used here; leave it out",
    "path_type": "must be a path, such as ./words.txt",
    "path_not_file": "must be the path of a file",
    "path_not_directory": "must be the path of a folder",
}


def constraint_of(mistake: Mapping[str, Any]) -> str:
    """What pydantic found broken in a value, as "must ..."."""
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] in FORMS:
        return f"must be {FORMS[context['pattern']]}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "too_short":
        return f"must have at least {context['min_length']}; add what is missing, or leave the key out"
    if kind in RULES:
        return RULES[kind]
    return mistake["msg"].removeprefix("Input ").replace("should", "must").partition(", unable to")[0]


def mistake_in(mistake: Mapping[str, Any]) -> str:
    """What pydantic found broken: the place, its value, and the constraint; the constraint alone for the whole."""
    place = f"{'.'.join(map(str, mistake['loc']))} = {shown(mistake['input'])}: " if mistake["loc"] else ""
    return f"{place}{constraint_of(mistake)}"


LARGEST = 10**9  # of any size or count: no use comes near it, and beyond it numbers overflow
SEEDS = 2**32  # that there are, from 0

NoBool = BeforeValidator(_number)  # after the limits of its type, or the JSON schema loses them
OnOrOff = BeforeValidator(lambda value: {"True": "on", "False": "off"}.get(str(value), value))  # as YAML 1.1 reads them
Count = Annotated[int, Field(ge=1, le=LARGEST), NoBool]
Natural = Annotated[int, Field(ge=0, le=LARGEST), NoBool]
Processes = Annotated[int, Field(ge=1, le=1024), NoBool]
NotMinusZero = AfterValidator(abs)  # of a number from 0: -0.0 would make another trial
Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), NoBool, NotMinusZero]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NoBool]
Multiplier = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), BeforeValidator(_multiplier)]
Text = Annotated[str, Field(pattern=TEXT)]
ClassPath = Annotated[str, Field(pattern=CLASS_PATH)]


class Section(BaseModel):
    """A group of keys: frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _unset(cls, value: object, info: ValidationInfo) -> object:
        """Read `None` and `null`, as W&B's agent and YAML spell it, for a key that may be unset."""
        may_be_unset = cls.model_fields[str(info.field_name)].default is None
        return None if may_be_unset and value in ("None", "null") else value


class Component(Section):
    """What fills a slot, such as `model.ffn`: the import path of a class, and the options for its constructor."""

    path: ClassPath
    options: dict[str, Any] = {}

    def __hash__(self) -> int:
        """Hash the path, as `options` has no hash. Pydantic would copy a default that has none for every config."""
        return hash(self.path)


class Extension(Component):
    """What extends Lightning's Trainer: a logger or, as `Callback`, a callback."""

    @property
    def as_written(self) -> str | dict[str, Any]:
        """The path, or with options `{path: options}`."""
        return {self.path: self.options} if self.options else self.path


class Callback(Extension):
    """A callback of Lightning's Trainer."""

    in_identity: bool = True  # False: it only watches, so the trial is the same without it

    @property
    def as_written(self) -> str | dict[str, Any]:
        return super().as_written if self.in_identity else {self.path: self.options | {"in_identity": False}}


def _entries(value: object) -> list[tuple[str, dict[str, Any]]]:
    """The path and options of each class in a value: `a.B`, `{a.B: {option: 1}}`, a list of these, or text of these.

    In a mapping with the keys `path` and `options`, such a value is the path. If it names a single class, the options
    are added to those of the class. `None` and `null` are read as an empty list.
    """
    beside: dict[str, Any] = {}
    if isinstance(value, dict) and value.keys() == {"path", "options"}:
        beside, value = value["options"], value["path"]
    try:
        read = [] if value in (None, "None", "null") else parse_yaml(value) if isinstance(value, str) else value
        pairs = [*itertools.chain.from_iterable(map(_pairs, read if isinstance(read, list | tuple) else [read]))]
        added = beside if len(pairs) == 1 else {}
        return [
            (path, {str(name): plain_value(option) for name, option in ((options or {}) | added).items()})
            for path, options in pairs
        ]
    except yaml.constructor.ConstructorError as error:
        raise ValueError(f"must be YAML, but {error.problem}") from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError):
        raise ValueError("must be import paths, such as [my_log.Logger, {my_callback.Stop: {patience: 3}}]") from None


def _pairs(entry: Any) -> Iterable[tuple[str, Any]]:
    """The path of each class in an entry, and its options or None."""
    written = entry.as_written if isinstance(entry, Extension) else entry
    return ({written: None} if isinstance(written, str) else written).items()


def _callbacks(value: object) -> tuple[Callback, ...]:
    entries = _entries(value)
    return tuple(Callback(path=path, in_identity=o.pop("in_identity", True), options=o) for path, o in entries)


def _loggers(value: object) -> tuple[Extension, ...]:
    return tuple(Extension(path=path, options=options) for path, options in _entries(value))


Callbacks = Annotated[tuple[Callback, ...], BeforeValidator(_callbacks)]
Loggers = Annotated[tuple[Extension, ...], BeforeValidator(_loggers)]


def _further_sets(value: object) -> object:
    """A list of texts, also as one text. `None` and `null` are read as an empty list."""
    try:
        read = [] if value in (None, "None", "null") else parse_yaml(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        read = None
    written = (read,) if isinstance(read, str) else read
    if not isinstance(written, list | tuple) or not all(isinstance(one, str) for one in written):
        raise ValueError("must be sets, such as [news=FOLDER,2018=FOLDER:test_2018]")
    names = [one.partition("=")[0] for one in written]
    if len({*names, "train", "val", "test"}) < len(names) + 3:
        raise ValueError("must give each set a name of its own, other than train, val and test")
    return tuple(written)


FurtherSets = Annotated[tuple[Annotated[str, Field(pattern=FURTHER_SET)], ...], BeforeValidator(_further_sets)]
SPELLED = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}


def plain_value(value: object) -> object:
    """The value of an option: text that spells a plain value is read, as the values of keys are.

    Plain values are numbers, truth values, None, and lists and mappings of them as JSON or Python writes them. Other
    text stays text. A tuple becomes a list.
    """
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    if isinstance(value, dict):
        return {str(key): plain_value(part) for key, part in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    return _spelled(value) if isinstance(value, str) else value


def _spelled(text: str) -> object:
    """The plain value that a text spells, or the text."""
    if text in SPELLED:
        return SPELLED[text]
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]{,999})", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", text):
        is_id = re.fullmatch("[0-9a-f]{12}", text)  # of a trial, such as 1234567890e1
        return text if is_id or math.isinf(float(text)) else float(text)
    for read in (json.loads, ast.literal_eval) if text.startswith(("[", "(", "{")) else ():
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            found = read(text)
            return plain_value(found) if isinstance(found, list | tuple | dict) else text
    return text


def as_word(value: object) -> str:
    """A value as a word of a command line, which is read as the same value."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | tuple | dict) else str(value)


def multiplied(size: int, multiplier: float) -> int:
    """A size times its multiplier, a whole number in every config that keeps the constraints."""
    return round(exact_product(size, multiplier))


@lru_cache(maxsize=4096)
def exact_product(size: int, multiplier: float) -> Fraction:
    """The exact product. A multiplier that equals a simple fraction to nine digits counts as it: 0.333333333 is 1/3."""
    simple = Fraction(multiplier).limit_denominator(1024)
    return size * (simple if abs(simple - Fraction(multiplier)) < 1e-9 else Fraction(repr(multiplier)))
