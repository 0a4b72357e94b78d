"""Before a run starts: who the token is, and whether it may write where the draft is to go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.publishing import Hub, Publish
from tasks.errors import UsageError
from tasks.publish.hub.refusals import HubRefused, token_place
from tasks.redaction import register_secret

if TYPE_CHECKING:
    from tasks.publish.hub.patience import Patience

_WRITING_ROLES = ("admin", "write", "contributor")
_WRITING = "repo.write"


@dataclass(frozen=True)
class Access:
    """What was found out."""

    account: str
    exists: bool
    """The repository is there; else it will be made."""


def checked_token(hub: Hub, text: str) -> str:
    """The token in `text`, masked in errors and logs from now on.

    Raises:
        UsageError: There is none.
    """
    token = text.strip()
    if not token:
        raise missing_token(hub)
    register_secret(token)
    return token


def check_before_run(publish: Publish) -> None:
    """Check a hub's token that a variable holds; one in a Prefect Secret is checked when the run opens.

    Raises:
        UsageError: There is none, or it may not write; with the remedy.
        PublishError: The hub does not answer.
    """
    hub = publish.hub if publish.kind == "hub" else None
    if hub is not None and not hub.token_secret:
        check_access(hub, checked_token(hub, os.environ.get(hub.token_env, "")))


def missing_token(hub: Hub) -> UsageError:
    return UsageError(
        f"there is no token for {hub.repo}: {token_place(hub)} is empty or not set",
        where="publish.hub.token_secret" if hub.token_secret else "publish.hub.token_env",
        hint=f"put a token with write access to {hub.repo} there; it is never written anywhere",
    )


def check_access(hub: Hub, token: str, patience: Patience | None = None) -> Access:
    """Ask the hub whether the token may write into the repository, or make it.

    Raises:
        UsageError: It may not; with what to do.
        PublishError: The hub does not answer.
    """
    from tasks.publish.hub.patience import Patience
    from tasks.publish.hub.repository import opened

    with opened(hub, token, patience or Patience(hub.attempts, hub.timeout_s)) as repository:
        try:
            account = repository.ask(repository.api.whoami)
            exists = repository.exists()
            if exists:
                repository.ask(lambda: repository.api.auth_check(hub.repo, write=True))
        except HubRefused as refused:
            reasons = {401: "the hub does not know the token", 403: "the token may not write into it"}
            if refused.status in reasons:
                raise _refused(hub, reasons[refused.status]) from None
            raise
    if reason := why_not_write(account) if exists else why_not_make(hub, account):
        raise _refused(hub, reason)
    return Access(str(account["name"]), exists)


def why_not_write(account: dict[str, Any]) -> str:
    """Why the token cannot write anywhere; empty if it may. `account` is what `whoami` tells."""
    role = account["auth"].get("accessToken", {}).get("role")
    return f"the token of {account['name']} may only read" if role == "read" else ""


def why_not_make(hub: Hub, account: dict[str, Any]) -> str:
    """Why the account cannot make the repository, or cannot see it; empty if it can.

    Args:
        account: What `whoami` tells.
    """
    owner = hub.repo.split("/")[0]
    name, token = account["name"], account["auth"].get("accessToken", {})
    roles = {one["name"]: one.get("roleInOrg") for one in account.get("orgs", [])}
    absent = "the repository does not exist or may not be seen, and"
    if reason := why_not_write(account):
        return f"{absent} {reason}"
    if token.get("role") == "fineGrained":
        scoped = token.get("fineGrained", {}).get("scoped", [])
        fits = [one for one in scoped if one.get("entity", {}).get("name") in (owner, hub.repo)]
        if not any(_WRITING in one.get("permissions", []) for one in fits):
            return f"{absent} the token of {name} has no permission to write for {owner}"
        return ""
    if owner != name and roles.get(owner) not in _WRITING_ROLES:
        return f"{absent} {name} may not make repositories for {owner}"
    return ""


def _refused(hub: Hub, reason: str) -> UsageError:
    return UsageError(
        f"nothing could be published in {hub.repo}: {reason}",
        where=token_place(hub),
        hint=f"put a token with write access to {hub.repo} there, or correct publish.hub.repo",
    )
