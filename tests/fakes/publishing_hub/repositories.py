"""Repositories on disk: blobs, commits and branches, so that they outlive the program.

<root>/blobs/<sha256>                        contents of files, large and small
<root>/repositories/OWNER/NAME/state.json    visibility, commits of every ref (the last one is in force),
                                             pull requests
<root>/repositories/OWNER/NAME/commits/<id>  parent, message, author, date and the whole tree
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MAIN = "refs/heads/main"


class Refused(Exception):
    """An answer with an error status, and the hub's code for it."""

    def __init__(self, status: int, message: str, code: str = "", **more: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.more = status, message, code, more


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def write(path: Path, content: bytes) -> None:
    """Write a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{threading.get_ident()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


class Repository:
    """One repository; all its methods need the hub's lock."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.folder = root / "repositories" / name
        self.stale = False

    @property
    def exists(self) -> bool:
        return (self.folder / "state.json").is_file()

    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / "state.json").read_text(encoding="utf-8"))

    def save(self, state: dict[str, Any]) -> None:
        write(self.folder / "state.json", json.dumps(state, indent=1).encode())

    def create(self, private: bool, author: str) -> None:
        """An empty repository with the commit that every hub makes first."""
        attributes = self.keep(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", lfs=False)
        first = self.write_commit(None, {".gitattributes": attributes}, "initial commit", "", author)
        self.save({"private": private, "refs": {MAIN: [first]}, "pull_requests": []})

    def refs(self, prefix: str) -> dict[str, str]:
        """Name behind the prefix -> commit; a stale reader does not see the last move of a ref."""
        found = {}
        for ref, commits in self.state()["refs"].items():
            seen = commits[:-1] if self.stale else commits
            if ref.startswith(prefix) and seen:
                found[ref.removeprefix(prefix)] = seen[-1]
        return found

    def move(self, ref: str, commit: str) -> None:
        state = self.state()
        state["refs"].setdefault(ref, []).append(commit)
        self.save(state)

    def remove(self, ref: str) -> None:
        state = self.state()
        if state["refs"].pop(ref, None) is None:
            raise Refused(404, "no such ref", "RevisionNotFound")
        self.save(state)

    def resolve(self, revision: str) -> str:
        """Commit of a branch, tag, pull request or commit id."""
        for prefix in ("refs/heads/", "refs/tags/", ""):
            refs = self.refs(prefix)
            if revision in refs:
                return refs[revision]
        newest = {commits[-1] for commits in self.state()["refs"].values()}
        hidden = self.stale and revision in newest
        if (self.folder / "commits" / revision).is_file() and not hidden:
            return revision
        raise Refused(404, f"no revision {revision}", "RevisionNotFound")

    def commit(self, identity: str) -> dict[str, Any]:
        return json.loads((self.folder / "commits" / identity).read_text(encoding="utf-8"))

    def history(self, identity: str | None) -> list[dict[str, Any]]:
        """Commits, newest first."""
        found = []
        while identity is not None:
            commit = self.commit(identity)
            found.append({"id": identity, **commit})
            identity = commit["parent"]
        return found

    def write_commit(
        self, parent: str | None, tree: dict[str, Any], title: str, message: str, author: str
    ) -> str:
        commit = {
            "parent": parent,
            "title": title,
            "message": message,
            "author": author,
            "date": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "tree": dict(sorted(tree.items())),
        }
        content = json.dumps(commit, indent=1).encode()
        identity = hashlib.sha1(content + os.urandom(8)).hexdigest()
        write(self.folder / "commits" / identity, content)
        return identity

    def keep(self, content: bytes, *, lfs: bool) -> dict[str, Any]:
        """Store a content; returns its entry in a tree."""
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.blob(sha256).is_file():
            write(self.blob(sha256), content)
        return {"oid": git_oid(content), "size": len(content), "sha256": sha256, "lfs": lfs}

    def kept(self, sha256: str) -> dict[str, Any]:
        """Entry of a large file that was uploaded."""
        if not self.blob(sha256).is_file():
            raise Refused(400, f"the content of {sha256} was never uploaded")
        return {**self.keep(self.blob(sha256).read_bytes(), lfs=True), "oid": git_oid(sha256.encode())}

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256
