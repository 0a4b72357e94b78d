"""Decision inputs: what was measured for them, and what follows from it.

`Measured` is kept with the evaluation. Everything else in `Worth` is worked out from it, the report and the
profile, so that a changed price or target needs no new measurement.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.load.models import LoadPoint

Basis = Literal["measured", "interpolated", "extrapolated", "computed"]
"""Where a figure comes from: one point, between two, beyond all of them, or sizes and prices alone."""
Verdict = Literal["worth", "not_worth", "undecided", "acceptance_only", "not_measured"]
Standing = Literal["gain", "loss", "open"]


class Frozen(BaseModel):
    """Base: no unknown fields, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Frozen):
    """A value with its interval; None where nothing was measured."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class DomainGain(Frozen):
    """One domain: acceptance length, and its gain in tokens per round."""

    domain: str
    prompts: int
    tau: Figure
    over_none: Figure
    """Against no draft, where a round yields one token."""
    over_incumbent: Figure = Figure()
    """Against the incumbent, paired by prompt."""


class ContextTau(Frozen):
    """Acceptance length of prompts of one range of lengths, and how it spreads over them."""

    at_least: int
    """Shortest prompt of the range, tokens."""
    below: int
    """The range ends before this length, tokens."""
    prompts: int
    tau: Figure
    """Pooled over the range."""
    median: float | None = None
    """Median over prompts, tokens per round."""
    top_tenth: float | None = None
    """The best tenth of the prompts has at least this."""
    best: float | None = None


class DraftMemory(Frozen):
    """What the draft takes on the target's accelerators, from its configuration. Bytes, over all GPUs."""

    own_weights_bytes: int
    """Weights that only the draft has."""
    shared_weights_bytes: int
    """The target's embedding, and its head where the vocabulary is whole, which the engine shares."""
    kv_bytes_per_token: int | None
    """None for a type of the KV cache whose size is not known."""
    kv_window_tokens: int | None = None
    """Tokens that every layer keeps at most; None without a sliding window in all layers."""
    context_tokens: int
    """Longest context that one request may have."""
    kv_bytes_per_request: int | None
    """KV cache of one request of that length."""
    dtype: str
    cache_dtype: str
    """Type of the KV cache; what `auto` comes to."""
    cache_asked: str
    """The engine's setting, e.g. `auto` or `fp8`."""
    cache_source: str
    """Where that was said: an option of the server, or nowhere, then the engine's default."""


class BestK(Frozen):
    """Number of draft tokens recommended at one load."""

    concurrency: int
    tokens: int
    """0 where serving without the draft is better."""


class Measured(Frozen):
    """What the decision inputs need besides the rest of the report."""

    points: tuple[LoadPoint, ...] = ()
    """All points of the load sweep."""
    speed_is_meaningful: bool = True
    differences: dict[str, tuple[str, ...]] = {}
    """Arm -> conditions in which it differs from the plain arm, each with both values."""
    domains: tuple[DomainGain, ...] = ()
    contexts: tuple[ContextTau, ...] = ()
    memory: DraftMemory | None = None
    best_k: tuple[BestK, ...] = ()
    gpus_per_server: int | None = None
    """GPUs of one arm's server; 0 on a machine without; None where that is not known."""


class SpeedUp(Frozen):
    """Output tokens per second of one arm over those of another at one concurrency."""

    concurrency: int
    speedup: float
    low: float | None = None
    high: float | None = None
    standing: Standing


class Curve(Frozen):
    """Speed-up of `arm` over `baseline` along the concurrency, and where it ends."""

    arm: str
    baseline: str
    points: tuple[SpeedUp, ...]
    crossover: float | None = None
    """Concurrency at which the speed-up falls to 1, interpolated; None if beyond the range measured."""
    sure_up_to: float | None = None
    """Concurrency at which the interval's lower bound falls to 1."""
    lost_above: float | None = None
    """Concurrency at which the interval's upper bound falls to 1."""
    noise: float | None = None
    """Relative standard deviation of repeated points; None if no point was repeated."""


class LeftOut(Frozen):
    """A point of the sweep that entered nothing, and why."""

    arm: str
    concurrency: int
    reason: str


class FrontPoint(Frozen):
    """One point of an arm's Pareto front."""

    concurrency: int
    tokens_per_s_per_user: float
    tokens_per_s: float


class Matched(Frozen):
    """Throughput of both arms where a user sees equally many tokens per second."""

    tokens_per_s_per_user: float
    plain_tokens_per_s: float
    draft_tokens_per_s: float
    ratio: float
    basis: Basis


class Objective(Frozen):
    """One point against the targets of the profile."""

    arm: str
    concurrency: int
    met: bool | None
    """None where a target's figure was not measured."""
    misses: tuple[str, ...] = ()


class Spent(Frozen):
    """GPU-hours of the run."""

    gpus: int | None
    """GPUs that the run reserved; 0 on a machine without; None where that is not known."""
    used_gpu_hours: float | None
    """Each stage counts the GPUs of its role."""
    reserved_gpu_hours: float | None
    """All GPUs of the run over all its stages: what is paid."""
    stages: dict[str, float]
    """Stage -> hours."""
    notes: tuple[str, ...] = ()


class BreakEven(Frozen):
    """Hours of serving after which the retraining has paid for itself."""

    hours: Figure
    """`high` is None where the lower bound of the speed-up saves nothing."""
    cost: float | None = None
    currency: str
    saved_per_hour: float | None = None
    why_not: str = ""
    """Why it was not computed; empty if it was."""


class Capacity(Frozen):
    """What one arm serves at the targets of the profile."""

    arm: str
    tokens_per_s_per_server: float | None
    tokens_per_s_per_gpu: float | None
    concurrency: float | None
    """Requests in flight on one server at that throughput."""
    gpus_needed: int | None
    """For the load of the profile."""
    basis: Basis
    gpus_basis: Basis
    why_not: str = ""


class Power(Frozen):
    """What these prompts can tell apart, and how many would settle what they cannot."""

    what: str
    observed: float
    detectable: float
    """Smallest effect that the measurement finds in four of five cases, in the unit of `observed`."""
    prompts: int
    more_prompts: int | None
    """None where it is settled, or where no sensible number settles it."""


class Worth(Frozen):
    """Is this draft worth serving?"""

    verdict: Verdict
    sentence: str
    """First line for a reader, complete in itself."""
    known: tuple[str, ...] = ()
    """What bounds the sentence: what was not measured, what is slower, what was left out."""
    measured: Measured = Measured()
    curves: tuple[Curve, ...] = ()
    """The draft over `plain` first, then over every other arm."""
    fronts: dict[str, tuple[FrontPoint, ...]] = {}
    matched: tuple[Matched, ...] = ()
    objectives: tuple[Objective, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    power: Power | None = None
    spent: Spent | None = None
    break_even: BreakEven | None = None
    capacity: tuple[Capacity, ...] = ()
