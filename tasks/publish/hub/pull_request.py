"""The pull request: opened once, checked like a release, merged by people."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from huggingface_hub import Discussion

from tasks.errors import PublishError
from tasks.publish.hub.branch import additions, own_commit
from tasks.publish.hub.client import Unsure
from tasks.publish.hub.contents import Version
from tasks.publish.hub.mark import Mark
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.operations import deletions, refuse_strangers
from tasks.publish.hub.reading import Load, read_back
from tasks.publish.hub.repository import MAIN, Moved, Repository
from tasks.publish.hub.transfers import upload

log = logging.getLogger("retrain_dspark")


def release_by_pull_request(
    repository: Repository, folder: Path, version: Version, work: Path, load: Load
) -> HubRelease:
    """Open a pull request with the version, or find the one that is there; read it back and load it.

    Raises:
        PublishError: People closed it, or the hub does not hold what was sent.
    """
    number = _opened(repository, folder, version)
    revision = f"refs/pr/{number}"
    history = repository.history(revision)
    own = own_commit(history, version)
    if own is None or own.id != history[0].id:
        raise PublishError(
            f"somebody else committed '{history[0].title}' to pull request {number}",
            where=f"{repository.name}@{revision}",
            hint="look at it there; close it to have another one opened by another run",
        )
    read_back(repository, own.id, version, folder, work, load)
    _close_others(repository, version, number)
    before = repository.version_at(own.mark.base, repository.tree(own.mark.base)) if own.mark else None
    return HubRelease(
        repo=repository.name,
        via="pull_request",
        revision=revision,
        commit=own.id,
        pull_request=number,
        previous=before.name if before else None,
    )


def title_of(version: Version) -> str:
    """Title by which a pull request is found again: name, version, and which content."""
    return f"{version.manifest.get('name', 'draft')} {version.name} ({version.digest[:12]})"


def _opened(repository: Repository, folder: Path, version: Version) -> int:
    """Number of the version's pull request."""
    files = additions(folder, version)
    for tried in count(1):
        if (found := _found(repository, version)) is not None:
            return found
        head = repository.head(MAIN)
        tree = repository.tree(head)
        before = repository.version_at(head, tree)
        refuse_strangers(repository.name, tree, (version, before))
        upload(repository, files, MAIN, pull_request=True)
        mark = Mark("candidate", version.name, version.run, version.digest, head)
        try:
            changes = [*files, *deletions(tree, version, before)]
            number = repository.open_pull_request(changes, head, title_of(version), mark)
            log.info("publish: hub: %s is pull request %d", version.name, number)
            return number
        except Moved:
            fault = "the branch is moving: others commit to main all the time"
        except Unsure as unsure:
            fault = f"{unsure}; whether the pull request was opened is looked up"
        repository.patience.wait(tried, fault, repository.name)
    raise AssertionError("unreachable")


def _own(repository: Repository, version: Version) -> Sequence[Discussion]:
    """The version's pull requests, the oldest first."""
    found = repository.ask(
        lambda: list(repository.api.get_repo_discussions(repository.name, discussion_type="pull_request"))
    )
    return sorted((one for one in found if one.title == title_of(version)), key=lambda one: one.num)


def _found(repository: Repository, version: Version) -> int | None:
    """The oldest one that is open or merged.

    Raises:
        PublishError: There is one, and people closed it: opening another would not respect that.
    """
    own = _own(repository, version)
    alive = [one.num for one in own if one.status != "closed"]
    if own and not alive:
        raise PublishError(
            f"pull request {own[0].num} with {version.name} was closed",
            where=repository.name,
            hint="reopen it on the hub and run the publish stage again, or leave the draft unpublished",
        )
    return alive[0] if alive else None


def _close_others(repository: Repository, version: Version, kept: int) -> None:
    """Close what a request that arrived late has opened besides."""
    for one in _own(repository, version):
        if one.num != kept and one.status in ("open", "draft"):
            repository.ask(
                lambda number=one.num: repository.api.change_discussion_status(  # type: ignore[misc]
                    repository.name, number, "closed", comment=f"The same as pull request {kept}."
                )
            )
            log.info("publish: hub: pull request %d, opened twice, is closed", one.num)
