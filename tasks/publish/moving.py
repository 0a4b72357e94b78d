"""Moves the champion to a version that is there already: back, or to one that a person chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import PublishError, UsageError
from tasks.publish.records import Move, moves, note_move, now, read_record, target_changes
from tasks.publish.verify import verify_folder
from tasks.publish.versions import CHAMPION, PREVIOUS, move_back, promote, read_pointer, versions

HubBack = Callable[[str, str], str]
"""Takes `leaving` and `to`, lets the hub serve `to`, and says what it did. Done again it changes nothing."""


@dataclass(frozen=True)
class Moved:
    """What a move did."""

    name: str
    left: str | None
    to: str
    location: Path
    remarks: tuple[str, ...] = ()
    fault: str = ""
    """What the hub did not do; everything else is done."""


def promote_version(place: Path, version: str, by: str, why: str, hub: HubBack | None) -> Moved:
    """Let the champion be a version by a person's word.

    Args:
        hub: None where the versions are on no hub.

    Raises:
        UsageError: There is no such version.
        PublishError: Its folder is damaged.
    """
    _known(place, version)
    verify_folder(place / version)
    champion = read_pointer(place, CHAMPION)
    remarks, fault = list(_warnings(place, champion, version)), ""
    if champion != version:
        if hub is not None and champion is not None:
            fault = _followed(hub, champion, version, remarks)
        note_move(place, Move(move="promote", left=champion, to=version, at=now(), by=by, why=why))
        promote(place, version)
    return Moved(place.name, champion, version, place / version, tuple(remarks), fault)


def roll_back(place: Path, to: str | None, by: str, why: str, hub: HubBack | None) -> Moved:
    """Let the champion be the one before, or `to`. With the champion as `to` the rest is done once more.

    The hub goes first, since it may fail and is harmless when done twice; a hub that does not answer keeps
    nobody from the local champion.

    Args:
        hub: None where the versions are on no hub.

    Raises:
        UsageError: There is nothing to go back to.
        PublishError: The version to go back to is damaged.
    """
    champion = read_pointer(place, CHAMPION)
    wanted = to or _previous(place, champion)
    _known(place, wanted)
    _undamaged(place, wanted)
    left = _left(place, champion, wanted)
    remarks, fault = list(_warnings(place, left, wanted)), ""
    if hub is not None and left is not None:
        fault = _followed(hub, left, wanted, remarks)
    if champion != wanted:
        note_move(place, Move(move="rollback", left=champion, to=wanted, at=now(), by=by, why=why))
    move_back(place, wanted)
    return Moved(place.name, left, wanted, place / wanted, tuple(remarks), fault)


def _followed(hub: HubBack, left: str, wanted: str, remarks: list[str]) -> str:
    """Let the hub serve `wanted` and add what it did to the remarks; returns what it did not do."""
    try:
        remarks.append(hub(left, wanted))
    except PublishError as error:
        return "; ".join(text for text in (error.what, error.hint) if text)
    return ""


def _previous(place: Path, champion: str | None) -> str:
    """The version that the pointer `previous` names."""
    if champion is None:
        raise UsageError(
            f"no version of {place.name} is champion, so there is nothing to roll back",
            where=str(place),
            hint="versions: " + (", ".join(versions(place)) or "none was published yet"),
        )
    previous = read_pointer(place, PREVIOUS)
    if previous is not None and previous != champion:
        return previous
    last = next((move for move in reversed(moves(place)) if move.to == champion), None)
    came = f"; it is champion since the {last.move} of {last.at[:16]}" if last else ""
    raise UsageError(
        f"there is no champion before {champion} to roll back to{came}",
        where=str(place / PREVIOUS),
        hint=f"name a version: retrain-dspark rollback {place.name} --to VERSION "
        f"(there are {', '.join(versions(place))})",
    )


def _known(place: Path, version: str) -> None:
    known = versions(place)
    if version not in known:
        raise UsageError(
            f"{place.name} has no version {version}",
            where=str(place),
            hint="versions: " + (", ".join(known) or "none was published yet"),
        )


def _undamaged(place: Path, version: str) -> None:
    try:
        verify_folder(place / version)
    except PublishError as error:
        others = [one for one in versions(place) if one != version]
        raise PublishError(
            f"{version} cannot be served: {error.what}",
            where=error.where,
            hint="copy its folder again from where it came, or name another version with --to: "
            + (", ".join(others) or "there is no other"),
        ) from None


def _left(place: Path, champion: str | None, wanted: str) -> str | None:
    """The version that is left; where the pointer moved already, the one that the last move left."""
    if champion != wanted:
        return champion
    last = next((move for move in reversed(moves(place)) if move.to == wanted), None)
    return last.left if last else None


def _warnings(place: Path, left: str | None, to: str) -> tuple[str, ...]:
    """Whether the version was made for another target than the one that it follows."""
    old = read_record(place, to)
    new = read_record(place, left) if left else None
    changes = target_changes(old.target if old else None, new.target) if new else ()
    if not changes:
        return ()
    return (f"{to} is unverified on the target of {left}: {'; '.join(changes)}",)
