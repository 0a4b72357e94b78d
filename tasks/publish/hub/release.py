"""Publishes a version's folder on a hub: candidate, read back, tag, and `main` last."""

from __future__ import annotations

from pathlib import Path

from profiles.publishing import Hub
from tasks.errors import PublishError
from tasks.publish.hub.branch import commit_candidate, own_commit, side_branch
from tasks.publish.hub.card_check import check_card
from tasks.publish.hub.contents import Version, version_in
from tasks.publish.hub.main_branch import Start, move_main
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.operations import stored
from tasks.publish.hub.patience import Patience
from tasks.publish.hub.pull_request import release_by_pull_request
from tasks.publish.hub.reading import Load, read_back
from tasks.publish.hub.repository import Commit, Refs, Repository, opened


def release(
    folder: Path, hub: Hub, *, token: str, load: Load, work: Path, patience: Patience | None = None
) -> HubRelease:
    """Publish the version in `folder`. Done again, it publishes nothing new and returns the same.

    Args:
        folder: A whole version: only what its manifest lists is sent.
        token: Handed in; it is written nowhere.
        load: Loads a fetched draft; raises if it does not load.
        work: Folder for files that are read back.

    Raises:
        PublishError: Nothing of it is on `main`, or all of it. The remedy is said; it can be run again.
    """
    version = version_in(folder)
    with opened(hub, token, patience or Patience(hub.attempts, hub.timeout_s)) as repository:
        check_card(repository, folder)
        repository.ensure()
        if hub.via == "pull_request":
            return release_by_pull_request(repository, folder, version, work, load)
        return _release_by_branch(repository, folder, version, work, load)


def _release_by_branch(
    repository: Repository, folder: Path, version: Version, work: Path, load: Load
) -> HubRelease:
    title = f"{version.manifest.get('name', 'draft')} {version.name}"
    candidate = tagged_candidate(repository, version, repository.refs())
    if candidate is None:
        candidate = commit_candidate(repository, folder, version, repository.refs(), title)
        read_back(repository, candidate.id, version, folder, work, load)
        if repository.make_tag(version.name, candidate.id) != candidate.id:
            raise tag_is_taken(repository, version)
    start = start_of(repository, candidate, version)
    wanted = stored(repository, candidate.id, version)
    moved = move_main(repository, wanted, start, "release", title)
    repository.drop_branch(side_branch(version))
    return HubRelease(
        repo=repository.name,
        via="branch",
        revision=version.name,
        commit=candidate.id,
        main_commit=moved.commit,
        previous=start.version.name if start.version else None,
        notes=moved.notes,
    )


def tagged_candidate(repository: Repository, version: Version, refs: Refs) -> Commit | None:
    """The version's commit, if an earlier attempt read it back and tagged it; None before that.

    Raises:
        PublishError: The tag is on something else.
    """
    commit = refs.tags.get(version.name)
    if commit is None:
        return None
    own = own_commit(repository.history(commit), version)
    if own is None or own.id != commit:
        raise tag_is_taken(repository, version)
    return own


def start_of(repository: Repository, candidate: Commit, version: Version) -> Start:
    """What `main` was when the candidate was made; its mark remembers it."""
    base = candidate.mark.base if candidate.mark else candidate.id
    held = repository.version_at(base, repository.tree(base))
    return Start(base, held, side_branch(version))


def tag_is_taken(repository: Repository, version: Version) -> PublishError:
    return PublishError(
        f"the hub has a {version.name} already, and it is another draft: another publication came first",
        where=f"{repository.name}@{version.name}",
        hint="this draft was not compared with that one: start a new run, which measures it; or, to publish "
        f"this one all the same, delete the branch {side_branch(version)} there, if it exists, and resume: "
        "it gets the next number",
    )
