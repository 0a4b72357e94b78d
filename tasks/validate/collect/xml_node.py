"""Elements of the XML that `nvidia-smi` prints, read by path."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.unobserved import not_offered, refused


class XmlNode:
    """One element: its leaves by path, aliases in order, *not observed* recorded under the fact's path."""

    def __init__(
        self, element: ET.Element, found: Findings, prefix: str, optional: frozenset[str] = frozenset()
    ):
        """`optional`: facts that some drivers do not list; their absence says *not supported*."""
        self._optional = optional
        self._element = element
        self._found = found
        self._prefix = prefix

    def element(self, path: str) -> ET.Element | None:
        """The element at `a/b`, whatever the case and underscores of its tags."""
        here: ET.Element | None = self._element
        for tag in path.split("/"):
            children = here if here is not None else ()
            here = next((child for child in children if _bare(child.tag) == _bare(tag)), None)
        return here

    def word(self, fact: str, *paths: str) -> str | None:
        """Text of the first path that is there, or None if it stands for *not observed*."""
        word = self._text(*paths)
        where = f"{self._prefix}.{fact}" if self._prefix else fact
        if refused(word):
            self._found.errors[where] = f"nvidia-smi: {word.strip('[]')}"
        elif not_offered(word) or (not word and fact in self._optional):
            self._found.not_supported.append(where)
        return None if not word or refused(word) or not_offered(word) else word

    def unsupported(self, fact: str) -> None:
        self._found.not_supported.append(f"{self._prefix}.{fact}" if self._prefix else fact)

    def silent(self, *paths: str) -> str | None:
        """The same without a record."""
        word = self._text(*paths)
        return None if not word or refused(word) or not_offered(word) else word

    def _text(self, *paths: str) -> str:
        element = next((one for path in paths if (one := self.element(path)) is not None), None)
        return (element.text or "").strip() if element is not None else ""

    def number(self, fact: str, *paths: str) -> int | None:
        """The number in front of a unit: `284208 MiB`, `16x`."""
        value = self.decimal(fact, *paths)
        return None if value is None else int(value)

    def decimal(self, fact: str, *paths: str) -> float | None:
        word = self.word(fact, *paths)
        match = re.match(r"-?\d+(?:\.\d+)?", word or "")
        return float(match.group()) if match else None

    def flag(self, fact: str, *paths: str) -> bool | None:
        """Enabled, Yes, Active, True; another word that is there is False."""
        word = self.word(fact, *paths)
        return None if word is None else word.lower() in ("enabled", "yes", "active", "true", "pending")


def _bare(tag: str) -> str:
    return tag.replace("_", "").lower()
