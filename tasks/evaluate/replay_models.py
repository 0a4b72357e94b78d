"""What a replay says beyond its acceptance length: `EvaluationReport.replay_detail`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.estimate import TauEstimate


class Shape(BaseModel):
    """Base of the parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CountEstimate(Shape):
    """Acceptance with a given number of draft tokens."""

    draft_tokens: int
    macro: TauEstimate
    pooled: TauEstimate


class PositionEstimate(Shape):
    """Acceptance by position in a block."""

    unconditional: tuple[float, ...] = ()
    """Share of rounds in which draft token i was accepted."""
    conditional: tuple[float | None, ...] = ()
    """The same, of the rounds in which all tokens before it were; None where there were none."""
    overlap: tuple[float | None, ...] = ()
    """Mean of `1 - TV` of draft and target at temperature 1, at every token of the answers; not only where
    rounds start."""
    expected_length: float | None = None
    """Tokens per round under rejection sampling at temperature 1 along the same answers: 1 + the mean of the
    sums of overlap products. None where overlaps were not computed."""


class ContextBucket(Shape):
    """Rounds that started with so many tokens before them, prompt and answer together."""

    above: int
    up_to: int | None
    """None: no bound."""
    tau: TauEstimate
    """Pooled over the bucket's rounds; its prompts are those with a round in it."""
    median: float | None = None
    """Of the requests' own tokens per round, in this bucket."""
    top_tenth: float | None = None
    """What the best tenth of the requests reaches at least."""
    largest: float | None = None


class DraftVerdict(Shape):
    """Whether the draft behaves as the one that was trained."""

    first: float | None = None
    """Share of first draft tokens that are right, at every token of the answers."""
    expected: float | None = None
    """Below this the draft is suspicious."""
    trials: tuple[dict[str, Any], ...] = ()
    """Corrections that were tried: `what`, `tau`, `first`."""
    diagnosis: str | None = None
    """What is wrong, in a sentence; None if nothing seems to be."""


class ReplayDetail(Shape):
    """One replay in depth."""

    by_draft_tokens: tuple[CountEstimate, ...]
    """For 1 ... K draft tokens."""
    own_blocks: bool
    """Blocks of fewer tokens were drafted anew; else whole blocks were cut, which an engine does not do."""
    positions: PositionEstimate
    domains: dict[str, PositionEstimate]
    contexts: tuple[ContextBucket, ...]
    verdict: DraftVerdict
    slots: str = ""
    """File of the slots, in the stage's folder `answers`."""
