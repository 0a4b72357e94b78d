"""Fetches a repository from a Hugging Face hub: its files, at a revision that is recorded.

What is cached already is used where the hub does not answer. No code is ever fetched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.errors import ServiceError, UsageError

RepoType = Literal["model", "dataset"]
_REPOSITORY = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class Snapshot:
    """Files of a repository on this machine."""

    folder: Path
    repository: str
    revision: str
    """Commit of the files."""


def is_repository(text: str) -> bool:
    """Whether a text can be `OWNER/NAME` on a hub."""
    return bool(_REPOSITORY.match(text))


def fetch(
    repository: str,
    *,
    kind: RepoType,
    patterns: Sequence[str],
    revision: str | None = None,
    field: str,
) -> Snapshot:
    """Fetch the files of a repository that match `patterns`, or take them from the cache.

    `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE` are followed.

    Args:
        field: Option or field that named it, for errors.

    Raises:
        UsageError: No such repository or revision, or no access to it.
        ServiceError: The hub cannot be reached and the cache has not got it, or the transfer broke off.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    where = f"{field}: {repository}"
    try:
        folder = snapshot_download(
            repository,
            repo_type=kind,
            revision=revision,
            cache_dir=os.environ.get("HF_HUB_CACHE"),
            allow_patterns=list(patterns),
            local_files_only=offline,
            endpoint=endpoint,
        )
    except HFValidationError as error:
        raise UsageError(
            f"'{repository}' cannot be a repository: {str(error).splitlines()[0]}",
            where=where,
            hint="give a folder that exists, or OWNER/NAME",
        ) from None
    except OSError as error:  # every other error of the hub's client is one
        known = _refused(error, f"'{repository}' on {endpoint}", kind, revision, where)
        raise known or _unreachable(error, repository, endpoint, offline, where) from None
    return _checked(Path(folder), repository, where)


def _refused(error: OSError, name: str, kind: str, revision: str | None, where: str) -> UsageError | None:
    """What the user can change, if that is why the hub refused."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return UsageError(
            f"{name} asks for an agreement first",
            where=where,
            hint="accept its terms on its page, then set HF_TOKEN to a token of that account",
        )
    if isinstance(error, RepositoryNotFoundError):
        return UsageError(
            f"there is no {kind} {name}, or it is private",
            where=where,
            hint="check the name; for a private one set HF_TOKEN",
        )
    if isinstance(error, RevisionNotFoundError):
        return UsageError(
            f"{name} has no revision '{revision}'",
            where=where,
            hint="name a branch, tag or commit that is on its page",
        )
    return None


def _unreachable(error: OSError, repository: str, endpoint: str, offline: bool, where: str) -> ServiceError:
    """What the network did."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError):
        why = "HF_HUB_OFFLINE is set" if offline else f"{endpoint} cannot be reached"
        return ServiceError(
            f"'{repository}' cannot be fetched: {why}, and the cache does not hold it",
            where=where,
            hint="connect this machine to the hub, or fetch it elsewhere (hf download) and give its folder",
        )
    text = str(error).strip()
    return ServiceError(
        f"'{repository}' cannot be fetched from {endpoint}: {text.splitlines()[0] if text else type(error)}",
        where=where,
        hint="try again; what came already is in the cache",
    )


def _checked(folder: Path, repository: str, where: str) -> Snapshot:
    if not _COMMIT.match(folder.name) or not folder.is_dir() or not any(folder.iterdir()):
        raise UsageError(
            f"'{repository}' holds none of the files that are needed",
            where=where,
            hint="is it the right repository?",
        )
    return Snapshot(folder, repository, folder.name)
