"""How the draft is measured: the profile's `evaluate` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from profiles.part import Count, Dtype, Fraction, Part, Positive


class Live(Part):
    """Acceptance measured on the engine that users run."""

    per_domain: Positive = 4
    """Prompts of each domain that are asked; the first of the evaluation prompts."""
    max_new_tokens: Positive = 48
    """Longest answer, tokens."""
    concurrency: Positive = 4
    """Requests in flight, the same for both arms."""
    dtype: Dtype = "float32"
    """Type of both arms; float32 has no ties on CPU."""
    max_num_seqs: Positive = 8
    """Requests that each arm's server runs at once."""
    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    """How the draft picks tokens."""
    rejection_sample_method: Literal["standard", "block"] = "standard"
    """How the target verifies them."""
    triton_interpreter: bool = False
    """Run the DSpark kernels in Triton's interpreter, which needs no GPU. Speed then means nothing."""
    max_failed: Fraction = 0.0
    """Share of requests that may fail before the measurement is invalid."""


class Policy(Part):
    """How the confidence head is calibrated, and how many draft tokens are worth verifying under load."""

    anchors: Literal["rounds", "all"] = "rounds"
    """Blocks that are looked at: where a round started, as a server sees them, or every answer token. Blocks
    in the middle of an accepted run are easier, so `all` has more samples and another distribution."""
    bins: Annotated[int, Field(ge=2, le=200)] = 20
    """Bins of equal width of the reliability diagram and its error."""
    max_temperature: Annotated[float, Field(gt=1, le=1000)] = 10.0
    """Temperatures are searched between its inverse and itself."""
    temperature_steps: Annotated[int, Field(ge=3, le=2001)] = 121
    """Temperatures tried for each position, evenly spaced in the logarithm; 1 is always tried."""
    min_blocks: Positive = 200
    """Blocks of the fitted half that a position needs; with fewer its temperature stays 1."""
    min_outcomes: Positive = 10
    """Accepted, and rejected, prefixes that a position needs."""
    concurrencies: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 2, 4, 8, 16)
    """Requests in flight for which the number of draft tokens is recommended."""
    thresholds: tuple[Fraction, ...] = (0.1, 0.2, 0.35, 0.5, 0.7)
    """Least survival probabilities that are tried as a simple policy."""
    min_gain: Fraction = 0.01
    """Least gain over the best fixed number of draft tokens for which adaptive verification is advised."""
    passes: Positive = 4
    """Times that the simulation answers every prompt, for each policy at each concurrency."""


class Evaluate(Part):
    """How the draft is measured."""

    live: Live = Live()
    """Measurement on the real engine."""
    policy: Policy = Policy()
    """Calibration of the confidence head and simulation over the load; takes seconds."""
    replay_max_new_tokens: Positive = 96
    """Answer tokens of each prompt that replay walks."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.90
    """Confidence of the bootstrap intervals."""
    bootstrap_samples: Annotated[int, Field(ge=100)] = 2000
    """Bootstrap samples."""
    max_live_gap: Fraction = 0.01
    """Largest relative gap between live and replayed acceptance length on the common prompts."""
    seed: Count = 0
    """Seed of the bootstrap."""
