"""Takes `main` of a hub's repository back to an earlier version."""

from __future__ import annotations

from profiles.publishing import Hub
from tasks.errors import PublishError
from tasks.publish.hub.contents import Version
from tasks.publish.hub.main_branch import Start, move_main
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.operations import Stored, holds, stored
from tasks.publish.hub.patience import Patience
from tasks.publish.hub.repository import Refs, Repository, opened


def roll_back(hub: Hub, *, token: str, leaving: str, to: str, patience: Patience | None = None) -> HubRelease:
    """Let `main` hold `to` again, in one commit. Done again, or after a kill, it changes nothing more.

    Tags stay: `leaving` can still be looked at, and be released again.

    Args:
        leaving: Version that `main` holds now, e.g. `v0003`.
        to: Version that it is to hold, by its tag.

    Raises:
        PublishError: A tag is missing, or `main` holds something else than either.
    """
    with opened(hub, token, patience or Patience(hub.attempts, hub.timeout_s)) as repository:
        refs = repository.refs()
        left, wanted = tagged(repository, refs, leaving), tagged(repository, refs, to)
        head = repository.head()
        tree = repository.tree(head)
        done = holds(tree, wanted, left.version)
        if not done and not holds(tree, left, wanted.version):
            raise _elsewhere(repository, repository.version_at(head, tree), leaving, to)
        start = Start(head, wanted.version if done else left.version)
        moved = move_main(repository, wanted, start, "rollback", f"Back from {leaving} to {to}")
        return HubRelease(
            repo=repository.name,
            via="branch",
            revision=to,
            commit=wanted.commit,
            main_commit=moved.commit,
            previous=leaving,
            notes=moved.notes,
        )


def tagged(repository: Repository, refs: Refs, tag: str) -> Stored:
    """The version under a tag.

    Raises:
        PublishError: There is no such tag, or it holds no version.
    """
    commit = refs.tags.get(tag)
    if commit is None:
        raise PublishError(
            f"{repository.name} has no tag {tag}",
            where=repository.name,
            hint=f"its tags are: {', '.join(sorted(refs.tags)) or 'none'}",
        )
    version = repository.version_at(commit, repository.tree(commit))
    if version is None:
        raise PublishError(
            f"the tag {tag} holds no version of this tool",
            where=f"{repository.name}@{tag}",
            hint="name a tag that a publication made",
        )
    return stored(repository, commit, version)


def _elsewhere(repository: Repository, held: Version | None, leaving: str, to: str) -> PublishError:
    return PublishError(
        f"main does not hold {leaving} as it was published, but {held.name if held else 'no version'}"
        f"{', changed since' if held and held.name == leaving else ''}",
        where=f"{repository.name}@main",
        hint=f"look at its history; if {to} is to replace that, restore the files of {leaving} there first, "
        "or name the version that main holds",
    )
