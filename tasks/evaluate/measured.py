"""Acceptance lengths with their intervals, and what a comparison of answers found."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.estimate import TauEstimate as TauEstimate

Lossless = Literal["identical", "within_noise", "different"]


class Measurement(BaseModel):
    """One way of measuring (replay or live): per domain, macro and pooled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domains: dict[str, TauEstimate]
    macro: TauEstimate
    """Unweighted mean over domains; its interval resamples prompts within each domain."""
    pooled: TauEstimate
    """1 + accepted / rounds over everything."""


class PromptComparison(BaseModel):
    """The first difference between two arms on one prompt, if any; what follows it is not compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    equal: bool
    tokens: int
    first_difference: int | None = None
    """Answer token at which they part, from 0."""
    tie: bool | None = None
    """At the first difference: do the target's log-probabilities say that rounding decided? None if the
    target was not asked, or could not say."""
    prompt_number: int | None = None
    """Place of the prompt among those asked, from 1."""
    plain_token: int | None = None
    """Token of the arm without a draft; None where its answer had ended."""
    arm_token: int | None = None
    plain_logprob: float | None = None
    """The target's log-probability of `plain_token` after the common prefix, asked afterwards."""
    arm_logprob: float | None = None
