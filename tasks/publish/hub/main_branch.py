"""Moves `main`, last of all: one commit whose parent must be the head that was looked at."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count

from tasks.errors import PublishError
from tasks.publish.hub.client import Unsure
from tasks.publish.hub.contents import Version, changed
from tasks.publish.hub.mark import Kind, Mark
from tasks.publish.hub.operations import Stored, holds, moving, owned
from tasks.publish.hub.repository import MAIN, Commit, Moved, Repository

log = logging.getLogger("retrain_dspark")


@dataclass(frozen=True)
class Start:
    """What `main` was when the work began.

    Args:
        commit: Its head.
        version: The version it held; None if none of ours.
        branch: Side branch that remembers this commit; empty if none does.
    """

    commit: str
    version: Version | None
    branch: str = ""


@dataclass(frozen=True)
class MainMoved:
    """`main` holds the version."""

    commit: str
    notes: tuple[str, ...]


def move_main(repository: Repository, wanted: Stored, start: Start, kind: Kind, title: str) -> MainMoved:
    """Let `main` hold a version; a reader sees the old one or the new one, never parts of both.

    Raises:
        PublishError: Others changed the same files since `start`, or the branch does not stop moving.
    """
    mark = Mark(kind, wanted.version.name, wanted.version.run, wanted.version.digest, start.commit)
    before = repository.tree(start.commit)
    for tried in count(1):
        head, others = since_start(repository, start)
        tree = repository.tree(head)
        if holds(tree, wanted, start.version):
            return MainMoved(head, notes(others, mark))
        taken_back = kind == "release" and was_main(others, wanted.version)
        if taken_back or changed(before, tree, owned(wanted.version, start.version)):
            raise overtaken(repository, wanted.version, start, others)
        try:
            head = repository.commit(MAIN, moving(tree, wanted, start.version), head, title, mark)
            log.info("publish: hub: main holds %s", wanted.version.name)
            confirm(repository, head, wanted, start)
            return MainMoved(head, notes(others, mark))
        except Moved:
            fault = "the branch is moving: others commit to main all the time"
        except Unsure as unsure:
            fault = f"{unsure}; whether main moved is looked up"
        repository.patience.wait(tried, fault, f"{repository.name}@{MAIN}")
    raise AssertionError("unreachable")


def since_start(repository: Repository, start: Start) -> tuple[str, list[Commit]]:
    """Head of `main`, and the commits after the start, newest first.

    A hub has several machines, and one may be behind: a head from before the start is asked for again.

    Raises:
        PublishError: The start stays out of the history: somebody has rewritten it.
    """
    for tried in count(1):
        head = repository.head()
        found = repository.history(head)
        for place, commit in enumerate(found):
            if commit.id == start.commit:
                return head, found[:place]
        fault = f"main does not contain {start.commit[:12]}, from which this work began (yet)"
        repository.patience.wait(tried, fault, f"{repository.name}@{MAIN}")
    raise AssertionError("unreachable")


def confirm(repository: Repository, head: str, wanted: Stored, start: Start) -> None:
    """Raises PublishError if the commit of `main` does not hold exactly the version."""
    if not holds(repository.tree(head), wanted, start.version):
        raise PublishError(
            f"main was moved to {wanted.version.name}, but does not hold its files",
            where=f"{repository.name}@{head}",
            hint=f"serve the tag {wanted.version.name}, which was checked, and run the publish stage again",
        )


def was_main(others: list[Commit], version: Version) -> bool:
    """Whether a commit since the start released the version."""
    marks = (one.mark for one in others)
    return any(mark and mark.kind == "release" and mark.manifest == version.digest for mark in marks)


def notes(others: list[Commit], mark: Mark) -> tuple[str, ...]:
    """What others committed meanwhile, as sentences."""
    strange = [one for one in others if one.mark is None or one.mark.manifest != mark.manifest]
    return tuple(f"meanwhile on main: '{one.title}' by {_names(one)}" for one in strange)


def overtaken(repository: Repository, version: Version, start: Start, others: list[Commit]) -> PublishError:
    """The error of a release whose files others changed first; the newest commit that did is named."""
    newest = others[0] if others else None
    if was_main(others, version):
        what = f"main held {version.name} already and was changed after that"
    elif newest and newest.mark:
        what = f"{newest.mark.version} of run {newest.mark.run} came first and is on main"
    else:
        what = "somebody else changed files of the draft on main"
    who = f": '{newest.title}' by {_names(newest)}" if newest else ""
    again = "do it again"
    if start.branch:
        again = f"delete the branch {start.branch} and the tag {version.name} there and resume this run"
    return PublishError(
        f"{version.name} is not put on main, because {what}{who}",
        where=f"{repository.name}@{MAIN}",
        hint="the draft was not compared with what is there now: start a new run, which measures it; "
        f"or, if {version.name} is to replace it all the same, {again}",
    )


def _names(commit: Commit) -> str:
    return ", ".join(commit.authors) or "somebody"
