"""Refusals about what a profile says for the card."""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiles.schema import Profile
from tasks.publish.licenses import NOTHING_SAID
from tasks.publish.refusals.models import Refusal

_LANGUAGE = re.compile(r"^[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*$|^multilingual$|^code$")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_PATH_LIKE = re.compile(r"^(?:[/~.\\]|[A-Za-z]:[\\/]|file:)|\\|/.*/|/$")


def is_path(name: str) -> bool:
    """Whether a name says where something lies on a machine."""
    return bool(_PATH_LIKE.search(name))


def is_repository(name: str) -> bool:
    """Whether it is `OWNER/NAME`."""
    return bool(_HUB_ID.match(name))


def profile_refusals(profile: Profile) -> Iterator[Refusal]:
    """What the profile does not say, or says in a way that no hub takes."""
    publish = profile.publish
    if publish.license.strip().lower() in NOTHING_SAID:
        yield Refusal(
            "the draft's license is missing",
            "publish.license",
            "write an identifier such as apache-2.0, or the name of your license",
        )
    if publish.card.base_model is not None and is_path(publish.card.base_model):
        yield Refusal(
            "the base model is a path of this machine", "publish.card.base_model", "write OWNER/NAME"
        )
    wrong = [code for code in publish.card.language if not _LANGUAGE.match(code)]
    if wrong:
        yield Refusal(
            f"'{wrong[0]}' is no language code", "publish.card.language", "write codes such as en or zh"
        )
