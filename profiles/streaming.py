"""How answers and hidden states are captured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from profiles.part import Count, Fraction, Part, Positive, Rate, Seconds


class Stream(Part):
    """How answers and hidden states are captured."""

    mode: Literal["generate"] = "generate"
    """`generate`: the target answers, and the hidden states of prompt and answer come with it."""
    concurrency: Positive = 16
    """Requests in flight."""
    max_new_tokens: Positive = 96
    """Longest answer, tokens."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature of training answers; 0 is greedy. Evaluation answers are always greedy."""
    top_p: Rate = 1.0
    """Nucleus sampling bound of training answers."""
    seed: Count = 0
    """Seed of sampled answers."""
    in_flight_bytes: Annotated[int, Field(ge=2**20)] = 512 * 2**20
    """Bytes of hidden states that may wait in the store; must fit into 90 % of `store.segment_bytes`."""
    max_attempts: Positive = 3
    """Requests for one prompt before its sample counts as lost."""
    max_lost: Fraction = 0.0
    """Share of samples that may be lost before the stage fails."""
    read_timeout_s: Seconds = 60.0
    """Longest wait for one sample after its answer arrived, seconds."""
    overlap: bool = False
    """Train while the captures come in: the trainer starts with the first samples. Target and trainer then
    need memory at the same time."""
    retention: Literal["all", "window"] = "all"
    """`all` keeps every capture in the hidden-state log. `window` keeps the log within `window_bytes`: a
    training sample is deleted when a checkpoint has consumed it. It implies `overlap` and one epoch."""
    window_bytes: Positive | None = None
    """Bytes that the hidden-state log may take on disk, held-out and evaluation samples included (`window`
    only)."""

    @property
    def overlaps(self) -> bool:
        """Whether training runs beside the capture."""
        return self.overlap or self.retention == "window"
