"""Lets the registry follow the pointer files: after a command, and at the next start after an outage."""

from __future__ import annotations

from pathlib import Path

from profiles.schema import Profile
from tasks.publish.records import read_record
from tasks.publish.registry import settling_operations, unsettled
from tasks.publish.versions import CHAMPION, read_pointer
from tasks.run_folder import RunFolder
from tasks.tracking import is_tracked, send_now


def settle(place: Path, root: Path) -> list[str]:
    """Tell the registry which versions are champion and previous; returns what the user must know.

    Args:
        place: Folder of a draft's versions.
        root: The run root, which says where MLflow is.
    """
    if not is_tracked(root):
        return []
    return send_now(root, _experiment(place, root), settling_operations(place))


def settle_all(root: Path, change: bool = True) -> list[str]:
    """The same for every draft under the run root that the registry has not confirmed.

    Args:
        change: False only tells what would be done.
    """
    if not is_tracked(root):
        return []
    lines = []
    for place in unsettled(root / "published"):
        lines.append(f"registry of {place.name}: follows the pointer files")
        lines += settle(place, root) if change else []
    return lines


def _experiment(place: Path, root: Path) -> str:
    """MLflow experiment of the champion's run; the default where its folder is gone."""
    champion = read_pointer(place, CHAMPION)
    record = read_record(place, champion) if champion else None
    run = RunFolder(root / record.run_id) if record else None
    if run is not None and (run.path / "profile.json").is_file():
        return run.profile().tracking.experiment
    default: str = Profile.model_fields["tracking"].default.experiment
    return default
