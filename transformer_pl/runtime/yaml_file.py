"""YAML files, read strictly."""

from pathlib import Path
from typing import Any

import yaml

from transformer_pl.runtime.errors import InputError


class _StrictLoader(yaml.SafeLoader):
    """A YAML reader that refuses a key set twice, where plain YAML silently takes the last value."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if isinstance(key, str | int | float | bool):
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is set twice", key_node.start_mark)
            seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


def _text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    if "\0" in text:  # YAML spells it "\\0"
        problem = f"{text!r} must be without the character NUL, which no path and no command line can have"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return text


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, _text)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. An InputError names the file, and the line where it is known."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a YAML file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be UTF-8, but byte {error.start} is not; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: {error.problem}; correct the YAML") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply for a sweep or a scale; correct the YAML") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as the date 2026-13-01
        raise InputError(f"{path}: is not YAML: {str(error).splitlines()[0]}; correct it") from None
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{path}: must hold keys and values, but is {kind}")
    return content
