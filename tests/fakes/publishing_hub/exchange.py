"""A request as it came in, and an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accounts
from repositories import Repository


@dataclass
class Request:
    """A request whose body has come in."""

    root: Path
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Any
    body: bytes
    stale: bool = False

    @property
    def account(self) -> dict[str, Any] | None:
        return accounts.account(self.root, self.headers.get("Authorization") or "")

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def repository(self, name: str, *, write: bool = False) -> Repository:
        """The repository, if the account may use it."""
        found = Repository(self.root, name)
        accounts.check(self.account, found, write=write)
        found.stale = self.stale
        return found


@dataclass
class Answer:
    status: int
    content: bytes
    headers: dict[str, str]


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})
