"""What the publish stage returns."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.publish.hub.models import HubRelease


class Decision(BaseModel):
    """Promote or hold, with every reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    promote: bool
    reasons: tuple[str, ...]
    candidate_tau_macro: float | None
    candidate_low: float | None
    incumbent_tau_macro: float | None
    """Acceptance length to beat: the incumbent's, or 1.0 where there is none."""
    margin: float


class Publication(BaseModel):
    """Where the draft is now and how to serve it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decision: Decision
    kind: Literal["local", "hub"]
    location: str
    """Folder of the draft, or `OWNER/NAME` of a hub."""
    revision: str
    """Version, e.g. `v0003`: a folder's name, a hub's tag (or `refs/pr/N`); empty for a held draft."""
    serve_command: str
    files: dict[str, str]
    hub: HubRelease | None = None
    """Where it is on a hub; None for a held draft and without a hub."""
