"""Refusals about speculation_profile.json."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.errors import PublishError
from tasks.publish.refusals.models import Material, Refusal
from tasks.publish.speculation_build import acceptance
from tasks.publish.speculation_profile import FILE, read_speculation_profile


def profile_file_refusals(material: Material) -> Iterator[Refusal]:
    """It must be readable, and say what the evaluation says."""
    again = "run the publish stage again"
    try:
        found = read_speculation_profile(material.folder)
    except PublishError as error:
        yield Refusal(error.what, FILE, again)
        return
    for source, measured in (("replay", material.evaluation.replay), ("live", material.evaluation.live)):
        told = next((one for one in found.measurements if one.source == source), None)
        known = {name: acceptance(tau) for name, tau in measured.domains.items()}
        wanted = {name: one for name, one in known.items() if one is not None}
        if (told.domains if told else {}) != wanted:
            yield Refusal(f"its {source} acceptance is not that of the evaluation", FILE, again)
