"""May the Python code that comes with a target run? Only that of the revision that the profile pins.

`target.trust_remote_code` says that the target needs its code, `target.allow_code` which code was read. What
a folder holds is found from its files: the commit that a download recorded counts only while each file is
still the one of that commit; a folder without such a record is known by the digest of its code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiles.schema import Target
from tasks.errors import UsageError
from tasks.stage import canonical, sha256_file, sha256_text

_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})$")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NOTES = (".cache", ".git")
_RECORDS = Path(".cache/huggingface/download")
_OTHER_REPOSITORY = "--"
"""In `auto_map`, what stands between another repository and the name of a class."""


def require_allowed_code(target: Target, folder: Path) -> None:
    """Refuse code in the target's folder that nobody has allowed to run.

    Without `target.trust_remote_code` nothing runs; without code in the folder there is nothing to run.

    Raises:
        UsageError: Code is there, and `target.allow_code` is empty or names other code; or the target takes
            code from another repository, which no revision of this one pins.
    """
    if not target.trust_remote_code:
        return
    foreign = _foreign_code(folder)
    if foreign:
        raise UsageError(
            f"the target takes code from another repository ({foreign}), which its own revision does not pin",
            where=f"target.model: {folder}",
            hint="put that code into the target's folder and name it in auto_map without a repository",
        )
    files = code_files(folder)
    if not files:
        return
    found = {
        identity for identity in (recorded_commit(folder, files), code_digest(folder, files)) if identity
    }
    if target.allow_code in found:
        return
    names = ", ".join(path.relative_to(folder).as_posix() for path in files[:4])
    asked = (
        f"target.allow_code lets {target.allow_code} run"
        if target.allow_code
        else "target.allow_code does not say that it may run"
    )
    raise UsageError(
        f"the target brings code of its own ({names}), which is {' or '.join(sorted(found))}, and {asked}",
        where="target.allow_code",
        hint="read that code, then set target.allow_code to what it is; or take the revision that you read",
    )


def code_files(folder: Path) -> list[Path]:
    """Python files of the folder, sorted; not those of tools that keep notes in it."""
    return sorted(path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in _NOTES)


def code_digest(folder: Path, files: Sequence[Path]) -> str:
    """`sha256:` and the digest of names and contents: the identity of code that records no commit."""
    contents = {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}
    return f"sha256:{sha256_text(canonical(contents))}"


def recorded_commit(folder: Path, files: Sequence[Path]) -> str | None:
    """The commit whose code this is; None where nothing says so, or a file is not that commit's any more.

    A hub's cache names the commit in its path and the content in the name of the file linked to; a download
    into a folder keeps both beside it.
    """
    snapshot = _SNAPSHOT.search(folder.resolve().as_posix())
    if snapshot is not None:
        whole = all(path.resolve().name == _git_blob(path) for path in files)
        return snapshot[1] if whole else None
    commits = {_record(folder, path) for path in files}
    return commits.pop() if len(commits) == 1 else None


def _record(folder: Path, path: Path) -> str | None:
    """Commit that a download noted for a file, if the file is still the one that was downloaded."""
    name = path.relative_to(folder).as_posix()
    try:
        lines = (folder / _RECORDS / f"{name}.metadata").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    if len(lines) < 2 or not _COMMIT.fullmatch(lines[0]) or lines[1] != _git_blob(path):
        return None
    return lines[0]


def _git_blob(path: Path) -> str:
    """Git's name of a file's content, which hubs use for files that are not large."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _foreign_code(folder: Path) -> str:
    """First class that a configuration takes from another repository; empty if none does."""
    for path in sorted(folder.glob("*.json")):
        try:
            auto_map = json.loads(path.read_text(encoding="utf-8")).get("auto_map")
        except (OSError, ValueError, AttributeError):
            continue
        for name in _names(auto_map):
            if _OTHER_REPOSITORY in name:
                return f"{path.name}: {name}"
    return ""


def _names(value: Any) -> list[str]:
    """Every text inside `auto_map`, which holds texts and lists of them."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for one in inner for name in _names(one)]
