"""The keys of the config described: for people, as `python -m transformer_pl.train --help` prints them, and as JSON
schemas of a sweep file and of a scale file, by pydantic, so that editors complete and check them.

A schema sees one key at a time: `python -m transformer_pl.sweep FILE --plan` checks constraints between keys.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from transformer_pl.config import KEYS, SLOTS, Config
from transformer_pl.experiments.sweep_file import SEARCHES, TOP_LEVEL
from transformer_pl.key_types import LARGEST

OPTION = rf"^model\.({'|'.join(SLOTS)})\.[A-Za-z_]\w*$"  # keys of components' options
AS_TEXT = {"type": "string", "pattern": r"^(None|null|[-+]?[0-9.]+([eE][-+]?[0-9]+)?(/[0-9]+)?)$"}  # 1e-05 in YAML 1.1
TEXT = {"type": "string"}


@cache
def key_schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of every dotted key, from the declared types; a component is the text of its import path."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    schemas = {}
    for key in KEYS:
        section, _, name = key.rpartition(".")
        properties = definitions[section.capitalize()]["properties"] if section else schema["properties"]
        key_schema = {field: value for field, value in properties[name].items() if field not in ("title", "$ref")}
        if name in SLOTS:
            key_schema |= {"type": "string", "pattern": definitions["Component"]["properties"]["path"]["pattern"]}
        schemas[key] = key_schema | {"default": KEYS[key]}
    return schemas


def help_text() -> str:
    """The sections, each with its keys: type, default and description."""
    lines, section = [], None
    for key, schema in key_schemas().items():
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            about = (type(getattr(Config(), section)).__doc__ or "").partition("\n")[0] if section else ""
            lines += ["", f"{section}: {about}" if section else "without a section:"]
        lines.append(f"  --{key}  ({type_in_words(key, schema)}; default {KEYS[key]})")
        lines.append(f"      {schema.get('description', '')}")
    return "\n".join(lines[1:])


def type_in_words(key: str, schema: Mapping[str, Any]) -> str:
    """The type of a key by its JSON schema: `integer from 1`, or `auto | cpu | gpu`."""
    if key.rpartition(".")[2] in SLOTS:
        return "import path"
    if "anyOf" in schema:
        return " or ".join(type_in_words(key, choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(schema["enum"])
    limits = (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
    words = [f"{word} {schema[limit]}" for limit, word in limits if schema.get(limit, LARGEST) != LARGEST]
    name = {"string": "text", "null": "None"}.get(schema["type"], schema["type"])
    return " ".join([name, *words])


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
