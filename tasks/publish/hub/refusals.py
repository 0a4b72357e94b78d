"""What a hub's refusal means for the user: what happened, where, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.publishing import Hub
from tasks.errors import PublishError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


def token_place(hub: Hub) -> str:
    """Where the token comes from, in words; never the token."""
    if hub.token_secret:
        return f"the Prefect Secret '{hub.token_secret}'"
    return f"the environment variable {hub.token_env}"


class HubRefused(PublishError):
    """An answer that no waiting changes. `missing`: the repository is not there, or may not be seen."""

    status = 0
    missing = False


def refusal(error: HfHubHTTPError, hub: Hub) -> HubRefused:
    """The error of an answer that no waiting changes."""
    from huggingface_hub.errors import RepositoryNotFoundError

    status = error.response.status_code
    told = (error.server_message or "").splitlines()
    what = f"the hub answered {status}" + (f": {told[0][:200]}" if told else "")
    found = HubRefused(what, where=hub.repo, hint=_remedies(hub).get(status, _OTHERWISE))
    found.status, found.missing = status, isinstance(error, RepositoryNotFoundError)
    return found


_OTHERWISE = "look at the repository's page; then run the publish stage again"


def _remedies(hub: Hub) -> dict[int, str]:
    place = token_place(hub)
    return {
        400: "correct what the hub names; for the card that is publish.card and publish.license",
        401: f"put a valid token with write access to {hub.repo} into {place}",
        402: "the owner's plan or its payment does not allow this; look at the account's billing page",
        403: f"let the account of the token in {place} write into {hub.repo}, or put another token there",
        404: f"check publish.hub.repo; the token in {place} may not see {hub.repo}",
        413: "the hub takes no files of this size; publish a smaller draft, or into a folder",
    }


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
