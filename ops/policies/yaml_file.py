"""YAML files that people write: plain values only, and no key twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ConfigurationError


def read(path: Path, what: str, hint: str) -> str:
    """The text of a file.  ``what`` names it in the error when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error}", hint=hint) from error


def parse(text: str, name: str) -> Any:
    """The parsed text.  ``name`` is the file's name for messages."""
    try:
        # It is a SafeLoader, which makes plain values only.
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line = f" in line {place.line + 1}" if place else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ConfigurationError(f"{name}{line}: {problem}") from error


class _Loader(yaml.SafeLoader):
    """YAML in which a repeated key is an error.  By default the last one would silently win."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key is no text", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
            )
        seen.add(key.value)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
