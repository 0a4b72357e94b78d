"""The mark that a commit of ours carries, so that it is found again by whoever looks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["candidate", "release", "rollback"]

_LINE = re.compile(r"^Retrain-(Kind|Version|Run|Manifest|Base): (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Mark:
    """What a commit is: the last lines of its message.

    Args:
        kind: `candidate` on a side branch, `release` or `rollback` on `main`.
        version: Version whose files the commit brings.
        run: Run that made the version.
        manifest: SHA-256 of the version's `manifest.json`, which names every other file by hash.
        base: Commit of `main` that the work began from.
    """

    kind: Kind
    version: str
    run: str
    manifest: str
    base: str

    def lines(self) -> str:
        values = {
            "Kind": self.kind,
            "Version": self.version,
            "Run": self.run,
            "Manifest": self.manifest,
            "Base": self.base,
        }
        return "\n".join(f"Retrain-{name}: {value}" for name, value in values.items())


def read_mark(message: str) -> Mark | None:
    """The mark of a commit's message; None if it is not ours."""
    found = dict(_LINE.findall(message))
    kind = found.get("Kind")
    if len(found) != len(Mark.__dataclass_fields__) or kind not in ("candidate", "release", "rollback"):
        return None
    return Mark(kind, found["Version"], found["Run"], found["Manifest"], found["Base"])
