"""What the evaluate stage returns."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from profiles.evaluation import DRAFT, PLAIN
from tasks.evaluate.arm_models import ArmsDetail
from tasks.evaluate.load.models import LoadSweep
from tasks.evaluate.measured import Lossless, Measurement, PromptComparison, TauEstimate
from tasks.evaluate.policy.models import PolicyReport
from tasks.evaluate.replay_models import ReplayDetail
from tasks.evaluate.text_checks import TextChecks
from tasks.evaluate.worth.models import Worth

__all__ = [
    "ArmReport",
    "ArmsDetail",
    "Difference",
    "EvaluationReport",
    "Lossless",
    "Measurement",
    "PromptComparison",
    "TauEstimate",
]


class ArmReport(BaseModel):
    """One server configuration under measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    argv: tuple[str, ...]
    engine: str
    requests: int
    failed: int
    output_tokens: int
    seconds: float
    speed_is_meaningful: bool
    """False under Triton's interpreter."""


class Difference(BaseModel):
    """A paired difference of macro acceptance lengths with its interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float | None
    low: float | None = None
    high: float | None = None


class EvaluationReport(BaseModel):
    """Everything a decision needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replay: Measurement
    live: Measurement
    common_replay_pooled: float | None
    """Replay's pooled value on exactly the prompts and tokens that live measured."""
    live_gap: float | None
    """|live - replay| / replay on the common prompts, pooled."""
    lossless: Lossless
    comparisons: tuple[PromptComparison, ...]
    arms: tuple[ArmReport, ...]
    block_size: int
    draft_sample_method: str
    rejection_sample_method: str
    temperature: float = 0.0
    incumbent: str | None = None
    """Version of the incumbent that was measured on the same prompts."""
    incumbent_replay: Measurement | None = None
    incumbent_gain: Difference | None = None
    """Replayed macro of this draft minus that of the incumbent, paired by prompt; conversations are drawn."""
    incumbent_domains: dict[str, Difference] = {}
    """The same for each domain; their intervals hold together with the profile's confidence."""
    incumbent_unmeasured: str = ""
    """Why the incumbent of this run could not be measured; empty if it was, or if there is none."""
    text: TextChecks | None = None
    """Whether the texts with a draft are those of the target alone by repetition, emptiness and length."""
    common_prompts: int = 0
    """Prompts on which live and replay walked the same tokens."""
    left_out: tuple[str, ...] = ()
    """Prompts that live measured and the comparison leaves out, since the answers differ."""
    live_valid: bool = True
    """False if the live measurement cannot be used; the notes say why."""
    notes: tuple[str, ...] = ()
    arms_detail: ArmsDetail | None = None
    """Every arm with its conditions, counts, verdict and drift; what could not be measured, and why."""
    load: LoadSweep | None = None
    """Arms under load; None where no level was measured."""
    policy: PolicyReport | None = None
    """Calibration of the confidence head, and how many draft tokens to verify under load."""
    replay_detail: ReplayDetail | None = None
    """By draft tokens, position and context length; and whether the draft behaves as the one trained."""
    worth: Worth | None = None
    """Is it worth serving: the sentence and what it rests on."""

    @property
    def decided(self) -> str:
        """The arm that is decided about: the first that speculates."""
        return next((arm.name for arm in self.arms if arm.name != PLAIN), DRAFT)

    @property
    def live_per_step(self) -> Measurement:
        """Tokens per step of that arm on the engine: what stands beside other arms, of whatever method.

        `live` is the same for a draft, which drafts in every step, and is taken where arms have no detail.
        """
        arm = self.arms_detail.named(self.decided) if self.arms_detail else None
        return arm.tokens_per_step if arm is not None and arm.tokens_per_step is not None else self.live

    @property
    def shown(self) -> Measurement:
        """The acceptance to show first: replay, which has most prompts; live where nothing was replayed."""
        return self.replay if self.replay.pooled.rounds else self.live_per_step
