"""YAML files, read strictly."""

from pathlib import Path
from typing import Any

import yaml

from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import read_text

LARGEST_FILE = 1 << 20  # bytes: a sweep of 10,000 rows takes half of it
LARGEST_MAPPING = 10_000  # keys: merges of merges grow without an end
LARGEST_NUMBER = 400  # digits: a float has at most 309
MERGE = "tag:yaml.org,2002:merge"  # the key `<<`, which takes the keys of other mappings


class _StrictLoader(yaml.SafeLoader):
    """A YAML reader that refuses a key set twice, where plain YAML silently takes the last value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key_node, _ in node.value:
            is_plain = isinstance(key_node, yaml.ScalarNode) and key_node.tag != MERGE
            key = self.construct_object(key_node) if is_plain else None
            if isinstance(key, str | int | float | bool):
                if key in seen:
                    raise _mistake(f"key {shown(str(key))!r} is set twice", key_node)
                seen.add(key)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > LARGEST_MAPPING:
            raise _mistake(f"a mapping must have at most {LARGEST_MAPPING:,} keys, with those that << merges", node)


def _mistake(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    if "\0" in text:  # YAML spells it "\\0"
        raise _mistake(
            f"{shown(repr(text))} must be without the character NUL, which no path and no command line can have", node
        )
    return text


def _number(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > LARGEST_NUMBER:
        raise _mistake(f"a number must have at most {LARGEST_NUMBER} digits, but has {len(node.value):,}", node)
    return loader.construct_yaml_int(node)


_StrictLoader.add_constructor("tag:yaml.org,2002:str", _text)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _number)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. An InputError names the file, and the line where it is known."""
    try:
        content = yaml.load(read_text(path, LARGEST_FILE), _StrictLoader)
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
