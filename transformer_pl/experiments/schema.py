"""JSON schemas of a sweep file and of a scale file, by pydantic, so that editors complete and check them.

A schema sees one key at a time: `python -m transformer_pl.sweep FILE --plan` checks constraints between keys.
"""

import json
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from transformer_pl.config import KEYS, SLOTS, Config
from transformer_pl.config_help import key_schemas
from transformer_pl.experiments.sweep_file import TOP_LEVEL
from transformer_pl.key_types import ClassPath

T = TypeVar("T")
OPTION = rf"^model\.({'|'.join(SLOTS)})\.[A-Za-z_]\w*$"  # keys of components' options
CLOSED = ConfigDict(extra="forbid")
KEYED = ConfigDict(extra="forbid", json_schema_extra={"patternProperties": {OPTION: {}}})
AS_TEXT = Annotated[str, Field(pattern=r"^(None|null|[-+]?[0-9.]+([eE][-+]?[0-9]+)?(/[0-9]+)?)$")]  # 1e-05 in YAML 1.1


class Parameter(BaseModel, Generic[T]):
    """A parameter of a sweep: its value, the values of a grid, or the range of a search."""

    model_config = CLOSED
    value: T | None = None
    values: Annotated[list[T], Field(min_length=1)] | None = None
    min: float | None = None
    max: float | None = None
    q: float | None = None
    distribution: str | None = None


def schema_text(kind: str) -> str:
    """The schema of a `sweep` or a `scale` file, as JSON."""
    model = _sweep_model() if kind == "sweep" else create_model("Scale", __config__=KEYED, **_fields(_types()))
    return json.dumps(model.model_json_schema(), indent=2, ensure_ascii=False)


def _sweep_model() -> type[BaseModel]:
    types = _types() | {"scale": str, "variant": str, "seed": int}
    entries = {key: Parameter[kind] for key, kind in types.items()}  # type: ignore[valid-type]
    parameters = create_model("Parameters", __config__=KEYED, **_fields(entries))
    known = dict.fromkeys(TOP_LEVEL, Any) | {"name": str, "project": str, "run_cap": Annotated[int, Field(ge=1)]}
    required = {"method": (Literal["grid", "random", "bayes", "custom"], ...), "parameters": (parameters, ...)}
    return create_model("Sweep", __config__=CLOSED, **_fields(known) | required)


def _types() -> dict[str, Any]:
    """The type of every key but the seed. Numbers and None may be text."""
    types: dict[str, Any] = {}
    for key, schema in key_schemas().items():
        section, _, name = key.partition(".")
        if name:
            field = Config.model_fields[section].annotation.model_fields[name]  # type: ignore[union-attr]
            kind = ClassPath if name in SLOTS else Annotated[field.annotation, *field.metadata, Field()]
            forms = {form.get("type") for form in schema.get("anyOf", [schema])}
            types[key] = kind | AS_TEXT if forms & {"integer", "number"} else kind
    return types


def _fields(types: dict[str, Any]) -> dict[str, Any]:
    """Optional fields of a model by their dotted keys, which are no names of Python."""
    described = key_schemas()
    return {
        key.replace(".", "_"): (
            kind,
            Field(KEYS.get(key), alias=key, description=described.get(key, {}).get("description")),
        )
        for key, kind in types.items()
    }
