"""What the publish stage returns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from tasks.publish.hub.models import HubRelease

Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
Standing = Literal["none", "verified", "unverified", "unmeasured"]


class Word(BaseModel):
    """What a person decided. Kept with the run and in the registry, never in a published file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["approval", "force"]
    """`approval`: yes or no to a draft that passed the gate. `force`: promote although the gate holds it."""
    yes: bool = True
    by: Said
    """The name that the person gave."""
    why: Said
    at: str
    """ISO 8601, UTC."""


class Decision(BaseModel):
    """Promote or hold, with every reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    promote: bool
    reasons: tuple[str, ...]
    """All of them: what speaks against promotion, what people said, and the comparison."""
    candidate_tau_macro: float | None
    candidate_low: float | None
    incumbent_tau_macro: float | None
    """Acceptance length to beat: the incumbent's, or 1.0 where there is none."""
    margin: float
    against: tuple[str, ...] = ()
    """What held the draft, or would have without a person's word; empty if it passed the gate."""
    remarks: tuple[str, ...] = ()
    """What a reader should know and what decides nothing."""
    incumbent: str | None = None
    standing: Standing = "none"
    """Of the incumbent. `unverified`: it was made for another target than this one, and measured again here.
    `unmeasured`: it cannot be measured on this one."""
    waits: bool = False
    """It passed the gate, and a person has yet to agree."""
    words: tuple[Word, ...] = ()
    """What people said about it."""

    @property
    def passed(self) -> bool:
        """Whether the gate alone lets it through."""
        return not self.against

    @property
    def forced(self) -> bool:
        """Whether a person's word promoted what the gate held."""
        return self.promote and not self.passed


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
