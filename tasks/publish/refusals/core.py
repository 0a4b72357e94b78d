"""Everything that speaks against publishing a folder, all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.publish.refusals.card import card_refusals
from tasks.publish.refusals.config import config_refusals
from tasks.publish.refusals.files import file_refusals
from tasks.publish.refusals.leaks import leak_refusals
from tasks.publish.refusals.measured import measured_refusals
from tasks.publish.refusals.models import Material, Refusal, refuse
from tasks.publish.refusals.profile_file import profile_file_refusals
from tasks.publish.refusals.weights import weight_refusals

CHECKS: tuple[Callable[[Material], Iterator[Refusal]], ...] = (
    weight_refusals,
    config_refusals,
    measured_refusals,
    card_refusals,
    profile_file_refusals,
    file_refusals,
    leak_refusals,
)


def refusals(material: Material) -> list[Refusal]:
    """Every reason against publishing the folder, in the order of the checks."""
    return [refusal for check in CHECKS for refusal in check(material)]


def refuse_folder(material: Material) -> None:
    """Refuse what must not go out.

    Raises:
        GateRefused: Names every reason with its remedy.
    """
    refuse(refusals(material))
