"""What a load sweep measured: one point for each arm and load."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Percentiles(BaseModel):
    """Percentiles over the requests of one point; None where nothing was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class LoadPoint(BaseModel):
    """One arm under one load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str
    concurrency: int
    """Requests in flight."""
    request_rate: float | None = None
    """Requests per second of a rate sweep; None for a sweep over concurrency."""
    requests: int
    failed: int
    timed_out: bool = False
    invalid: str = ""
    """Why the point cannot be used; empty if it can."""
    seconds: float
    output_tokens: int
    output_tokens_per_s: float
    tokens_per_s_per_user: float | None = None
    """Output tokens per second that one user sees, median over requests."""
    ttft_ms: Percentiles = Percentiles()
    """Time to the first token."""
    itl_ms: Percentiles = Percentiles()
    """Time between two pieces of an answer; with a draft a piece holds several tokens."""
    tau: float | None = None
    """Tokens per verification round in this point; None without a draft."""
    draft_tokens: int | None = None
    """Tokens drafted; None without a draft."""


class LoadSweep(BaseModel):
    """Every point of a sweep."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    points: tuple[LoadPoint, ...]
    speed_is_meaningful: bool = True
    """False under Triton's interpreter."""
    notes: tuple[str, ...] = ()
