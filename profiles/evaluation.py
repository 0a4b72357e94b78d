"""How the draft is measured: the profile's `evaluate` part."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from profiles.part import Count, Dtype, Fraction, Part, Positive, Seconds
from profiles.serving import Engine, Runner, Serve, TapPoint

PLAIN, AGAIN, DRAFT, INCUMBENT = "plain", "plain-again", "draft", "incumbent"
NGRAM, SUFFIX, MTP = "ngram", "suffix", "mtp"
KNOWN_ARMS = (PLAIN, AGAIN, DRAFT, INCUMBENT, NGRAM, SUFFIX, MTP)
_ARM_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,31}$")


class OwnArm(Part):
    """An arm of your own: any speculative method that the engine knows."""

    speculative_config: Annotated[dict[str, Any], Field(min_length=1)]
    """vLLM's `--speculative-config`. `{draft}` and `{incumbent}` stand for the folders of these drafts."""
    runner: Runner | None = None
    """vLLM's model runner; unset takes the one of the other arms, or v1 where the method needs it."""
    tap_point: TapPoint | None = None
    """Where this draft wants a target with Attention Residuals tapped; unset is `target.tap_point`."""


class Sampled(Part):
    """At a temperature above 0: are the answers with a draft distributed as those without?"""

    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Temperature of the samples."""
    prompts: Positive = 8
    """Prompts that are sampled; the first of each domain in turn."""
    samples: Annotated[int, Field(ge=8)] = 64
    """Samples of each prompt on each arm."""
    tokens: Positive = 3
    """Tokens of each sample."""
    permutations: Annotated[int, Field(ge=199)] = 999
    """Random divisions that the p-value counts."""
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """A smaller p-value says that the distributions differ."""


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
    """How the target verifies them: token by token, or the block as a whole."""
    adaptive_verification: bool = False
    """Verify fewer draft tokens where the confidence head expects little, as the load asks for."""
    engine: Engine | None = None
    """Options of the arms' servers; empty takes those of `serve.engine` but for the runner."""
    triton_interpreter: bool = False
    """Run the DSpark kernels in Triton's interpreter, which needs no GPU. Speed then means nothing."""
    max_failed: Fraction = 0.0
    """Share of requests that may fail before an arm's measurement is invalid."""
    arms: tuple[str, ...] = KNOWN_ARMS
    """Server configurations to measure, one start each. Those that this target, this engine or this run
    cannot offer are left out, and the report says why; `plain` and `draft` are always measured."""
    own_arms: dict[str, OwnArm] = {}
    """Further arms by name (lower-case letters, digits, hyphens)."""
    again_per_domain: Count | None = None
    """Prompts of each domain that the server without a draft answers twice: the noise floor of the
    lossless verdict. Unset repeats all of them."""
    tie_steps: Positive = 1
    """Steps of the logit's type by which two tokens may differ and still count as equally likely."""
    repetitions: Positive = 1
    """How often each arm answers all prompts within its one start; the order of the domains rotates."""
    sampled: Sampled | None = None
    """Compare distributions at a temperature above 0 too."""

    @model_validator(mode="after")
    def _known_arms(self) -> Self:
        unknown = [name for name in self.arms if name not in KNOWN_ARMS]
        if unknown:
            raise ValueError(
                f"no arm is called {', '.join(unknown)}; known: {', '.join(KNOWN_ARMS)}; "
                "describe an arm of your own in own_arms"
            )
        wrong = [name for name in self.own_arms if name in KNOWN_ARMS or not _ARM_NAME.match(name)]
        if wrong:
            raise ValueError(
                f"an arm cannot be called {', '.join(wrong)}: use lower-case letters, digits and hyphens, "
                f"and none of {', '.join(KNOWN_ARMS)}"
            )
        return self


def engine_of_arms(live: Live, serve: Serve) -> Engine:
    """Options that every arm is started with."""
    return live.engine or serve.engine.model_copy(update={"runner": None, "chunks_verified": False})


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
    load: Load = Load()
    """Speed under load, and where the draft stops to help."""
    policy: Policy = Policy()
    """Calibration of the confidence head and simulation over the load; takes seconds."""
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
    slo: Slo = Slo()
    """What users must be given."""
    prices: Prices = Prices()
    """What GPUs cost."""
