"""What was asked of one arm and what it gave: the unit that a resumed evaluation reuses."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.arm_models import Drift
from tasks.evaluate.conditions import Conditions


class LivePrompt(BaseModel):
    """One prompt, already tokens, so that all arms read exactly the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    domain: str
    token_ids: tuple[int, ...]


class Answer(BaseModel):
    """What one arm answered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    token_ids: tuple[int, ...] = ()
    """With the end token, where it ended by itself."""
    finish_reason: str = ""
    error: str = ""
    """Why the request failed; empty if it did not."""
    top_logprobs: tuple[dict[int, float], ...] = ()
    """The most likely tokens of each step, if they were asked for."""
    acceptance: tuple[int, ...] | None = None
    """Verification rounds by the number of draft tokens accepted, `[K + 1]`; None if unknown."""


class DomainCounts(BaseModel):
    """Counter differences over one domain, summed over engines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int
    accepted: int
    draft_tokens: int
    per_position: tuple[int, ...]
    generated: int
    """Output tokens that the server counted; more than `answered` means that others used it too."""
    answered: int
    invalid: str = ""
    requests: int = 0
    failed: int = 0
    restarted: bool = False
    """The server restarted while this was measured."""
    restarted_before: bool = False
    """It had restarted since the domain before."""
    measured_again: bool = False
    """The server restarted while it was measured the first time."""


class Repetition(BaseModel):
    """One more pass over all prompts within the same start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: tuple[str, ...]
    """Domains in the order of asking."""
    domains: dict[str, DomainCounts]
    acceptance: dict[str, tuple[int, ...]] = {}
    """`Answer.acceptance` by prompt, where the server says it."""
    seconds: float
    unsteady: tuple[str, ...] = ()
    """Prompts that were answered with other tokens than the first time."""


class ArmRecord(BaseModel):
    """Everything that one arm gave in its one start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    fingerprint: str
    argv: tuple[str, ...]
    engine: str
    answers: dict[str, Answer]
    domains: dict[str, DomainCounts]
    speculates: bool
    """Whether the server counts drafts."""
    seconds: float
    """Time in which requests were open, first pass."""
    conditions: Conditions | None = None
    further: tuple[Repetition, ...] = ()
    """Passes after the first."""
    drift: Drift | None = None
    sampled: dict[str, tuple[tuple[int, ...], ...]] = {}
    """Continuations at a temperature above 0, by prompt."""
    starts: int = 1

    @property
    def failed(self) -> int:
        return sum(bool(answer.error) for answer in self.answers.values())

    @property
    def output_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers.values())
