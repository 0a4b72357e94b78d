"""What is known of each version beside its folder, and every move of the champion.

    <published>/<name>/records/v0001.json   where the version comes from, for which target, who decided what
    <published>/<name>/moves.jsonl          one line for each move of the champion, oldest first

The folder of a version is what others get; this stays here: it names people and this machine's run ids.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.publish.models import Decision
from tasks.stage import write_atomic

RECORDS = "records"
MOVES = "moves.jsonl"


class TargetFacts(BaseModel):
    """The target that a draft was made for and measured on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str
    """Digest of its weights; another quantisation is another one."""
    tokenizer: str = ""
    template: str = ""
    """Digest of the chat template."""
    dtype: str = ""
    engine: str = ""
    """Name and version of the engine's build."""


class VersionRecord(BaseModel):
    """One version: lineage, target, decision."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: str
    run_id: str
    weights: str
    """SHA-256 of `model.safetensors`."""
    captures: str
    """Digest of the data that it was trained and measured on."""
    target: TargetFacts
    decision: Decision
    lineage: dict[str, str]
    """Run, flow run, MLflow run, commit, profile digest."""
    hub: dict[str, str] | None = None
    """`repo`, `revision` and `commit` of the same version on a hub; None if it is on none."""


class Move(BaseModel):
    """One move of the champion."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    move: Literal["promote", "rollback"]
    left: str | None
    to: str
    at: str
    by: str = ""
    why: str = ""
    run_id: str = ""


def now() -> str:
    """This moment, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(place: Path, record: VersionRecord) -> None:
    """Keep a record; one that is there is replaced, so that a resumed publication ends with the same."""
    (place / RECORDS).mkdir(mode=0o700, exist_ok=True)
    write_atomic(place / RECORDS / f"{record.version}.json", record.model_dump_json(indent=2) + "\n")


def read_record(place: Path, version: str) -> VersionRecord | None:
    """The record of a version; None for one that was published without, or whose record is damaged."""
    try:
        text = (place / RECORDS / f"{version}.json").read_text(encoding="utf-8")
        return VersionRecord.model_validate_json(text)
    except (OSError, ValidationError):
        return None


def note_move(place: Path, move: Move) -> None:
    """Append a move, on disk before the pointer follows. The same move noted twice in a row is one."""
    known = moves(place)
    if known and known[-1].model_dump(exclude={"at"}) == move.model_dump(exclude={"at"}):
        return
    path = place / MOVES
    before = path.read_bytes() if path.exists() else b""
    torn = bool(before) and not before.endswith(b"\n")  # by a kill
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(("\n" if torn else "") + move.model_dump_json() + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def moves(place: Path) -> list[Move]:
    """Every move, oldest first; a line that a kill tore is left out."""
    try:
        lines = (place / MOVES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Move.model_validate_json(line))
        except ValidationError:
            continue
    return found


def withdrawn(place: Path, version: str | None) -> str:
    """Why a version was taken back, if nobody has promoted it again since; empty otherwise."""
    last = next(
        (
            move
            for move in reversed(moves(place))
            if version is not None
            and (move.to == version or (move.move == "rollback" and move.left == version))
        ),
        None,
    )
    if last is None or last.to == version:
        return ""
    return f"rolled back to {last.to} on {last.at[:10]}"


def target_changes(old: TargetFacts | None, new: TargetFacts) -> tuple[str, ...]:
    """What makes a draft of `old` unverified on `new`. What `old` does not say is not compared.

    Args:
        old: None where nothing says for which target the draft was made.
    """
    if old is None:
        return ("nothing says for which target it was made",)
    compared = {"weights": "weights", "tokenizer": "tokenizer", "template": "chat template"}
    named = [words for field, words in compared.items() if _differs(old, new, field)]
    shown = [
        f"{words} {getattr(old, field)} -> {getattr(new, field)}"
        for field, words in {"dtype": "type", "engine": "engine"}.items()
        if _differs(old, new, field)
    ]
    return (*(f"other {words}" for words in named), *shown)


def _differs(old: TargetFacts, new: TargetFacts, field: str) -> bool:
    before, after = getattr(old, field), getattr(new, field)
    return bool(before) and bool(after) and before != after


def target_of_folder(folder: Path) -> TargetFacts | None:
    """What a published folder's own manifest says about its target; None if it says nothing."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return TargetFacts(weights=manifest["target"]["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
