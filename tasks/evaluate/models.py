"""What the evaluate stage returns."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.load.models import LoadSweep
from tasks.evaluate.worth.models import Worth

Lossless = Literal["identical", "within_noise", "different"]


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


class Measurement(BaseModel):
    """One way of measuring (replay or live): per domain, macro and pooled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domains: dict[str, TauEstimate]
    macro: TauEstimate
    """Unweighted mean over domains; its interval resamples prompts within each domain."""
    pooled: TauEstimate
    """1 + accepted / rounds over everything."""


class ArmReport(BaseModel):
    """One server configuration under measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    argv: tuple[str, ...]
    engine: str
    requests: int
    failed: int
    output_tokens: int
    seconds: float
    speed_is_meaningful: bool
    """False under Triton's interpreter."""


class PromptComparison(BaseModel):
    """The first difference between two arms on one prompt, if any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    equal: bool
    tokens: int
    first_difference: int | None = None
    tie: bool | None = None
    """At the first difference: do the target's log-probabilities say that rounding decided?"""


class Difference(BaseModel):
    """A paired difference of macro acceptance lengths with its interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float | None
    low: float | None = None
    high: float | None = None


class EvaluationReport(BaseModel):
    """Everything a decision needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replay: Measurement
    live: Measurement
    common_replay_pooled: float | None
    """Replay's pooled value on exactly the prompts and tokens that live measured."""
    live_gap: float | None
    """|live - replay| / replay on the common prompts, pooled."""
    lossless: Lossless
    comparisons: tuple[PromptComparison, ...]
    arms: tuple[ArmReport, ...]
    block_size: int
    draft_sample_method: str
    rejection_sample_method: str
    temperature: float = 0.0
    incumbent: str | None = None
    """Version of the incumbent that was measured on the same prompts."""
    incumbent_replay: Measurement | None = None
    incumbent_gain: Difference | None = None
    """Replayed macro of this draft minus that of the incumbent, paired by prompt."""
    common_prompts: int = 0
    """Prompts on which live and replay walked the same tokens."""
    left_out: tuple[str, ...] = ()
    """Prompts that live measured and the comparison leaves out, since the answers differ."""
    live_valid: bool = True
    """False if the live measurement cannot be used; the notes say why."""
    notes: tuple[str, ...] = ()
    load: LoadSweep | None = None
    """Arms under load; None where no level was measured."""
    worth: Worth | None = None
    """Is it worth serving: the sentence and what it rests on."""
