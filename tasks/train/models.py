"""What the train stage returns."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class DraftCheckpoint(BaseModel):
    """An exported draft in Speculators format, and how it was trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    """Folder of the export, relative to the stage folder."""
    files: dict[str, str]
    """File name -> SHA-256."""
    step: int
    """Optimizer step of the exported (best) weights."""
    steps: int
    """Optimizer steps taken in all."""
    epochs: int
    parameters: int
    """All parameters that the draft needs in serving, frozen ones from the target included."""
    trained_parameters: int
    draft_vocab_size: int
    block_size: int
    held_out_eal: float | None
    """Greedy acceptance length of the exported weights on held-out data, bonus token included; None where
    no sample is held out."""
    metrics: dict[str, float]
    config: dict[str, Any]
    """Resolved training configuration."""
    notes: tuple[str, ...] = ()
    """What was adjusted and why, e.g. a clamped draft vocabulary."""
    round_trip: str = ""
    """Digest of the exported configuration that `speculators`' own class read and wrote without a change
    (`round_trip.config_digest`); empty where nobody tried."""
