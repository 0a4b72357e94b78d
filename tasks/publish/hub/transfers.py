"""Large files, to the hub and back: repeated until they are through, and what arrived is not sent again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError

from tasks.errors import PublishError
from tasks.publish.hub.client import UploadFailed
from tasks.publish.hub.contents import Version
from tasks.publish.hub.refusals import first_line, refusal
from tasks.publish.hub.repository import Repository

Kind = TypeVar("Kind", bound=BaseException)


def upload(
    repository: Repository,
    additions: Sequence[CommitOperationAdd],
    branch: str,
    pull_request: bool = False,
) -> None:
    """Send what the hub has not got of the large files; nothing is visible yet.

    Raises:
        PublishError: The hub refuses a file, or stays away.
    """
    _transfer(
        repository,
        "an upload",
        lambda: repository.api.preupload_lfs_files(
            repository.name, additions, revision=branch, create_pr=pull_request
        ),
    )


def download(repository: Repository, commit: str, version: Version, folder: Path) -> None:
    """Fetch a version's files by commit id into `folder`; pieces that came before are kept.

    Raises:
        PublishError: The hub refuses them, or stays away.
    """
    _transfer(
        repository,
        "a download",
        lambda: repository.api.snapshot_download(
            repository.name, revision=commit, local_dir=folder, allow_patterns=list(version.files)
        ),
    )


def _transfer(repository: Repository, what: str, call: Callable[[], object]) -> None:
    tried = 0
    while True:
        tried += 1
        try:
            repository.ask(call)
            return
        except (httpx2.HTTPError, RuntimeError, OSError) as error:  # hf-xet's errors are RuntimeErrors too
            if known := _cause(error, PublishError):
                raise known from None
            if (answer := _cause(error, HfHubHTTPError)) and not _passing(answer):
                raise refusal(answer, repository.hub) from None
            broken = _cause(error, UploadFailed)
            fault = f"{what} failed ({first_line(broken or error)})"
            repository.patience.wait(tried, fault, repository.name, broken.asked_s if broken else None)


def _cause(error: BaseException | None, kind: type[Kind]) -> Kind | None:
    """The first error of a kind among an error and what it came from."""
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def _passing(error: HfHubHTTPError) -> bool:
    return error.response.status_code in (408, 429) or error.response.status_code >= 500
