"""Refusals about figures: acceptance that nobody earned, and speeds that nobody may publish."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tasks.evaluate.models import EvaluationReport
from tasks.publish.refusals.models import Material, Refusal, read_object
from tasks.validate.models import ValidationReport

PREVIEW = "preview"
_FAKED = re.compile(r"synthetic[_-]?(?:acceptance|rejection)", re.I)
_SPEED = re.compile(
    r"\d(?:[\d.,]*\d)?\s*(?:"
    r"(?:output\s+)?tok(?:en)?s?\s*(?:/|per\s+)\s*s(?:ec(?:ond)?)?\b"
    r"|(?:requests?|req)\s*(?:/|per\s+)\s*s(?:ec(?:ond)?)?\b"
    r"|ms\b|milliseconds?\b|s\b(?=\s+(?:at|for|to|per))|seconds?\b"
    r"|[x\u00d7](?!\w)|times\s+(?:faster|slower)|%\s+(?:faster|slower)"
    r")",
    re.I,
)
"""A number with a unit of speed or time, or a ratio of speeds."""


def speed_obstacle(evaluation: EvaluationReport, validation: ValidationReport) -> str:
    """Why no speed of this evaluation may be published; empty where they may."""
    detail = evaluation.arms_detail
    channels = {validation.toolkit_channel}
    interpreted = any(not arm.speed_is_meaningful for arm in evaluation.arms)
    for arm in detail.arms if detail else ():
        if arm.conditions is not None:
            channels.add(arm.conditions.toolkit_channel)
            interpreted = interpreted or arm.conditions.interpreter
    if PREVIEW in channels:
        return "the CUDA toolkit is a developer preview, whose terms forbid publishing speeds"
    if interpreted or (evaluation.load is not None and not evaluation.load.speed_is_meaningful):
        return "the kernels ran in Triton's interpreter on the CPU, whose speeds mean nothing"
    return ""


def speeds_in(text: str) -> list[str]:
    """Figures of speed or time in a text, in order."""
    return [match.group() for match in _SPEED.finditer(text)]


def measured_refusals(material: Material) -> Iterator[Refusal]:
    """Everything that speaks against the published figures."""
    yield from synthetic_refusals(material)
    if reason := speed_obstacle(material.evaluation, material.validation):
        yield from speed_refusals(material, reason)


def synthetic_refusals(material: Material) -> Iterator[Refusal]:
    """An engine that accepts without verifying, among what was measured or is told to users."""
    remedy = "measure again with rejection_sample_method standard or block, without synthetic options"
    evaluation = material.evaluation
    if fakes(evaluation.rejection_sample_method):
        yield Refusal("acceptance was synthetic: tokens were accepted without verifying", "evaluate", remedy)
    detail = evaluation.arms_detail
    for arm in detail.arms if detail else ():
        if arm.conditions is not None and fakes(arm.conditions.rejection_sample_method):
            yield Refusal(f"arm {arm.name} accepted without verifying", f"evaluate: {arm.name}", remedy)
    for report in evaluation.arms:
        if any(_FAKED.search(word) for word in report.argv):
            yield Refusal(
                f"arm {report.name} ran with synthetic acceptance", f"evaluate: {report.name}", remedy
            )
    for name in ("serve.json", "config.json", "speculation_profile.json"):
        if told := sorted(set(_faking_keys(read_object(material.folder / name)))):
            yield Refusal(f"it sets {', '.join(told)}", name, remedy)


def fakes(method: str) -> bool:
    """Whether a rejection method accepts what it did not verify."""
    return method.strip().lower() == "synthetic"


def _faking_keys(value: Any) -> Iterator[str]:
    """Options of synthetic acceptance anywhere in a JSON value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if _FAKED.search(str(key)) or (key == "rejection_sample_method" and fakes(str(inner))):
                yield str(key)
            yield from _faking_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _faking_keys(inner)
    elif isinstance(value, str) and _FAKED.search(value):
        yield value[:80]


def speed_refusals(material: Material, reason: str) -> Iterator[Refusal]:
    """Speeds in the card or the speculation profile, though they may not be published."""
    remedy = (
        "remove the figure from the text it stands in (publish.card), "
        "or measure on real kernels with a released toolkit"
    )
    for name, text in _published_texts(material):
        if found := speeds_in(text):
            yield Refusal(f"it tells a speed ({', '.join(found[:3])}), but {reason}", name, remedy)
    speed = read_object(material.folder / "speculation_profile.json").get("speed")
    if speed:
        yield Refusal(f"it holds speeds, but {reason}", "speculation_profile.json", remedy)


def _published_texts(material: Material) -> Iterable[tuple[str, str]]:
    """The card without its listings, whose settings are no measurements (`stall_timeout_s: 300 s`)."""
    card = material.folder / "README.md"
    if card.is_file():
        yield "README.md", without_listings(card.read_text(encoding="utf-8", errors="replace"))


def without_listings(text: str) -> str:
    """Markdown without its metadata and fenced blocks."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    return re.sub(r"^```.*?^```", "", body, flags=re.S | re.M)
