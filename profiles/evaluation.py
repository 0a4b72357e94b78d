"""How the draft is measured: the profile's `evaluate` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from profiles.part import Count, Dtype, Fraction, Part, Positive, Seconds


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


Above = Annotated[float, Field(gt=0)]


class Slo(Part):
    """What users must be given: targets for load points. An empty field asks for nothing."""

    ttft_p50_ms: Above | None = None
    """Longest median time to the first token, milliseconds."""
    ttft_p90_ms: Above | None = None
    """Longest time to the first token of 90 % of the requests, milliseconds."""
    ttft_p99_ms: Above | None = None
    """Longest time to the first token of 99 % of the requests, milliseconds."""
    itl_p50_ms: Above | None = None
    """Longest median time between two pieces of an answer, ms; with a draft a piece holds several tokens."""
    itl_p90_ms: Above | None = None
    """Longest time between two pieces of an answer in 90 % of the cases, milliseconds."""
    itl_p99_ms: Above | None = None
    """Longest time between two pieces of an answer in 99 % of the cases, milliseconds."""
    tokens_per_s_per_user: Above | None = None
    """Least output tokens per second that one user sees, median over requests."""
    load_tokens_per_s: Above | None = None
    """Load to plan for, output tokens per second of all users; the report says how many GPUs serve it."""


class Prices(Part):
    """What GPUs cost; without a price no break-even is computed."""

    currency: Annotated[str, Field(min_length=1, max_length=8)] = "USD"
    """Unit of the prices, shown beside them."""
    serving_gpu_hour: Above | None = None
    """Price of one GPU for one hour of serving."""
    training_gpu_hour: Above | None = None
    """Price of one GPU for one hour of retraining; empty takes that of serving."""
    other_costs: Annotated[float, Field(ge=0)] = 0.0
    """What one retraining costs besides GPUs."""
    gpus_per_server: Positive | None = None
    """GPUs of one measured server; empty takes them from its command line."""


class Load(Part):
    """How arms behave under load: each level is measured on every arm, with a time limit of its own."""

    concurrency: tuple[Positive, ...] = (1, 2, 4, 8, 16)
    """Requests in flight, one level each; empty measures none. `live.max_num_seqs` above the largest."""
    request_rates: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Requests per second, one level each, that arrive whether or not earlier ones are answered."""
    requests_per_user: Positive = 8
    """Requests of a level for each one in flight."""
    min_requests: Positive = 16
    """Fewest requests of a level; a rate level has just these."""
    max_new_tokens: Positive = 256
    """Longest answer, tokens."""
    warm_up: bool = True
    """Ask once for each request in flight before a level's clock starts."""
    level_timeout_s: Seconds = 900.0
    """Longest time of one level on one arm, the load generator's start included, seconds."""
    max_failed: Fraction = 0.0
    """Share of a level's requests that may fail before its point is invalid."""
    seed: Count = 0
    """Seed of the prompts' order and of the arrivals, equal for all arms."""


class Evaluate(Part):
    """How the draft is measured."""

    live: Live = Live()
    """Measurement on the real engine."""
    load: Load = Load()
    """Speed under load, and where the draft stops to help."""
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
    slo: Slo = Slo()
    """What users must be given."""
    prices: Prices = Prices()
    """What GPUs cost."""
