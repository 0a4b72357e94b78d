"""What the stream stage returns, and the layout of the hidden-state log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.stream.canary_report import CanaryReport

Split = Literal["train", "held_out", "evaluate"]


class CaptureCounters(BaseModel):
    """What happened while capturing. Every prompt ends as captured or lost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: int = 0
    regenerated: int = 0
    lost: int = 0
    rejected: dict[str, int] = {}
    """Reason of a rejected sample -> how often; each was asked for again."""
    target_prompt_tokens: int = 0
    target_generated_tokens: int = 0
    store_full_waits: int = 0
    seconds: float = 0.0


class CaptureManifest(BaseModel):
    """One finished hidden-state log."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: str
    """Folder of the log, relative to the stage folder."""
    digest: str
    """SHA-256 over the sorted index lines: the identity of the data set."""
    target: str
    """`model_digest` of the target that answered."""
    layer_ids: tuple[int, ...]
    hidden_size: int
    dtype: str
    samples: int
    tokens: int
    trainable_tokens: int
    """Answer tokens in the train split, which are what the loss sees."""
    distinct_tokens: int
    bytes: int
    splits: dict[str, int]
    temperature: float | None = None
    """Sampling temperature of training answers; None where it is not known. Evaluation answers are greedy."""
    canary: CanaryReport = CanaryReport()
    """How it was proved that the states are those of the answers."""
    counters: CaptureCounters
