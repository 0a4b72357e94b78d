"""Reads YAML and JSON text with the line of every field, and refuses duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Source:
    """Values as written, and `file:line` of each dotted field; `place` is the file, if they are of one."""

    name: str
    values: dict[str, Any]
    lines: Mapping[str, str]
    place: str = ""


class DuplicateKey(Exception):
    """A key that stands twice in one mapping; lines count from 1."""

    def __init__(self, key: str, first_line: int, line: int) -> None:
        super().__init__(key)
        self.key = key
        self.first_line = first_line
        self.line = line


class NotAMapping(Exception):
    """The text is empty, or its top level is not a mapping."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `3e-3` is a number, as it is in JSON and in YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_source(text: str, name: str) -> Source:
    """Parse YAML (JSON is read as YAML).

    Args:
        name: What `lines` calls the file.

    Raises:
        DuplicateKey: With both lines.
        NotAMapping: Empty, or not a mapping.
        yaml.YAMLError: Neither YAML nor JSON.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise NotAMapping(name)
        lines: dict[str, str] = {}
        _walk(node, "", name, lines)
        return Source(name, loader.construct_document(node), lines)
    finally:
        loader.dispose()


def _walk(node: yaml.Node, prefix: str, name: str, lines: dict[str, str]) -> None:
    """Note the line of each field below `node` and refuse a key that stands twice."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _walk(item, f"{prefix}[].", name, {})
        return
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            raise DuplicateKey(f"{prefix}{key}", seen[key], line)
        seen[key] = line
        lines[f"{prefix}{key}"] = f"{name}:{line}"
        _walk(value_node, f"{prefix}{key}.", name, lines)
