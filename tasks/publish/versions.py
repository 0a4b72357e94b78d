"""Versions of a published draft and the pointers to them.

    <published>/<name>/v0001/ v0002/ ...   whole folders, never changed again
    <published>/<name>/champion            text: the version that is served, e.g. `v0002`
    <published>/<name>/previous            text: the champion before it, for rollback

A version appears by one rename, a pointer moves by one rename; the champion moves last.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from profiles.schema import Profile
from tasks.errors import PublishError
from tasks.publish.check_folder import MANIFEST
from tasks.publish.verify import verify_folder
from tasks.stage import sync_path, write_atomic

CHAMPION = "champion"
PREVIOUS = "previous"
_VERSION = re.compile(r"^v(\d{4,})$")
_STAGING = ".staging-"
_LOCK_TIMEOUT_S = 600.0


def draft_root(profile: Profile, root: Path) -> Path:
    """Folder of all versions of the profile's draft.

    Args:
        root: The run root; `published/` under it is the default place.
    """
    folder = profile.publish.folder
    published = Path(folder).expanduser().absolute() if folder else root / "published"
    return published / profile.publish.name


def versions(place: Path) -> list[str]:
    """Published versions, oldest first."""
    if not place.is_dir():
        return []
    found = [(int(m[1]), p.name) for p in place.iterdir() if (m := _VERSION.match(p.name)) and p.is_dir()]
    return [name for _, name in sorted(found)]


def read_pointer(place: Path, name: str) -> str | None:
    """Version that a pointer names, or None where there is no pointer.

    Raises:
        PublishError: The pointer's text is not a version.
    """
    try:
        text = (place / name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    if not _VERSION.match(text):
        raise PublishError(
            f"'{text[:40]}' is not a version", where=str(place / name), hint="write e.g. v0001"
        )
    return text


def find_incumbent(profile: Profile, root: Path) -> tuple[str, Path] | None:
    """The champion's version and folder, verified; None before the first publication.

    Raises:
        PublishError: The pointer is bad, or its folder is not whole.
    """
    place = draft_root(profile, root)
    version = read_pointer(place, CHAMPION)
    if version is None:
        return None
    folder = place / version
    if not folder.is_dir():
        raise PublishError(
            f"the champion {version} is not there",
            where=str(place / CHAMPION),
            hint=f"write another version into that file ({', '.join(versions(place)) or 'none left'}), "
            "or delete it",
        )
    verify_folder(folder)
    return version, folder


def published_by(place: Path, run_id: str, weights: str) -> str | None:
    """Version that this run has already published with these weights: a resumed run publishes once."""
    for version in reversed(versions(place)):
        try:
            manifest = json.loads((place / version / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if manifest.get("run_id") == run_id and manifest.get("files", {}).get("model.safetensors") == weights:
            return version
    return None


def add_version(place: Path, build: Callable[[Path, str], None], above: int = 0) -> str:
    """Build a new version out of sight, verify it, and let it appear under the next free number.

    Args:
        build: Fills an empty folder; its second argument is the version's name.
        above: Highest number that is taken elsewhere, as on a hub.

    Raises:
        PublishError: What was built is not whole, or another publication does not end.
    """
    make_private(place)
    try:
        with FileLock(place / ".lock", timeout=_LOCK_TIMEOUT_S):
            _remove_leftovers(place)
            number = max((int(name[1:]) for name in versions(place)), default=0)
            number = max(number, above) + 1
            version = f"v{number:04d}"
            staging = place / f"{_STAGING}{os.getpid()}"
            staging.mkdir(mode=0o700)
            try:
                build(staging, version)
                verify_folder(staging)
                _sync(staging)
                os.rename(staging, place / version)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            sync_path(place)
            return version
    except Timeout as error:
        raise PublishError("another publication does not end", where=str(place / ".lock")) from error


def promote(place: Path, version: str) -> None:
    """Move `previous` to the champion, then the champion to `version`: the last step."""
    with FileLock(place / ".lock", timeout=_LOCK_TIMEOUT_S):
        current = read_pointer(place, CHAMPION)
        if current == version:
            return
        if current is not None:
            write_atomic(place / PREVIOUS, current + "\n")
        write_atomic(place / CHAMPION, version + "\n")


def move_back(place: Path, version: str) -> None:
    """Move the champion to an earlier version; after that there is no `previous`.

    The champion moves first: a kill in between leaves a `previous` that equals it, and the next call ends it.
    """
    with FileLock(place / ".lock", timeout=_LOCK_TIMEOUT_S):
        if read_pointer(place, CHAMPION) != version:
            write_atomic(place / CHAMPION, version + "\n")
            (place / PREVIOUS).unlink(missing_ok=True)
        elif read_pointer(place, PREVIOUS) == version:
            (place / PREVIOUS).unlink()


def make_private(place: Path) -> None:
    """Make the folder and the parents that are missing, closed to other users."""
    missing = [folder for folder in (place, *place.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def _remove_leftovers(place: Path) -> None:
    """Under the lock, any staging folder belongs to a publication that died."""
    for leftover in place.glob(f"{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Put the files on disk before the rename makes them visible."""
    for path in folder.rglob("*"):
        if path.is_file():
            sync_path(path)
