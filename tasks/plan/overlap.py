"""Training beside the capture in a plan: what runs at once, what the log may take, when the target ends."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.schema import Profile
from tasks.plan.models import PlannedDisk, PlannedProcess
from tasks.plan.processes import processes_at_once
from tasks.plan.wording import size_text


def planned_log(profile: Profile, samples: int, sample_bytes: int) -> PlannedDisk:
    """The hidden-state log: every sample, or at most the window."""
    whole = samples * sample_bytes
    window = window_bytes(profile)
    if window is None or whole <= window:
        return PlannedDisk(what=f"hidden-state log, {samples} samples", bytes=whole)
    what = f"hidden-state log, window (at no time more; all {samples} samples: {size_text(whole)})"
    return PlannedDisk(what=what, bytes=window)


def window_bytes(profile: Profile) -> int | None:
    """Most bytes of the log at any moment; None where every sample is kept."""
    return profile.stream.window_bytes if profile.stream.retention == "window" else None


def planned_overlap(
    profile: Profile, samples: int, processes: Sequence[PlannedProcess]
) -> tuple[tuple[str, str], ...]:
    """Rows of the plan's table, what and when; none without `stream.overlap`."""
    if not profile.stream.overlaps:
        return ()
    together = processes_at_once(processes, overlaps=True)
    memory = size_text(sum(one.memory_bytes for one in together))
    window = window_bytes(profile)
    log = "every sample is kept" if window is None else (
        f"never more than {size_text(window)} on disk: a sample goes when a checkpoint has consumed it, and "
        "the capture waits for the trainer while the window is full"
    )  # fmt: skip
    return (
        ("at once", f"{', '.join(one.name for one in together)}: about {memory} of memory"),
        ("trainer begins", "with the first samples in the log"),
        ("hidden-state log", log),
        ("target ends", _end_of_target(profile, samples)),
        ("trainer goes on alone", _alone(profile)),
    )


def _end_of_target(profile: Profile, samples: int) -> str:
    last = f"when the last of {samples:,} samples is in the log and the store is empty"
    if profile.serve.kind == "attach":
        return f"not by this run (serve.kind attach); it is asked nothing more {last}"
    return f"{last}; its memory is free from then on"


def _alone(profile: Profile) -> str:
    limit = profile.train.max_steps
    if limit is not None:
        return f"until {limit:,} steps are done"
    if profile.stream.retention == "window" or profile.train.epochs == 1:
        return "with what is left of the one epoch"
    return f"with what is left of the first of {profile.train.epochs} epochs, then the others"
