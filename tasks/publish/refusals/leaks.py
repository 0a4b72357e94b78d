"""Refusals about what a folder would give away: secrets, paths and names of machines."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.publish.refusals.models import Material, Refusal
from tasks.publish.scan.detectors import detected
from tasks.publish.scan.places import machine_names, machine_paths, places_in
from tasks.publish.scan.texts import readings, text_of
from tasks.redaction import known_secrets
from tasks.secret_forms import holds

_NAMES = "publish names, not places; look in publish.card, the notes of the run and its settings"
_SECRETS = "remove it, name its variable instead, and replace the secret: it was written to disk"


def leak_refusals(material: Material) -> Iterator[Refusal]:
    """Every secret and every place in any file, plain, encoded or broken over lines.

    A secret is named by its kind, never repeated.
    """
    paths = machine_paths(material.private_folders)
    told = material.profile.model_dump(mode="json")
    names = machine_names(material.validation.facts, *material.validation.nodes, told)
    secrets = known_secrets()
    for path in material.files:
        name = material.name(path)
        if path.is_symlink():
            continue  # a refusal already, and what it points at does not go out
        text = text_of(path)
        seen = readings(text)
        if any(holds(seen, secret) for secret in secrets):
            yield Refusal("a secret of the environment stands in a file", name, _SECRETS)
        for kind in dict.fromkeys(detected(path.name, text, seen)):
            yield Refusal(f"it seems to hold {kind}", name, _SECRETS)
        places = dict.fromkeys(place for reading in seen for place in places_in(reading, paths, names))
        for place in places:
            yield Refusal(f"{place} stands in a file", name, _NAMES)
