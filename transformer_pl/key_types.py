"""The types of the configuration's keys: their limits, how a value that comes as text is read, the messages for what
does not fit."""

import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from transformer_pl.runtime.files import broken_name_rule


def _number(value: object) -> object:
    """Refuse booleans, which pydantic would read as numbers: `model.h: true` is a mistake, not 1 head."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not a truth value")
    return value


def _flag(value: object) -> bool:
    """Read a truth value as YAML, Python and W&B's agent spell it, and no number or other word."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("must be True or False")
    return str(value).lower() == "true"


def _multiplier(value: object) -> object:
    """Read `1/2` as well as `0.5`."""
    if not isinstance(value, str) or "/" not in value:
        return _number(value)
    try:
        return float(Fraction(value if value.isascii() else ""))  # which would read the digits of every script
    except (ValueError, ArithmeticError):
        raise ValueError("must be a number, or a fraction such as 1/2") from None


def _none_from_text(value: object) -> object:
    """Read None as W&B's agent and YAML spell it."""
    return None if value in ("None", "null") else value


def plain_names(form: str, maximum: int | None = None) -> AfterValidator:
    """A validator of plain names separated by `/`. They become paths below a folder, so none may lead out of it.

    form: how the error message describes a right value. maximum: the greatest number of names.
    """

    def check(value: str | None) -> str | None:
        names = value.split("/") if value else []
        if maximum and len(names) > maximum:
            raise ValueError(f"must be {form}")
        for name in names:
            if rule := broken_name_rule(name):
                raise ValueError(f"must be {form}, and {name!r} in it {rule}")
        return value

    return AfterValidator(check)


def _text(value: str) -> str:
    """Refuse control characters, such as NUL, which no path has, and an end of line, which breaks tables."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise ValueError("must be without control characters")
    return value


def constraint_of(mistake: Mapping[str, Any]) -> str:
    """What pydantic found broken in a value, as "must ..."."""
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] == CLASS_PATH:
        return "must be the import path of a class, such as ablations.learned_position.LearnedPosition"
    if kind == "value_error":
        return str(context["error"])
    return mistake["msg"].removeprefix("Input ").replace("should", "must").partition(", unable to parse")[0]


CLASS_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
LARGEST = 10**9  # of any size or count: no use comes near it, and beyond it numbers overflow

NoBool = BeforeValidator(_number)  # after the limits of its type, or the JSON schema loses them
Count = Annotated[int, Field(ge=1, le=LARGEST), NoBool]
Natural = Annotated[int, Field(ge=0, le=LARGEST), NoBool]
Processes = Annotated[int, Field(ge=1, le=1024), NoBool]
Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), NoBool]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NoBool]
Ratio = Annotated[float, Field(ge=1, le=LARGEST, allow_inf_nan=False), NoBool]
Multiplier = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), BeforeValidator(_multiplier)]
Flag = Annotated[bool, BeforeValidator(_flag)]
OrNone = BeforeValidator(_none_from_text)
Name = Annotated[str, Field(min_length=1), AfterValidator(_text)]
ClassPath = Annotated[str, Field(pattern=CLASS_PATH)]
