"""What calibration, cost table and simulation found, as it stands in the report and in two files."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

PolicyName = Literal["fixed", "scheduler", "calibrated_scheduler", "adaptive", "threshold"]
"""`fixed`: the first so many draft tokens of every block. `scheduler`: Algorithm 1 of the DSpark paper on
the head's own confidences. `calibrated_scheduler`: the same after temperature scaling. `adaptive`: vLLM's
`enable_adaptive_verification`. `threshold`: draft tokens whose survival is at least a constant."""


class Reliability(BaseModel):
    """How often draft tokens of equal confidence were accepted, in bins; empty bins are left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    counts: tuple[int, ...] = ()
    """Draft tokens in each bin."""
    confidence: tuple[float, ...] = ()
    """Mean confidence in each bin."""
    accepted: tuple[float, ...] = ()
    """Accepted share in each bin."""
    total: int = 0
    total_accepted: int = 0
    ece: float | None = None
    """Expected calibration error, 0 to 1; None without samples."""
    noise: float | None = None
    """The ECE that a perfectly calibrated head would show on so few samples."""
    auc: float | None = None
    """Chance that an accepted token had more confidence than a rejected one; None if all were alike."""


class PositionReliability(BaseModel):
    """One position of the block, before and after temperature scaling."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    position: int
    """From 1."""
    conditional_before: Reliability
    """Confidence that the token survives, given that all before it did; over blocks where they did."""
    conditional_after: Reliability
    cumulative_before: Reliability
    """Product of the confidences up to here, against acceptance of the whole prefix."""
    cumulative_after: Reliability
    overlap: float | None = None
    """Mean overlap of both distributions where the prefix was right: acceptance at temperature 1."""


class Half(BaseModel):
    """Reliability on one half of the prompts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompts: int
    blocks: int
    positions: tuple[PositionReliability, ...]
    before: Reliability
    """Conditional confidence of all positions together."""
    after: Reliability
    cumulative_before: Reliability
    """Cumulative product of all positions together: what a scheduler goes by."""
    cumulative_after: Reliability
    cumulative_ece_before: float | None
    """Mean over positions of the ECE of the cumulative product."""
    cumulative_ece_after: float | None


class Temperature(BaseModel):
    """What divides the confidence logit of one position."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    position: int
    value: float = 1.0
    fitted: bool = False
    reason: str = ""
    """Why it was not fitted, or what is odd about it."""


class Calibration(BaseModel):
    """Sequential Temperature Scaling, fitted on one half of the prompts and reported on the other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperatures: tuple[Temperature, ...]
    fit: Half
    """The half on which the temperatures were fitted: its `after` flatters."""
    report: Half
    """The other half: what to believe."""
    anchors: Literal["rounds", "all"]
    bins: int
    draft: str = ""
    """Digest of the draft."""
    captures: str = ""
    """Digest of the captures."""


class StepCost(BaseModel):
    """Time of one engine step, measured or derived from a measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int
    """Tokens in the batch: one for each request and one for each draft token to verify."""
    seconds: float
    steps_per_s: float


class DraftCost(BaseModel):
    """Time of drafting one block for every request of a batch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: int
    seconds: float


class CostTable(BaseModel):
    """Step time by batch; never falls with the batch. A step with a draft takes `verify` plus `draft`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verify: tuple[StepCost, ...]
    draft: tuple[DraftCost, ...] = ()
    meaningful: bool = True
    """False for figures of Triton's interpreter."""
    notes: tuple[str, ...] = ()

    @property
    def measured_tokens(self) -> tuple[int, int]:
        """Smallest and largest batch that was measured; beyond them costs are extrapolated."""
        return self.verify[0].tokens, self.verify[-1].tokens


class Gain(BaseModel):
    """A relative difference (0.1 = 10 % faster) with its interval over prompts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float
    high: float


class SimulatedPolicy(BaseModel):
    """One way of choosing how many draft tokens are verified, played at one concurrency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: PolicyName
    setting: float | None = None
    """Draft tokens of `fixed`, least survival of `threshold`."""
    tau: float
    """Tokens per verification round, bonus included."""
    verified: float
    """Draft tokens verified per request and round: the budget."""
    speedup: Gain
    """Decoded tokens per second, relative to the target without a draft at this concurrency, minus 1."""
    prompts: int
    """Prompts behind it; `calibrated_scheduler` plays only those on which no temperature was fitted."""


class SimulatedLoad(BaseModel):
    """Every policy at one concurrency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int
    extrapolated: bool
    """Some batch was larger or smaller than any that was measured."""
    policies: tuple[SimulatedPolicy, ...]
    calibration_gain: Gain | None = None
    """Gain of the scheduler by scaled confidences over that by raw ones, on the half that was not fitted."""


class Recommended(BaseModel):
    """What to serve with at one concurrency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int
    num_speculative_tokens: int
    """Best fixed number of draft tokens; 0: serve without the draft."""
    expected_tau: float
    """Tokens per round with that number."""
    expected_speedup: float | None
    """Ratio of decoded tokens per second to the target alone; 1 is no gain."""
    expected_speedup_low: float | None = None
    expected_speedup_high: float | None = None
    adaptive_verification_helps: bool | None = None
    """Faster than the best fixed number by at least `min_gain`; None: undecided."""
    adaptive_gain: Gain | None = None
    """Gain of adaptive verification over the best fixed number."""
    extrapolated: bool = False
    vllm_options: dict[str, Any]
    """Fields of vLLM's `--speculative-config` beside the draft's `model`; empty without a draft."""
    command_line: str = ""
    """The same as an argument of `vllm serve`."""


class PolicyReport(BaseModel):
    """Calibration, costs and recommendation of one draft."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calibration: Calibration | None = None
    costs: CostTable | None = None
    recommendation: tuple[Recommended, ...] = ()
    simulation: tuple[SimulatedLoad, ...] = ()
    schedule_options: dict[str, Any] = {}
    """One set of vLLM fields for all concurrencies: the number of draft tokens follows the batch size."""
    notes: tuple[str, ...] = ()
