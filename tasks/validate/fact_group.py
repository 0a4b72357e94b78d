"""Base of every group of facts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FactGroup(BaseModel):
    """Frozen, and no unknown fields, so that recorded facts stay readable."""

    model_config = ConfigDict(extra="forbid", frozen=True)
