"""YAML in which a key has one value."""

from collections.abc import Hashable
from typing import Any, TextIO

import yaml
from yaml.constructor import ConstructorError


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that occurs twice, of which PyYAML keeps the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key, _ in node.value:  # before the keys of << are merged, which others may override
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise ConstructorError(
                        problem=f"the key {key.value!r} occurs twice", problem_mark=key.start_mark
                    )
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(text: str | TextIO) -> Any:
    """Return the values of YAML.

    Raises:
        yaml.YAMLError: no YAML; a key that occurs twice in a mapping, with its line.
    """
    return yaml.load(text, _Loader)
