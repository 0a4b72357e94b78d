"""Makes `speculation_profile.json` from an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from profiles.schema import Profile
from tasks.evaluate.conditions import UNKNOWN
from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.publish.privacy import target_name
from tasks.publish.refusals.measured import speed_obstacle
from tasks.publish.speculation_profile import (
    NOT_MEASURED,
    Acceptance,
    AcceptanceMeasurement,
    Setting,
    SpeculationProfile,
    SpeedPoint,
    TargetNamed,
)
from tasks.serve.models import TargetIdentity
from tasks.validate.models import ValidationReport

_PRIVATE = frozenset({"engine_arguments", "draft", "target", "method"})
"""Of the conditions: the profile's own arguments may name a place; the others stand once for all."""


@dataclass(frozen=True)
class MadeFrom:
    """What the file is made from.

    Args:
        revision: Revision of the target; empty if nobody pinned it.
        weights: Weights file -> SHA-256.
        captures: Digest of the captures.
    """

    profile: Profile
    version: str
    run_id: str
    evaluation: EvaluationReport
    identity: TargetIdentity
    validation: ValidationReport
    revision: str
    weights: Mapping[str, str]
    captures: str


def speculation_profile(inputs: MadeFrom) -> SpeculationProfile:
    """Acceptance by domain and condition; speeds only where they may be published."""
    evaluation, identity = inputs.evaluation, inputs.identity
    measured = (
        measurement("replay", evaluation.replay, replay_setting(inputs)),
        measurement("live", evaluation.live, live_setting(inputs)),
    )
    obstacle = speed_obstacle(evaluation, inputs.validation)
    points = () if obstacle else speeds(evaluation)
    return SpeculationProfile(
        name=inputs.profile.publish.name,
        version=inputs.version,
        run_id=inputs.run_id,
        target=TargetNamed(
            name=target_name(inputs.profile),
            revision=inputs.revision or None,
            digest=identity.model_digest,
            tokenizer_digest=identity.tokenizer_digest,
            template_digest=identity.template_digest,
        ),
        draft=dict(inputs.weights),
        captures=inputs.captures,
        block_size=evaluation.block_size,
        confidence=inputs.profile.evaluate.confidence,
        measurements=tuple(one for one in measured if one is not None),
        lossless=evaluation.lossless,
        speed=points or None,
        speed_absent=obstacle or ("" if points else NOT_MEASURED),
    )


def acceptance(tau: TauEstimate) -> Acceptance | None:
    """One estimate; None where nothing was measured, or no finite number came out."""
    if tau.value is None or not math.isfinite(tau.value):
        return None
    return Acceptance(
        tau=tau.value,
        low=_finite(tau.low),
        high=_finite(tau.high),
        prompts=tau.prompts,
        rounds=tau.rounds,
        accepted=tau.accepted,
        per_position=tau.per_position,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def measurement(
    source: Literal["replay", "live"], found: Measurement, setting: Setting
) -> AcceptanceMeasurement | None:
    """One measurement; None where it measured nothing."""
    known = {name: acceptance(tau) for name, tau in found.domains.items()}
    domains = {name: one for name, one in known.items() if one is not None}
    pooled = acceptance(found.pooled)
    if pooled is None and not domains:
        return None
    macro = acceptance(found.macro)
    return AcceptanceMeasurement(source=source, setting=setting, domains=domains, macro=macro, pooled=pooled)


def live_setting(inputs: MadeFrom) -> Setting:
    """The setting of the arm that is decided about; the profile's where its conditions were not recorded."""
    evaluation, live = inputs.evaluation, inputs.profile.evaluate.live
    detail = evaluation.arms_detail
    arm = detail.named(evaluation.decided) if detail else None
    if arm is not None and arm.conditions is not None:
        known = arm.conditions.model_dump(exclude=set(_PRIVATE))
        return Setting.model_validate({k: v for k, v in known.items() if v not in (None, UNKNOWN)})
    return Setting(
        engine=inputs.identity.engine,
        dtype=live.dtype,
        interpreter=live.triton_interpreter,
        num_speculative_tokens=evaluation.block_size,
        draft_sample_method=evaluation.draft_sample_method,
        rejection_sample_method=evaluation.rejection_sample_method,
        temperature=evaluation.temperature,
        concurrency=live.concurrency,
        max_num_seqs=live.max_num_seqs,
        thinking=inputs.profile.prompts.thinking,
        max_new_tokens=live.max_new_tokens,
    )


def replay_setting(inputs: MadeFrom) -> Setting:
    """Replay computes in float32, drafts greedily, and needs no engine."""
    settings = inputs.profile.evaluate
    return Setting(
        dtype="float32",
        num_speculative_tokens=inputs.evaluation.block_size,
        draft_sample_method="greedy",
        temperature=0.0,
        thinking=inputs.profile.prompts.thinking,
        max_new_tokens=settings.replay_max_new_tokens,
    )


def speeds(evaluation: EvaluationReport) -> tuple[SpeedPoint, ...]:
    """Every usable point of the load sweep."""
    return tuple(
        SpeedPoint(
            arm=point.arm,
            concurrency=point.concurrency,
            output_tokens_per_s=point.output_tokens_per_s,
            tokens_per_s_per_user=point.tokens_per_s_per_user,
            ttft_p50_ms=point.ttft_ms.p50,
            tpot_p50_ms=point.tpot_ms.p50,
        )
        for point in (evaluation.load.points if evaluation.load else ())
        if point.usable
    )
