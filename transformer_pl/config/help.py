"""The keys of the config described: the JSON schema of each, and the help of `python -m transformer_pl.train`."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from transformer_pl.config import COMPONENTS, KEYS, Config
from transformer_pl.config.types import LARGEST


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
        if key in COMPONENTS:
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
    if key in COMPONENTS:
        return "import path"
    if "anyOf" in schema:
        return " or ".join(type_in_words(key, choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(schema["enum"])
    limits = (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
    words = [f"{word} {schema[limit]}" for limit, word in limits if schema.get(limit, LARGEST) != LARGEST]
    name = {"string": "text", "null": "None"}.get(schema["type"], schema["type"])
    return " ".join([name, *words])
