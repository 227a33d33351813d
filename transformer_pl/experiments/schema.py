"""JSON schemas of a sweep file and of a scale file, so that editors complete and check them.

Generated from the config's types and from the lists that the readers of these files use. A schema sees one key at a
time: `python -m transformer_pl.sweep FILE --plan` checks constraints between keys, and components' own options.
"""

import json
from typing import Any

from transformer_pl.config import SLOTS
from transformer_pl.config_help import key_schemas
from transformer_pl.experiments.sweep_file import SEARCHES, TOP_LEVEL

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OPTION = rf"^model\.({'|'.join(SLOTS)})\.[A-Za-z_]\w*$"  # keys of components' options
PLAIN: Schema = {"type": ["string", "number", "boolean", "null"]}
NUMBER_AS_TEXT: Schema = {"type": "string", "pattern": r"^[-+]?[0-9.]+([eE][-+]?[0-9]+)?(/[0-9]+)?$"}
NONE_AS_TEXT: Schema = {"enum": ["None", "null"]}
METRIC = "^(val/.+|params|flops)$"  # the scores are those of the task


def schema_text(kind: str) -> str:
    """The schema of a `sweep` or a `scale` file, as JSON."""
    return json.dumps(sweep_schema() if kind == "sweep" else scale_schema(), indent=2, ensure_ascii=False)


def scale_schema() -> Schema:
    """The schema of a scale: dotted keys, each with a value of its type. A seed is not a scale's."""
    return {
        "$schema": DIALECT,
        "title": "transformer_pl scale",
        "type": "object",
        "minProperties": 1,
        "properties": {key: _value(schema) for key, schema in key_schemas().items() if key != "seed"},
        "patternProperties": {OPTION: PLAIN},
        "additionalProperties": False,
    }


def sweep_schema() -> Schema:
    """The schema of a sweep file: W&B's closed top level; a grid, or a search with its ranges."""
    return {
        "$schema": DIALECT,
        "title": "transformer_pl sweep",
        "type": "object",
        "required": ["method", "parameters"],
        "properties": {key: {} for key in TOP_LEVEL}
        | {
            "name": {"type": "string", "description": "of the table's folder, and of the sweep at W&B"},
            "project": {"type": "string", "description": "W&B's project"},
            "method": {"enum": ["grid", *SEARCHES], "description": "grid: every combination; else a search by Optuna"},
        },
        "additionalProperties": False,
        "if": {"properties": {"method": {"const": "grid"}}, "required": ["method"]},
        "then": {"properties": {"parameters": _parameters(ranges=False)}},
        "else": _search_schema(),
    }


def _search_schema() -> Schema:
    """What a search has beside a grid: goals, a number of trials, ranges."""
    metric = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "pattern": METRIC}, "goal": {"enum": ["minimize", "maximize"]}},
    }
    return {
        "required": ["run_cap"],
        "anyOf": [{"required": ["metric"]}, {"required": ["metrics"]}],
        "properties": {
            "metric": metric,
            "metrics": {"type": "array", "items": metric, "minItems": 1},
            "run_cap": {"type": "integer", "minimum": 1, "description": "number of trials"},
            "early_terminate": {"type": "object", "properties": {"type": {"const": "hyperband"}}, "required": ["type"]},
            "scheduler": {"type": "object", "properties": {"engine": {"const": "optuna"}}, "required": ["engine"]},
            "parameters": _parameters(ranges=True),
        },
    }


def _parameters(ranges: bool) -> Schema:
    """The parameters of a sweep: the config's keys, their scale, and the variants of the table's rows."""
    values = {key: _value(schema) for key, schema in key_schemas().items()}
    values["scale"] = {"type": "string", "description": "name of a scale, or the path of a scale's YAML file"}
    values["variant"] = {"type": "string", "description": "a row: base, or key=value pairs separated by blanks"}
    return {
        "type": "object",
        "minProperties": 1,
        "properties": {key: _parameter(value, ranges) for key, value in values.items()},
        "patternProperties": {OPTION: _parameter(PLAIN, ranges)},
        "additionalProperties": False,
    }


def _parameter(value: Schema, ranges: bool) -> Schema:
    """One parameter: a value, a list of values, or the range of a search."""
    forms: list[Schema] = [
        {"required": ["value"], "properties": {"value": value}},
        {"required": ["values"], "properties": {"values": {"type": "array", "items": value, "minItems": 1}}},
    ]
    distribution = {"distribution": {"type": "string"}}
    for form in forms:
        form["properties"] |= distribution if ranges else {}
    if ranges:
        limits: Schema = {key: {"type": "number"} for key in ("min", "max", "q")}
        forms.append({"required": ["min", "max"], "properties": limits | distribution})
    described = {key: value[key] for key in ("description", "default") if key in value}
    return described | {"anyOf": [{"type": "object", "additionalProperties": False} | form for form in forms]}


def _value(schema: Schema) -> Schema:
    """A key's value as YAML may spell it: numbers and None may be text, such as 1e-05, which YAML 1.1 reads as text."""
    described = {key: schema[key] for key in ("description", "default") if key in schema}
    forms = schema.get("anyOf") or [{key: value for key, value in schema.items() if key not in described}]
    types = {form.get("type") for form in forms}
    if types & {"integer", "number"}:
        forms = [*forms, NUMBER_AS_TEXT]
    if "null" in types:
        forms = [*forms, NONE_AS_TEXT]
    return described | ({"anyOf": forms} if len(forms) > 1 else forms[0])
