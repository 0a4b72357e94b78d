"""Which stages of an existing run a resume would reuse, and why not the others. Nothing is hashed again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.plan.models import Reuse
from tasks.run_folder import RunFolder
from tasks.stage import MANIFEST, Stage, canonical, explain_difference, fingerprint
from tasks.stages import STAGES, STREAM

BEFORE: dict[str, tuple[str, ...]] = {
    "validate": (),
    "serve": (),
    "stream": ("serve",),
    "train": ("stream",),
    "evaluate": ("stream", "train"),
    "publish": ("train", "evaluate"),
}
"""Stage -> earlier stages whose result it reads: if one runs again, so may it."""
UNCHANGED = "its inputs and its part of the profile are unchanged; files are compared when the run starts"


def last_run(root: Path, profile_name: str) -> RunFolder | None:
    """The newest run of a profile."""
    for path in sorted(root.glob("*/profile.json"), key=lambda one: one.parent.name, reverse=True):
        try:
            if json.loads(path.read_text(encoding="utf-8")).get("name") == profile_name:
                return RunFolder(path.parent)
        except (OSError, ValueError, AttributeError):
            continue
    return None


def planned_reuse(profile: Profile, run: RunFolder, prompts_digest: str = "") -> tuple[Reuse, ...]:
    """What `resume` would do with each stage of a run under this profile.

    Args:
        prompts_digest: Of the prompts as they are now; empty takes them as unchanged.
    """
    rows: list[Reuse] = []
    for stage in STAGES:
        why = _why_again(stage, profile, run, prompts_digest, rows)
        rows.append(Reuse(stage=stage.name, reused=not why, why=why or UNCHANGED))
    return tuple(rows)


def _why_again(
    stage: Stage[Any], profile: Profile, run: RunFolder, prompts_digest: str, earlier: Sequence[Reuse]
) -> str:
    """Why a stage runs again; empty if it does not."""
    folder = run.stage(stage).path
    manifest = _manifest(folder)
    if manifest is None:
        return "was not finished" if folder.is_dir() and any(folder.iterdir()) else "has not run"
    again = [row.stage for row in earlier if row.stage in BEFORE[stage.name] and not row.reused]
    inputs = dict(manifest["fingerprint"].get("inputs", {}))
    if stage.name == STREAM.name and prompts_digest:
        inputs["prompts"] = prompts_digest
    wanted = json.loads(canonical(fingerprint(stage, profile, inputs)))
    changed = explain_difference(manifest["fingerprint"], wanted)
    if changed:
        return "changed: " + "; ".join(changed[:4]) + (" ..." if len(changed) > 4 else "")
    if again:
        return f"{' and '.join(again)} run again; reused only if the result is the same"
    missing = [name for name in manifest["files"] if not (folder / name).is_file()]
    return f"{missing[0]} is missing" if missing else ""


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    complete = isinstance(found, dict) and isinstance(found.get("fingerprint"), dict)
    return found if complete and isinstance(found.get("files"), dict) else None
