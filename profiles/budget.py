"""What a run may use before it is stopped."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from profiles.part import Part

Above = Annotated[float, Field(gt=0)]


class Budget(Part):
    """Hard limits of one run, all attempts at it together. An empty field limits nothing.

    What counts is what is held: every node of the profile, from the first stage to the last, idle or not. No
    stage depends on a limit: raising it and resuming goes on where the run stopped.
    """

    gpu_hours: Above | None = None
    """GPU-hours after which the run stops, resumable."""
    node_hours: Above | None = None
    """Node-hours after which the run stops, resumable; the limit for machines without GPUs."""
    disk_gb: Above | None = None
    """Disk of the training node that a run may use, GB (1e9 bytes); a plan that needs more is refused. Empty
    looks at the run root where this machine is the training node."""
