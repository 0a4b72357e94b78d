"""Refusals about the card: license, target, sections and metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from huggingface_hub import ModelCard

from tasks.publish.refusals.measured import without_listings
from tasks.publish.refusals.models import Material, Refusal
from tasks.publish.refusals.words import is_path, profile_refusals

CARD = "README.md"
SECTIONS = (
    "Overview",
    "Architecture",
    "Intended use and limits",
    "Usage",
    "Evaluation",
    "Training data",
    "Training procedure",
    "Hardware and software",
    "Provenance",
    "License",
    "Citation",
)
"""Headings that a card must have, each with a text below."""
_FIELDS = ("license", "base_model", "base_model_relation", "library_name", "pipeline_tag", "tags")


def card_refusals(material: Material) -> Iterator[Refusal]:
    """Everything that speaks against the folder's card."""
    yield from profile_refusals(material.profile)
    path = material.folder / CARD
    if not path.is_file():
        yield Refusal("the card is missing", CARD, "run the publish stage again")
        return
    text = path.read_text(encoding="utf-8")
    try:
        data = ModelCard(text).data.to_dict()
    except (ValueError, TypeError, yaml.YAMLError) as error:
        yield Refusal(
            f"the card's metadata is not valid: {str(error).splitlines()[0]}",
            CARD,
            "correct publish.card and publish.license",
        )
        return
    yield from metadata_refusals(data)
    yield from result_refusals(material, data)
    for section in empty_sections(text):
        yield Refusal(f"the card is incomplete: '{section}' says nothing", CARD, _remedy(section))
    body = without_listings(text)
    odd = [line.strip() for line in body.splitlines() if re.search(r"\b(?:None|NaN|nan)\b", line)]
    if odd:
        yield Refusal(f"the card shows a value that is none: {odd[0][:80]}", CARD, "leave that value out")


def _remedy(section: str) -> str:
    fields = {"License": "publish.license", "Citation": "publish.card.citation"}
    return f"set {fields[section]}" if section in fields else "run the publish stage again"


def metadata_refusals(data: Mapping[str, Any]) -> Iterator[Refusal]:
    """Fields that are missing, empty or null."""
    for field in _FIELDS:
        if not data.get(field):
            setting = "publish.license" if field == "license" else "publish.card"
            yield Refusal(f"the card's metadata has no {field}", f"{CARD}: {field}", f"set {setting}")
    if data.get("license") == "other" and not data.get("license_name"):
        yield Refusal(
            "the license has no name",
            f"{CARD}: license_name",
            "write the license's name into publish.license",
        )
    if is_path(str(data.get("base_model") or "")):
        yield Refusal(
            "the base model is a path of this machine",
            f"{CARD}: base_model",
            "set publish.card.base_model to the target's OWNER/NAME",
        )
    if nulls := [str(name) for name, value in data.items() if value is None]:
        yield Refusal(f"metadata without a value: {', '.join(nulls)}", CARD, "leave them out")


def result_refusals(material: Material, data: Mapping[str, Any]) -> Iterator[Refusal]:
    """`model-index` must repeat every measured domain, and only figures."""
    results = [result for model in data.get("model-index") or () for result in model.get("results") or ()]
    told = {str((result.get("dataset") or {}).get("name")): result for result in results}
    measured = material.evaluation.shown.domains
    wanted = {name for name, tau in measured.items() if tau.value is not None and math.isfinite(tau.value)}
    if wanted != set(told):
        odd = sorted(wanted ^ set(told))
        yield Refusal(
            f"the card's results and the evaluation differ in {', '.join(odd[:5])}",
            f"{CARD}: model-index",
            "run the publish stage again",
        )
    for name, result in told.items():
        values = [metric.get("value") for metric in result.get("metrics") or ()]
        if not values or not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            yield Refusal(
                f"the result of {name} is no number", f"{CARD}: model-index", "leave the domain out"
            )


def empty_sections(text: str) -> list[str]:
    """Required headings that are missing, or have nothing below."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    parts = re.split(r"^## +(.+?)\s*$", body, flags=re.M)
    filled = {title for title, below in zip(parts[1::2], parts[2::2], strict=True) if below.strip()}
    return [section for section in SECTIONS if section not in filled]
