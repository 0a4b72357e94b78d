"""Reads prompt files and judges each row; a bad row is skipped with its reason."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UsageError

PACKAGE_PREFIX = "package:"
_ROLES = ("system", "user", "assistant")
_DOMAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
_ROW = '{"domain": "qa", "messages": [{"role": "user", "content": "..."}]} or {"prompt": "..."}'


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Row:
    """One usable row of a prompt file."""

    id: str
    domain: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Skipped:
    """One row that cannot be used."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class BadRow(ValueError):
    """Why a row cannot be used."""


def files_of(source: str, field: str) -> list[Path]:
    """The JSONL files that a profile names: a file, or a folder's `*.jsonl` in order.

    Raises:
        UsageError: There is nothing there.
    """
    if source.startswith(PACKAGE_PREFIX):
        path = Path(str(importlib.resources.files("profiles"))) / source.removeprefix(PACKAGE_PREFIX)
    else:
        path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if files:
            return files
        raise UsageError(
            f"the folder '{source}' has no *.jsonl file",
            where=field,
            hint=f"put JSONL files there, one row a line: {_ROW}",
        )
    if not path.is_file():
        raise UsageError(
            f"there is no prompt file or folder '{source}'",
            where=field,
            hint="give an existing JSONL file or a folder of them; `package:` names those of this project",
        )
    return [path]


def read_rows(path: Path, field: str) -> Iterator[tuple[int, Row | BadRow]]:
    """Line number and row (or the reason against it) of every line that is not blank.

    Raises:
        UsageError: The file cannot be read, is empty, or is not JSONL at all.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompt file '{path}' cannot be read: {error}", where=field) from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UsageError(f"the prompt file '{path}' is empty", where=field, hint=f"one row a line: {_ROW}")
    parsed = [(number, _json(line)) for number, line in numbered]
    if not any(isinstance(value, dict) for _, value in parsed):
        raise UsageError(
            f"the prompt file '{path}' is not JSONL: no line is a JSON object",
            where=field,
            hint=f"one row a line: {_ROW}",
        )
    for number, value in parsed:
        try:
            yield number, row_of(value, path.stem, number)
        except BadRow as reason:
            yield number, reason


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def row_of(value: Any, stem: str, number: int) -> Row:
    """Judge one parsed line.

    Raises:
        BadRow: Why it cannot be used.
    """
    if not isinstance(value, Mapping):
        raise BadRow("not a JSON object")
    domain = value.get("domain", stem)
    if not isinstance(domain, str) or not _DOMAIN.match(domain):
        raise BadRow("its domain is not a word of letters, digits, _ . -")
    identity = value.get("id", f"{stem}-{number}")
    if not isinstance(identity, (str, int)) or not str(identity).strip():
        raise BadRow("its id is not a text")
    return Row(str(identity), domain, _messages(value))


def _messages(value: Mapping[str, Any]) -> tuple[Message, ...]:
    raw = value.get("messages")
    if raw is None and isinstance(value.get("prompt"), str):
        raw = [{"role": "user", "content": value["prompt"]}]
    if not isinstance(raw, list) or not raw:
        raise BadRow("it has neither messages nor a prompt")
    messages = tuple(_message(turn) for turn in raw)
    roles = [message.role for message in messages]
    if "system" in roles[1:]:
        raise BadRow("a system turn is not the first")
    turns = roles[1:] if roles[0] == "system" else roles
    if "user" not in turns:
        raise BadRow("it has no user turn")
    for before, after in itertools.pairwise(turns):
        if before == after:
            raise BadRow(f"two {before} turns follow each other")
    if turns[0] != "user":
        raise BadRow("the conversation begins with an assistant turn")
    if turns[-1] != "user":
        raise BadRow("the last turn is not the user's")
    return messages


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES:
        raise BadRow(f"a turn's role is not one of {', '.join(_ROLES)}")
    content = turn.get("content")
    if not isinstance(content, str):
        raise BadRow(f"a {turn['role']} turn's content is not text")
    if not content.strip():
        raise BadRow(f"a {turn['role']} turn is empty")
    return Message(str(turn["role"]), content)
