"""Files by hash: of a version's folder here, and of a commit there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import PublishError
from tasks.publish.check_folder import MANIFEST
from tasks.publish.verify import verify_folder
from tasks.stage import sha256_file

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".safetensors.index.json")
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Blob:
    """A file of a commit. `sha256` is known for large files, which the hub keeps outside of git."""

    oid: str
    size: int
    sha256: str | None = None

    def same(self, other: Blob) -> bool:
        return (self.sha256, self.size) == (other.sha256, other.size) if self.sha256 else self == other


Tree = Mapping[str, Blob]


@dataclass(frozen=True)
class Version:
    """A whole version: its manifest, and all of its files."""

    name: str
    run: str
    manifest: dict[str, Any]
    digest: str
    """SHA-256 of `manifest.json`."""

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.manifest["files"], MANIFEST)

    def sha256(self, path: str) -> str:
        return self.digest if path == MANIFEST else str(self.manifest["files"][path])


def version_of(manifest: bytes) -> Version | None:
    """The version that a `manifest.json` describes; None if it is none of ours."""
    try:
        read = json.loads(manifest)
        name, run = str(read["version"]), str(read["run_id"])
        dict(read["files"]), dict(read["tensors"])
    except (ValueError, KeyError, TypeError):
        return None
    return Version(name, run, read, hashlib.sha256(manifest).hexdigest())


def version_in(folder: Path) -> Version:
    """The version in a folder, every file of it checked.

    Raises:
        PublishError: The folder is not whole.
    """
    verify_folder(folder)
    version = version_of((folder / MANIFEST).read_bytes())
    if version is None:
        raise PublishError(
            "the manifest names no version or no run",
            where=str(folder / MANIFEST),
            hint="publish the draft again",
        )
    return version


def git_oid(path: Path) -> str:
    """The name that git gives to a file's content."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as stream:
        while piece := stream.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def is_content(blob: Blob, content: bytes) -> bool:
    """Whether `content` is what a commit holds."""
    if blob.sha256:
        return hashlib.sha256(content).hexdigest() == blob.sha256
    framed = b"blob %d\0" % len(content) + content
    return hashlib.sha1(framed, usedforsecurity=False).hexdigest() == blob.oid


def differences(tree: Tree, version: Version, folder: Path) -> list[str]:
    """Files of a version that a commit lacks or holds with another content, as sentences."""
    problems = []
    for path in version.files:
        blob = tree.get(path)
        if blob is None:
            problems.append(f"{path} is missing")
        elif (blob.sha256 or blob.oid) != (version.sha256(path) if blob.sha256 else git_oid(folder / path)):
            problems.append(f"{path} has another hash")
    return problems


def changed(before: Tree, after: Tree, paths: set[str]) -> list[str]:
    """Those of `paths` that differ between two commits."""

    def differs(path: str) -> bool:
        old, new = before.get(path), after.get(path)
        return (old is None) != (new is None) or (old is not None and new is not None and not old.same(new))

    return sorted(path for path in paths if differs(path))


def check_download(folder: Path, version: Version) -> None:
    """Compare fetched files with the version, by hash, and check them as a draft.

    Raises:
        PublishError: They are not what was sent.
    """
    verify_folder(folder)
    if sha256_file(folder / MANIFEST) != version.digest:
        raise PublishError(
            f"the hub gave back another {MANIFEST} than was sent",
            where=str(folder),
            hint="run it again; if it stays so, look at the repository's history",
        )
