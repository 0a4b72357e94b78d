"""YAML that was built from data and is read back before anyone gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from profiles.text import parse_source
from tasks.publish.serving_recipe import Recipe


class _Plain(yaml.SafeDumper):
    """Lists of short words on one line would hide a flag; no anchors, because people edit these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_text(*documents: Mapping[str, Any]) -> str:
    """The documents as YAML.

    Raises:
        ValueError: What was written does not read back as it was; a fault of ours.
    """
    texts = [
        yaml.dump(dict(document), Dumper=_Plain, sort_keys=False, width=100_000, allow_unicode=True)
        for document in documents
    ]
    for text, document in zip(texts, documents, strict=True):
        if parse_source(text, "rendered").values != json.loads(json.dumps(document)):
            raise ValueError("the rendered YAML does not read back as what it was made from")
    return "---\n".join(texts)


def header(recipe: Recipe, rendering: str, lines: tuple[str, ...]) -> str:
    """The comment in front of a rendered file."""
    first = f"Written by `retrain-dspark serve {recipe.source} --render {rendering}`."
    return "".join(f"# {line}".rstrip() + "\n" for line in (first, *lines, *recipe.notes))
