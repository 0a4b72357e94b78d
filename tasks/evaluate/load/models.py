"""What a load sweep asks for (`Level`) and what it measured: one point for each arm and level."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Level(BaseModel):
    """One load, complete: everything that the generator is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int | None
    """Users, each with one request in flight; None where `request_rate` sets the load."""
    request_rate: float | None = None
    """Requests per second that arrive whether or not earlier ones are answered."""
    requests: int
    max_new_tokens: int
    warm_ups: int = 0
    """Requests before the clock starts."""
    timeout_s: float
    """Longest time of the level, the generator's own start included, seconds."""
    max_failed: float = 0.0
    """Share of requests that may fail before the point is invalid."""
    seed: int = 0
    """Seed of the order of the prompts and of the arrivals; equal for all arms."""

    @property
    def label(self) -> str:
        """Short name for files: `c4` or `r0.5`."""
        return f"c{self.concurrency}" if self.request_rate is None else f"r{self.request_rate:g}"

    @property
    def words(self) -> str:
        """Short name for people."""
        if self.request_rate is None:
            return f"{self.concurrency} at once"
        return f"{self.request_rate:g} requests/s"


class Percentiles(BaseModel):
    """Percentiles over the requests of one point; None where nothing was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class LoadPoint(BaseModel):
    """One arm under one load. A point that timed out or is invalid holds counts and no speed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str
    concurrency: int
    """Requests in flight; of a rate sweep the most that were in flight at once."""
    request_rate: float | None = None
    """Requests per second of a rate sweep; None for a sweep over concurrency."""
    requests: int
    failed: int
    """Requests without an answer; with `timed_out` those that the limit cut off, too."""
    timed_out: bool = False
    """The level did not end within its time limit."""
    invalid: str = ""
    """Why the point cannot be used; empty if it can."""
    seconds: float
    """From the first request of the measurement to the last answer."""
    output_tokens: int
    output_tokens_per_s: float
    """Over the whole point, all requests together."""
    tokens_per_s_per_user: float | None = None
    """Tokens per second after the first token, as one user sees them: median over requests."""
    ttft_ms: Percentiles = Percentiles()
    """Time to the first token."""
    itl_ms: Percentiles = Percentiles()
    """Time between two pieces of a streamed answer; with a draft one piece holds several tokens."""
    tpot_ms: Percentiles = Percentiles()
    """Time per token after the first, of each request: what compares arms whose pieces differ in size."""
    tau: float | None = None
    """Tokens per verification round in this point; None if nothing was drafted."""
    tokens_per_step: float | None = None
    """Tokens per decoding step, steps without a draft counted as one token: what arms are compared by (see
    `arm_steps`); None if nothing was drafted."""
    drafts: int | None = None
    """Verification rounds in this point, those of the warm-up included; None without a draft."""
    draft_tokens: int | None = None
    """Tokens drafted in these rounds; None without a draft."""

    @property
    def usable(self) -> bool:
        """Whether its speed may be compared."""
        return not self.invalid and not self.timed_out


class LoadSweep(BaseModel):
    """Every point of every arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    points: tuple[LoadPoint, ...]
    speed_is_meaningful: bool = True
    """False under Triton's interpreter: figures are computed, and mean nothing."""
    notes: tuple[str, ...] = ()
