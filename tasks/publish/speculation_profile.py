"""`speculation_profile.json`: what a draft's acceptance was measured to be, for programs.

It lies beside the weights. `format` rises when a field changes its meaning or goes; new fields may appear.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.errors import PublishError
from tasks.evaluate.models import Lossless

FILE = "speculation_profile.json"
FORMAT: Literal[1] = 1
Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[float, Field(ge=1, allow_inf_nan=False)]
NOT_MEASURED = "no load was measured"


class Told(BaseModel):
    """Base: readers of an older version skip what they do not know."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Acceptance(Told):
    """Acceptance of one domain, or of all of them."""

    tau: Length
    """Tokens per verification round, the target's bonus token included: `1 + accepted / rounds`."""
    low: Length | None = None
    high: Length | None = None
    """Interval over prompts, at the level `confidence`; absent where there is none."""
    prompts: Annotated[int, Field(ge=0)]
    rounds: Annotated[int, Field(ge=0)]
    accepted: Annotated[int, Field(ge=0)]
    per_position: tuple[Share, ...] = ()
    """Share of rounds in which the token at each position was accepted, all before it included."""


class Setting(Told):
    """Under what one measurement was made; a field that nobody knows is absent."""

    engine: str | None = None
    """Name and version of the build, e.g. `vllm 0.32.0`; absent for a replay, which needs none."""
    runner: str | None = None
    dtype: str
    interpreter: bool = False
    """The kernels ran in Triton's interpreter: acceptance holds, speeds would mean nothing."""
    num_speculative_tokens: int | None = None
    draft_sample_method: str = ""
    rejection_sample_method: str = ""
    temperature: float
    top_p: float = 1.0
    seed: int | None = None
    concurrency: int | None = None
    """Requests in flight; absent for a replay."""
    max_num_seqs: int | None = None
    prefix_cache: bool | None = None
    thinking: bool = False
    max_new_tokens: int
    """Longest answer that was walked or asked for, tokens."""
    prompts: str | None = None
    """Digest of the prompts as token ids, in the order of asking."""
    toolkit_channel: str | None = None
    hardware: str | None = None


class AcceptanceMeasurement(Told):
    """Acceptance under one setting."""

    source: Literal["replay", "live"]
    """`replay`: the draft walked the target's own answers. `live`: counters of the engine."""
    setting: Setting
    domains: dict[str, Acceptance]
    """Measured domains only."""
    macro: Acceptance | None = None
    """Unweighted mean over domains; it has no positions."""
    pooled: Acceptance | None = None


class SpeedPoint(Told):
    """Speed of one arm at one load."""

    arm: str
    concurrency: int
    output_tokens_per_s: float
    tokens_per_s_per_user: float | None = None
    ttft_p50_ms: float | None = None
    tpot_p50_ms: float | None = None


class TargetNamed(Told):
    """The only target that the figures hold for."""

    name: str
    revision: str | None = None
    digest: str
    tokenizer_digest: str
    template_digest: str


class SpeculationProfile(Told):
    """The whole file."""

    format: Literal[1] = FORMAT
    name: str
    version: str
    run_id: str
    target: TargetNamed
    draft: dict[str, str]
    """Weights file -> SHA-256."""
    captures: str
    """Digest of the captures that the draft learned from and the prompts came from."""
    block_size: Annotated[int, Field(ge=1)]
    """Draft tokens of a whole block."""
    confidence: Annotated[float, Field(gt=0, lt=1)]
    measurements: tuple[AcceptanceMeasurement, ...]
    lossless: Lossless
    """Answers with the draft against the target's own."""
    speed: tuple[SpeedPoint, ...] | None = None
    """Absent where none was measured, or none may be published; `speed_absent` says why."""
    speed_absent: str = ""

    @model_validator(mode="after")
    def _speeds_or_why_not(self) -> SpeculationProfile:
        if bool(self.speed) == bool(self.speed_absent):
            raise ValueError("either `speed` or `speed_absent` says something, not both and not neither")
        return self

    @property
    def speed_is_withheld(self) -> bool:
        """Whether speeds must not be told, which is more than that none was measured."""
        return self.speed_absent not in ("", NOT_MEASURED)

    def measured(self, source: Literal["replay", "live"]) -> AcceptanceMeasurement | None:
        """The measurement of that kind, if there is one."""
        return next((one for one in self.measurements if one.source == source), None)


def read_speculation_profile(folder: Path) -> SpeculationProfile:
    """Read the file of a published folder.

    Raises:
        PublishError: It is missing, of a newer format, or says something that cannot be.
    """
    path = folder / FILE
    try:
        return SpeculationProfile.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PublishError(
            f"it cannot be read: {error.strerror}", where=str(path), hint="publish the draft again"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise PublishError(
            f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']} ({error.error_count()} in all)",
            where=str(path),
            hint="read it with the version of retrain-dspark that wrote it, or publish the draft again",
        ) from error


def text_of(profile: SpeculationProfile) -> str:
    """The file's text: what is not known is left out."""
    return profile.model_dump_json(indent=2, exclude_none=True) + "\n"
