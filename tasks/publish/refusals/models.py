"""What a refusal says, and what refusals are found in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import GateRefused
from tasks.evaluate.models import EvaluationReport
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport


@dataclass(frozen=True)
class Refusal:
    """One reason why a folder must not go out."""

    what: str
    where: str
    """File in the folder, or field of the profile."""
    remedy: str


@dataclass(frozen=True)
class Material:
    """A folder that is about to be published, and what it was made from."""

    folder: Path
    profile: Profile
    draft: DraftCheckpoint
    draft_dir: Path
    """The export that training wrote and the evaluation measured."""
    evaluation: EvaluationReport
    validation: ValidationReport
    private_folders: tuple[Path, ...] = ()
    """Folders of this machine that no published file may name."""

    @property
    def goes_to_hub(self) -> bool:
        """Strangers will load it: names and revisions must mean something to them."""
        return self.profile.publish.kind == "hub"

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Every file of the folder, links included."""
        return tuple(sorted(p for p in self.folder.rglob("*") if p.is_symlink() or not p.is_dir()))

    def name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The folder's config.json; empty if it cannot be read, which is a refusal of its own."""
        return read_object(self.folder / "config.json")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none or it is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def refuse(found: Iterable[Refusal]) -> None:
    """Raise one error that names every refusal with its remedy; nothing if there is none.

    Raises:
        GateRefused: There is at least one.
    """
    refusals = list(dict.fromkeys(found))
    if not refusals:
        return
    if len(refusals) == 1:
        only = refusals[0]
        raise GateRefused(only.what, where=only.where, hint=only.remedy)
    lines = [f"the draft is not published, for {len(refusals)} reasons:"]
    for number, one in enumerate(refusals, 1):
        lines += [f"  {number}. {one.where}: {one.what}", f"     to do: {one.remedy}"]
    raise GateRefused("\n".join(lines), where="publish", hint="mend all of them, then run the stage again")
