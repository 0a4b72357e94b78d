"""What the report says about every arm: conditions, outcome by domain, acceptance, verdict, drift."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.conditions import Conditions
from tasks.evaluate.measured import Lossless, Measurement, PromptComparison

Outcome = Literal["measured", "no drafts observed", "empty", "invalid"]
ArmStatus = Literal["measured", "invalid", "failed", "not available"]


class DomainOutcome(BaseModel):
    """How the requests of one domain went."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: int
    failed: int
    outcome: Outcome
    """`no drafts observed`: answers came, and nothing was drafted. Never shown as an acceptance of 1 or 0."""
    reason: str = ""
    """Why it is invalid."""
    restarted_before: bool = False
    """The server had restarted since the domain before; it was warmed up again."""
    measured_again: bool = False
    """The server had restarted while it was measured the first time."""


class Spread(BaseModel):
    """Tokens per step of single answers: they differ more than the mean shows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    answers: int
    lowest: float
    p10: float
    median: float
    p90: float
    highest: float


class Verdict(BaseModel):
    """An arm's answers against those of the target alone, token for token, at temperature 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lossless: Lossless | None
    """None if the two arms cannot be compared; `reason` says why."""
    compared: int
    exact: int
    ties: int
    violations: int
    allowed: float = 0.0
    """Violations of the target against itself (A/A), as a share of the prompts compared there."""
    differing: tuple[PromptComparison, ...] = ()
    decayed: tuple[str, ...] = ()
    """Prompts whose answer decays into repetition with this arm and not without."""
    reason: str = ""


class Drift(BaseModel):
    """The same few requests right after warm-up and again at the end of an arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds_before: float
    seconds_after: float
    same_tokens: bool

    @property
    def change(self) -> float:
        """Relative change of the time; 0.1 is 10 % slower at the end."""
        return self.seconds_after / self.seconds_before - 1.0 if self.seconds_before > 0 else 0.0


class DistributionCheck(BaseModel):
    """A two-sample test of sampled continuations: with this arm, and with the target alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float
    prompts: int
    samples: int
    """Of each prompt on each side."""
    tokens: int
    p_value: float
    """Share of random divisions of the pooled samples that differ at least as much."""
    differs: bool
    level: float
    detectable: float | None
    """Smallest share of wrong samples that this test finds four times in five; None if it finds none, or if
    a difference was found, so that power is no question."""


class ArmDetail(BaseModel):
    """One arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    status: ArmStatus
    required: bool
    reason: str = ""
    """Why it is not available, failed or invalid."""
    conditions: Conditions | None = None
    argv: tuple[str, ...] = ()
    starts: int = 0
    """Engine starts that this record cost; an arm measured in another's start costs none."""
    reused: bool = False
    """An earlier attempt of this run measured it."""
    requests: int = 0
    failed: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """Time in which requests of the first repetition were open."""
    repetitions: int = 1
    unsteady: tuple[str, ...] = ()
    """Prompts that a later repetition answered with other tokens."""
    domains: dict[str, DomainOutcome] = {}
    acceptance: Measurement | None = None
    """`1 + accepted / rounds`, over the rounds in which something was drafted: how good the drafts are. Not
    for comparing arms: a method that drafts only where it is sure has few rounds and a high value."""
    tokens_per_step: Measurement | None = None
    """`1 + accepted / steps`, over all decoding steps, those without a draft counted as one token: what arms
    are compared by (`arm_steps`). 1 without speculation; None where nothing was measured or drafted."""
    spread: Spread | None = None
    counted: Literal["by request", "by domain"] = "by domain"
    """Where intervals come from: each response, or (no intervals then) the server's counters alone."""
    verdict: Verdict | None = None
    drift: Drift | None = None
    distribution: DistributionCheck | None = None


class ArmsDetail(BaseModel):
    """All arms, in the order in which they were measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: tuple[ArmDetail, ...]
    order: tuple[str, ...]
    starts: int
    """Engine starts that all of this cost, those of reused records included."""
    requests: dict[str, dict[str, int]] = {}
    """By arm and domain. Stands here once more, since numbers in mappings go to the tracker."""
    failures: dict[str, dict[str, int]] = {}
    tokens_per_step: dict[str, float | None] = {}
    """Macro mean by arm, over all decoding steps; None where nothing was measured, or the arm is invalid."""
    tau_per_drafted_round: dict[str, float | None] = {}
    """The same over the rounds that drafted; None also where nothing was drafted."""
    empty_domains: tuple[str, ...] = ()
    """Domains without a prompt."""
    notes: tuple[str, ...] = ()

    def named(self, name: str) -> ArmDetail | None:
        """The arm called `name`, whatever became of it."""
        return next((arm for arm in self.arms if arm.name == name), None)
