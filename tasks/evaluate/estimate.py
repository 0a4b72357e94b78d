"""An estimated acceptance length."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TauEstimate(BaseModel):
    """An acceptance length (tokens per verification round, bonus included) with its interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float | None
    """None if no draft was verified: nothing was measured."""
    low: float | None = None
    high: float | None = None
    prompts: int
    rounds: int
    accepted: int
    per_position: tuple[float, ...] = ()
    """Share of rounds in which position i was accepted (unconditional)."""
