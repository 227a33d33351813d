"""Every key of the config, described for people: what `python -m transformer_pl.train --help` prints. No torch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_pl.config import KEYS, SLOTS, Config
from transformer_pl.key_types import LARGEST


class KeyDescription(NamedTuple):
    """One key, in words."""

    section: str  # empty for `seed`
    key: str  # dotted
    type: str  # such as "integer from 1", or "auto | cpu | gpu"
    default: str
    description: str


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


def describe_keys() -> list[KeyDescription]:
    """Every key, in the order of the sections."""
    return [
        KeyDescription(
            key.rpartition(".")[0], key, _type_in_words(key, schema), str(KEYS[key]), schema.get("description", "")
        )
        for key, schema in key_schemas().items()
    ]


def help_text() -> str:
    """The sections, each with its keys: type, default and description."""
    lines, section = [], None
    for described in describe_keys():
        if described.section != section:
            section = described.section
            lines += ["", f"{section}: {_first_line(section)}" if section else "without a section:"]
        lines.append(f"  --{described.key}  ({described.type}; default {described.default})")
        lines.append(f"      {described.description}")
    return "\n".join(lines[1:])


def _first_line(section: str) -> str:
    """The first line of a section's docstring."""
    return (type(getattr(Config(), section)).__doc__ or "").partition("\n")[0]


def _type_in_words(key: str, schema: Mapping[str, Any]) -> str:
    if key.rpartition(".")[2] in SLOTS:
        return "import path"
    if "anyOf" in schema:
        return " or ".join(_type_in_words(key, choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(schema["enum"])
    limits = (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
    words = [f"{word} {schema[limit]}" for limit, word in limits if schema.get(limit, LARGEST) != LARGEST]
    name = {"string": "text", "null": "None"}.get(schema["type"], schema["type"])
    return " ".join([name, *words])
