"""What a publication on a hub leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class HubRelease(BaseModel):
    """A version in a repository of a hub. It holds no address and no token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    """`OWNER/NAME`."""
    via: Literal["branch", "pull_request"]
    revision: str
    """What to name when it is loaded: the tag `vNNNN`, or `refs/pr/N`."""
    commit: str
    """Commit that was read back, compared by hash and loaded."""
    main_commit: str | None = None
    """Commit of `main` with the same files; None while a pull request is open."""
    pull_request: int | None = None
    """Number of the pull request that people merge."""
    previous: str | None = None
    """Version that `main` held before; None if it held none of ours."""
    notes: tuple[str, ...] = ()
    """What others did to `main` meanwhile."""
