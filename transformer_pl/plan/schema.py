"""JSON schemas of a sweep file and of a scale file, so that editors complete and check them.

A schema sees one key at a time: `python -m transformer_pl.sweep FILE --plan` checks constraints between keys.
"""

import json
import re
from typing import Any

from transformer_pl.config import COMPONENTS
from transformer_pl.config.help import key_schemas
from transformer_pl.plan.sweep_file import SEARCHES, TOP_LEVEL

OPTION = rf"^({'|'.join(map(re.escape, COMPONENTS))})\.[A-Za-z_]\w*$"  # keys of components' options
AS_TEXT = {"type": "string", "pattern": r"^(None|null|[-+]?[0-9.]+([eE][-+]?[0-9]+)?(/[0-9]+)?)$"}  # 1e-05 in YAML 1.1
TEXT = {"type": "string"}


def schema_text(kind: str) -> str:
    """The schema of a `sweep` or a `scale` file, as JSON."""
    keys = {key: _or_text(schema) for key, schema in key_schemas().items() if key != "seed"}
    if kind == "scale":
        return json.dumps(_closed(keys), indent=2, ensure_ascii=False)
    of_rows = keys | {"scale": TEXT, "variant": TEXT, "seed": {"type": "integer"}}
    known = {key: {} for key in TOP_LEVEL} | {
        "name": TEXT,
        "project": TEXT,
        "run_cap": {"type": "integer", "minimum": 1},
        "method": {"enum": ["grid", *SEARCHES]},
        "parameters": _closed({key: _parameter(schema) for key, schema in of_rows.items()}),
    }
    sweep = {"type": "object", "properties": known, "required": ["method", "parameters"], "additionalProperties": False}
    return json.dumps(sweep, indent=2, ensure_ascii=False)


def _or_text(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a key; numbers and None may be text."""
    about = {word: schema[word] for word in ("description", "default") if word in schema}
    forms = schema.get("anyOf", [{word: value for word, value in schema.items() if word not in about}])
    texts = [AS_TEXT] if {form.get("type") for form in forms} & {"integer", "number"} else []
    return about | {"anyOf": [*forms, *texts]}


def _parameter(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter: its value, the values of a grid, or the range of a search."""
    fields: dict[str, Any] = {key: {"type": "number"} for key in ("min", "max", "q")} | {"distribution": TEXT}
    fields |= {"value": schema, "values": {"type": "array", "items": schema, "minItems": 1}}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _closed(keys: dict[str, Any]) -> dict[str, Any]:
    """The schema of a mapping that has these keys, and options of components, alone."""
    return {"type": "object", "properties": keys, "patternProperties": {OPTION: {}}, "additionalProperties": False}
