"""The metadata of a model card: what a hub reads, checked by `huggingface_hub`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport
from tasks.publish.licenses import license_fields
from tasks.publish.privacy import target_name

TAGS = ("speculative-decoding", "dspark", "speculators")
RELATION = "adapter"
"""A draft works only on its target and changes none of its weights; a `finetune` would replace it."""


def metadata(profile: Profile, evaluation: EvaluationReport, captures: str) -> ModelCardData:
    """Metadata with one acceptance-length result a domain; what is not known is left out.

    Args:
        captures: Digest of the captures, the revision of the data that was measured on.
    """
    card = profile.publish.card
    optional: dict[str, Any] = {**license_fields(profile.publish.license)}
    if card.language:
        optional["language"] = list(card.language)
    return ModelCardData(
        base_model=target_name(profile),
        base_model_relation=RELATION,
        library_name="speculators",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys((*TAGS, *card.tags))),
        model_name=profile.publish.name,
        eval_results=list(results(evaluation, captures)) or None,
        **optional,
    )


def results(evaluation: EvaluationReport, captures: str) -> Iterator[EvalResult]:
    """One result for each domain that was measured; a value that is no number is no result."""
    shown = evaluation.shown
    how = "replay" if shown is evaluation.replay else "live"
    taken: set[str] = set()
    for domain, tau in shown.domains.items():
        if tau.value is None or not math.isfinite(tau.value):
            continue
        yield EvalResult(
            task_type="text-generation",
            task_name="Speculative decoding",
            dataset_type=_identifier(domain, taken),
            dataset_name=domain,
            dataset_revision=captures,
            metric_type="acceptance_length",
            metric_name=f"Acceptance length ({how}, bonus token included)",
            metric_value=round(tau.value, 4),
            metric_config=f"draft tokens {evaluation.block_size}, temperature {evaluation.temperature:g}",
        )


def _identifier(domain: str, taken: set[str]) -> str:
    """A domain's name as the hub takes it; results with one identifier would be merged into one."""
    plain = re.sub(r"[^\w.-]+", "-", domain, flags=re.A).strip("-.") or "domain"
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    taken.add(name)
    return name
