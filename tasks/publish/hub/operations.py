"""The one commit that makes a branch hold a version: what is added, copied and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

from tasks.errors import PublishError
from tasks.publish.hub.contents import WEIGHTS, Blob, Tree, Version, changed
from tasks.publish.hub.repository import Operation, Repository


@dataclass(frozen=True)
class Stored:
    """A version as a commit of the repository holds it.

    Args:
        content: The bytes of one of its small files, their hash checked.
    """

    version: Version
    commit: str
    files: dict[str, Blob]
    content: Callable[[str], bytes]


def stored(repository: Repository, commit: str, version: Version) -> Stored:
    """The version that `commit` holds.

    Raises:
        PublishError: A file of it is not there.
    """
    tree = repository.tree(commit)
    missing = [path for path in version.files if path not in tree]
    if missing:
        raise PublishError(
            f"{version.name} is not whole on the hub: {', '.join(missing[:5])} missing",
            where=f"{repository.name}@{commit}",
            hint="publish it again from its folder",
        )
    files = {path: tree[path] for path in version.files}
    return Stored(version, commit, files, lambda path: repository.content(commit, path, files[path]))


def owned(*versions: Version | None) -> set[str]:
    """Files that any of the versions brings: what a release may change."""
    return {path for version in versions if version is not None for path in version.files}


def holds(tree: Tree, wanted: Stored, before: Version | None) -> bool:
    """Whether a branch holds the version, and no file that only the one before it had."""
    paths = owned(wanted.version, before)
    return not changed(tree, wanted.files, paths)


def moving(tree: Tree, wanted: Stored, before: Version | None) -> list[Operation]:
    """What turns a branch with `tree` into one that holds the version.

    A large file is named by its hash, so nothing is sent again; a small one goes along in the commit.
    """
    operations: list[Operation] = []
    for path in changed(tree, wanted.files, owned(wanted.version, before)):
        if path not in wanted.files:
            operations.append(CommitOperationDelete(path))
        elif wanted.files[path].sha256:
            operations.append(CommitOperationCopy(path, path, src_revision=wanted.commit))
        else:
            operations.append(CommitOperationAdd(path, wanted.content(path)))
    return operations


def deletions(tree: Tree, version: Version, before: Version | None) -> list[Operation]:
    """What the version before had and this one has not."""
    gone = owned(before) - owned(version)
    return [CommitOperationDelete(path) for path in sorted(gone) if path in tree]


def refuse_strangers(repository: str, tree: Tree, versions: Iterable[Version | None]) -> None:
    """Refuse a repository with weights that no manifest names: a server might load them.

    Raises:
        PublishError: With their names.
    """
    known = owned(*versions)
    strange = sorted(path for path in tree if path.endswith(WEIGHTS) and path not in known)
    if strange:
        raise PublishError(
            f"main holds weights that were not published by this tool: {', '.join(strange[:5])}",
            where=repository,
            hint="delete them there, or set publish.hub.repo to another repository; beside a new draft they "
            "would make a mixture",
        )
