"""The load of one arm as the profile asks for it, and what all arms' stored points say together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from profiles.schema import Profile
from tasks.evaluate.live import LivePrompt
from tasks.evaluate.load.levels import levels_of, load_sweep, write_prompts
from tasks.evaluate.load.models import LoadPoint, LoadSweep
from tasks.evaluate.load.sweep import (
    Endpoint,
    final_point,
    point_file,
    point_fingerprint,
    read_point,
    sweep,
)
from tasks.processes.launcher import Launcher
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder

FOLDER = "load"
_PROMPTS = "prompts.jsonl"


def load_arm(
    profile: Profile,
    endpoint: Endpoint,
    arm: str,
    prompts: Iterable[LivePrompt],
    stage_folder: Path,
    launcher: Launcher,
    run: RunFolder,
    progress: Progress,
    identity: str = "",
) -> tuple[LoadPoint, ...]:
    """Load an arm that answers now at every level of `evaluate.load`; nothing where there is none.

    Args:
        stage_folder: Folder of stage evaluate; points go into `load/` in it.
        identity: Digest of what the arm serves and under which settings, e.g. `arm_fingerprint`.
    """
    levels = levels_of(profile)
    if not levels:
        return ()
    folder = stage_folder / FOLDER
    file = write_prompts(folder / _PROMPTS, prompts)
    return sweep(endpoint, arm, levels, file, folder, launcher, run, progress, identity)


def is_loaded(
    profile: Profile, arm: str, prompts: Iterable[LivePrompt], stage_folder: Path, identity: str = ""
) -> bool:
    """Whether every level of an arm has its final point: its server need not be started for the load."""
    levels = levels_of(profile)
    if not levels:
        return True
    folder = stage_folder / FOLDER
    file = write_prompts(folder / _PROMPTS, prompts)
    return all(
        final_point(point_file(folder, arm, level), point_fingerprint(arm, level, file, identity)) is not None
        for level in levels
    )


def loaded(profile: Profile, arms: Sequence[str], stage_folder: Path) -> LoadSweep | None:
    """The stored points of these arms at the profile's levels; None where no load was asked for."""
    levels = levels_of(profile)
    if not levels:
        return None
    files = [point_file(stage_folder / FOLDER, arm, level) for arm in arms for level in levels]
    points = [stored.point for file in files if (stored := read_point(file)) is not None]
    return load_sweep(points, not profile.evaluate.live.triton_interpreter)
