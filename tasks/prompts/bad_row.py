"""Why rows cannot be used, in words and in kinds that are counted. No text of a row is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "not a JSON object",
    "encoding",
    "damaged file",
    "form",
    "roles",
    "empty",
    "redacted",
    "nothing to train on",
    "id twice",
]


class BadRow(ValueError):
    """Why a row cannot be used."""

    def __init__(self, reason: str, kind: Kind = "form"):
        super().__init__(reason)
        self.kind: Kind = kind


@dataclass(frozen=True)
class Skipped:
    """One row that cannot be used."""

    file: str
    line: int
    reason: str
    kind: str = "form"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"
