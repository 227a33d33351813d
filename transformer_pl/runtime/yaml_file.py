"""YAML files, read strictly."""

from pathlib import Path
from typing import Any

import yaml

from transformer_pl.runtime.errors import InputError, shown

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
                    problem = f"key {shown(key)!r} is set twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key)
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. An InputError names the file, and the line where it is known."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a YAML file") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: {error.problem}; correct the YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, the date 2026-13-01
        raise InputError(f"{path}: is not YAML: {str(error).splitlines()[0]}; correct it") from None
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{path}: must hold keys and values, but is {kind}")
    return content
