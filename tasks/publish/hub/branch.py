"""The candidate: a version on a side branch, in one commit, where nobody looks for it yet."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

from huggingface_hub import CommitOperationAdd

from tasks.errors import PublishError
from tasks.publish.hub.client import Unsure
from tasks.publish.hub.contents import Version
from tasks.publish.hub.mark import Mark
from tasks.publish.hub.operations import deletions, refuse_strangers
from tasks.publish.hub.repository import Commit, Moved, Refs, Repository
from tasks.publish.hub.transfers import upload

log = logging.getLogger("retrain_dspark")


def side_branch(version: Version) -> str:
    """Name of the version's own branch; no other run and no other content has it."""
    return f"release-{version.name}-{version.digest[:12]}"


def additions(folder: Path, version: Version) -> list[CommitOperationAdd]:
    """The version's files and no others."""
    return [CommitOperationAdd(path, str(folder / path)) for path in version.files]


def own_commit(history: list[Commit], version: Version) -> Commit | None:
    """The commit that brought exactly this version."""
    found = (one for one in history if one.mark and one.mark.manifest == version.digest)
    return next((one for one in found if one.mark and one.mark.kind == "candidate"), None)


def commit_candidate(
    repository: Repository, folder: Path, version: Version, refs: Refs, title: str
) -> Commit:
    """Let the side branch hold the version; what an earlier attempt did is found and not done again.

    The commit's mark remembers which commit of `main` the branch began from.

    Raises:
        PublishError: Somebody else committed to the branch, or the hub does not take the version.
    """
    branch = side_branch(version)
    if branch not in refs.branches:
        repository.make_branch(branch, repository.head())
    files = additions(folder, version)
    for tried in count(1):
        history = repository.history(branch)
        if own := own_commit(history, version):
            return refuse_foreign(repository, branch, history, own)
        base = history[0].id
        tree = repository.tree(base)
        before = repository.version_at(base, tree)
        refuse_strangers(repository.name, tree, (version, before))
        upload(repository, files, branch)
        mark = Mark("candidate", version.name, version.run, version.digest, base)
        try:
            changes = [*files, *deletions(tree, version, before)]
            commit = repository.commit(branch, changes, base, title, mark)
            log.info("publish: hub: %s is on the branch %s", version.name, branch)
            return Commit(commit, title, (), mark)
        except Moved:
            fault = f"the branch {branch} is moving"
        except Unsure as unsure:
            fault = f"{unsure}; whether the branch has the commit is looked up"
        repository.patience.wait(tried, fault, f"{repository.name}@{branch}")
    raise AssertionError("unreachable")


def refuse_foreign(repository: Repository, branch: str, history: list[Commit], own: Commit) -> Commit:
    """The commit of ours, if it is the branch's last."""
    if history[0].id != own.id:
        raise PublishError(
            f"somebody else committed '{history[0].title}' to the branch {branch}",
            where=f"{repository.name}@{branch}",
            hint="delete that branch on the hub and run the publish stage again",
        )
    return own
