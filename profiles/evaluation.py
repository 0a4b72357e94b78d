"""How the draft is measured: the profile's `evaluate` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

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


class Replay(Part):
    """The walk over the target's known answers, without a server."""

    context_bounds: Annotated[tuple[Positive, ...], Field(max_length=16)] = (512, 2048, 8192, 32768, 131072)
    """Upper bounds of the context-length buckets, tokens before a round, rising; one more lies beyond."""
    overlap: bool = True
    """Compare the draft's distribution with the target's at every slot, for one product with the target's
    head a token: gives the expected length under temperature, and what a calibration needs."""
    own_blocks: bool = False
    """Draft anew for every number of draft tokens, as an engine does that is asked for fewer than a block.
    Off, the first tokens of whole blocks are taken: one pass, and off by a few thousandths where measured."""
    max_bytes: Annotated[int, Field(ge=2**20)] = 2**28
    """Bytes that scores and logits of one pass may take; longer contexts are cut into more passes."""
    check_prompts: Positive = 8
    """Prompts on which corrections are tried if the draft accepts suspiciously little."""
    min_of_record: Fraction = 0.7
    """Share of the training record's accuracy at the first draft token below which a draft is suspicious."""
    min_first: Fraction = 0.15
    """The same without a record: accuracy at the first draft token below which a draft is suspicious."""
    verifier_names: tuple[str, ...] = ()
    """Further names under which drafts know the target."""

    @field_validator("context_bounds")
    @classmethod
    def _rising(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError(f"context_bounds must rise, got {list(value)}")
        return value


class Evaluate(Part):
    """How the draft is measured."""

    live: Live = Live()
    """Measurement on the real engine."""
    replay: Replay = Replay()
    """Measurement without an engine, and what tells a wrong draft."""
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
