"""Who a token is and what it may do: `tokens.json` of the hub's folder.

{"hf_writer": {"name": "lab", "role": "write", "orgs": {"team": "write", "club": "read"}}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from repositories import Refused, Repository


def account(root: Path, authorization: str) -> dict[str, Any] | None:
    """The account of a request; None without a token."""
    token = authorization.removeprefix("Bearer ").strip()
    if not token:
        return None
    known = json.loads((root / "tokens.json").read_text(encoding="utf-8"))
    if token not in known:
        raise Refused(401, "Invalid credentials in Authorization header")
    return known[token]


def who(found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        raise Refused(401, "Invalid username or password.")
    return {
        "type": "user",
        "name": found["name"],
        "orgs": [{"name": name, "roleInOrg": role} for name, role in found.get("orgs", {}).items()],
        "auth": {
            "type": "access_token",
            "accessToken": {
                "displayName": "a token",
                "role": found["role"],
                **({"fineGrained": found["fineGrained"]} if "fineGrained" in found else {}),
            },
        },
    }


def may_write(found: dict[str, Any] | None, name: str) -> bool:
    """Whether the account may write into repositories of the owner of `name`."""
    if found is None:
        return False
    owner = name.split("/")[0]
    if found["role"] == "fineGrained":
        scoped = found.get("fineGrained", {}).get("scoped", [])
        return any(
            one["entity"]["name"] in (owner, name) and "repo.write" in one["permissions"] for one in scoped
        )
    mine = owner == found["name"] or found.get("orgs", {}).get(owner) in ("admin", "write", "contributor")
    return found["role"] == "write" and mine


def check(found: dict[str, Any] | None, repository: Repository, *, write: bool) -> None:
    """Refuse what the account may not do."""
    belongs = found is not None and repository.name.split("/")[0] in (found["name"], *found.get("orgs", {}))
    if not repository.exists or (repository.state()["private"] and not belongs):
        raise Refused(404, "Repository not found", "RepoNotFound")
    if write and not may_write(found, repository.name):
        raise Refused(403, "you need to be authorized to write into this repository")
