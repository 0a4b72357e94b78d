"""The contract of a stage: what it depends on, where it writes, when it is complete, why it runs again.

A stage folder is valid only if its `manifest.json`, written last, exists, its fingerprint equals the
one of this run, and the files that it lists still have their hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from profiles.schema import Profile

Result = TypeVar("Result", bound=BaseModel)

MANIFEST = "manifest.json"
XXH3 = "xxh3-128:"
"""Before the digest of a file that is too large for SHA-256: a captured sample."""


@dataclass(frozen=True)
class Stage(Generic[Result]):
    """One of the six stages.

    Args:
        number: Position in the pipeline, 1 to 6.
        name: The stage word, used for folder, task, MLflow run, artifact key and log prefix.
        version: Raised by hand when the meaning of the stage's output changes; part of the fingerprint.
        sections: Parts of the profile that the output depends on, as dotted paths.
        model: Class of the result.
        mends: It checks what it finds in its folder: a damaged file of a finished one does not empty it.
        indifferent: Fields below `sections`, as dotted paths, that the output does not depend on.
    """

    number: int
    name: str
    version: int
    sections: tuple[str, ...]
    model: type[Result]
    mends: bool = False
    indifferent: tuple[str, ...] = ()

    @property
    def folder_name(self) -> str:
        return f"{self.number:02d}-{self.name}"


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that readers see the old file or the new one, and a crash leaves no half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def sync_path(path: Path) -> None:
    """Put a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def canonical(value: Any) -> str:
    """JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_like(known: str, path: Path) -> str:
    """Digest of a file, of the kind that `known` is."""
    if not known.startswith(XXH3):
        return sha256_file(path)
    from tasks.stream.sample_file import file_digest

    return XXH3 + file_digest(path)


def section_value(profile: Profile, dotted: str, without: Sequence[str] = ()) -> Any:
    """What the profile says at a dotted path, but for the fields `without`, as dotted paths of their own."""
    value: Any = profile.model_dump(mode="json")
    for path in without:
        *outer, name = path.split(".")
        reduce(getitem, outer, value).pop(name, None)
    return reduce(getitem, dotted.split("."), value)


def fingerprint(stage: Stage[Any], profile: Profile, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Everything the stage's output depends on, kept readable so that a difference can be explained.

    Args:
        inputs: Name -> digest of each earlier result or file that the stage reads.
    """
    return {
        "stage_version": stage.version,
        "profile": {name: section_value(profile, name, stage.indifferent) for name in stage.sections},
        "inputs": dict(inputs),
    }


def explain_difference(old: Any, new: Any, path: str = "") -> list[str]:
    """Lines such as `profile.train.epochs: 2 -> 8`."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else str(key)
            if key not in old:
                lines.append(f"{inner}: new")
            elif key not in new:
                lines.append(f"{inner}: gone")
            else:
                lines += explain_difference(old[key], new[key], inner)
        return lines
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass(frozen=True)
class StageFolder(Generic[Result]):
    """A stage's folder in one run."""

    stage: Stage[Result]
    path: Path

    def load(self, wanted: Mapping[str, Any]) -> tuple[Result | None, str]:
        """Return the stored result if it is valid for `wanted`, else None and the reason to run."""
        manifest_path = self.path / MANIFEST
        if not manifest_path.exists():
            started = self.path.exists() and any(self.path.iterdir())
            return None, "was not finished" if started else "has not run"
        try:
            manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
            result = self.stage.model.model_validate(manifest["result"])
            files: dict[str, str] = manifest["files"]
            old = manifest["fingerprint"]
        except (ValueError, KeyError, TypeError, ValidationError):
            return None, "its manifest cannot be read"
        changed = explain_difference(old, json.loads(canonical(wanted)))
        if changed:
            return None, "changed: " + "; ".join(changed[:4]) + (" ..." if len(changed) > 4 else "")
        for name, digest in files.items():
            file = self.path / name
            if not file.is_file():
                return None, f"{name} is missing"
            if _digest_like(digest, file) != digest:
                return None, f"{name} was changed"
        return result, ""

    def was_finished_as(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the stage completed exactly this work once, whatever became of its files."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            return canonical(manifest["fingerprint"]) == canonical(wanted)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def digest(self) -> str:
        """Digest of the stored manifest's result and files: the input digest for later stages."""
        manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        return sha256_text(canonical([manifest["result"], manifest["files"]]))

    def invalidate(self) -> None:
        """Forget completeness before work begins, so that a crash cannot leave an old manifest."""
        (self.path / MANIFEST).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything, for a stage that starts from nothing."""
        if self.path.exists():
            self.invalidate()
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True, mode=0o700)

    def complete(
        self, result: Result, wanted: Mapping[str, Any], files: Mapping[str, str], seconds: float
    ) -> None:
        """Write the manifest: from here on the stage is valid.

        Args:
            files: Path relative to the folder -> SHA-256, for every file later stages read.
        """
        write_atomic(
            self.path / MANIFEST,
            json.dumps(
                {
                    "stage": self.stage.name,
                    "fingerprint": json.loads(canonical(wanted)),
                    "result": result.model_dump(mode="json"),
                    "files": dict(files),
                    "seconds": round(seconds, 3),
                    "completed_at": datetime.now(UTC).isoformat(timespec="seconds"),
                },
                indent=2,
                ensure_ascii=False,
            ),
        )
