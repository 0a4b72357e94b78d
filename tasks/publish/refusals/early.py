"""What speaks against publishing is said before hours of work where the profile alone tells it."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.schema import Profile
from tasks.errors import ProfileError
from tasks.publish.privacy import target_name
from tasks.publish.refusals.models import Refusal
from tasks.publish.refusals.words import is_repository, profile_refusals


def refuse_unpublishable(profile: Profile) -> None:
    """Refuse a profile whose draft could never go out.

    Raises:
        ProfileError: Names every field with its remedy.
    """
    found = list(early_refusals(profile))
    if found:
        raise ProfileError(
            "; ".join(one.what for one in found),
            where=", ".join(one.where for one in found),
            hint="; ".join(dict.fromkeys(one.remedy for one in found)),
        )


def early_refusals(profile: Profile) -> Iterator[Refusal]:
    """License, languages and names; for a hub also whether strangers can find the target."""
    yield from profile_refusals(profile)
    if profile.publish.kind != "hub":
        return
    if not is_repository(target_name(profile)):
        yield Refusal(
            "the target has no name on a hub, so nobody else can find it",
            "publish.card.base_model",
            "set publish.card.base_model to the target's OWNER/NAME",
        )
    if not profile.target.revision:
        yield Refusal(
            "the target's revision is missing: its next one may accept less",
            "target.revision",
            "set target.revision to the commit that the weights came from",
        )
