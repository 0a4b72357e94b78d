"""A version on a hub: what a reader sees, what others did, what is done again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from publishing_hub import WRITER, RunningHub, hasty, settings

from profiles.publishing import Hub
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.release import release
from tasks.publish.verify import verify_folder

Version = Callable[..., Path]


def published(folder: Path, hub: Hub | None = None) -> HubRelease:
    hub = hub or settings()
    return release(
        folder, hub, token=WRITER, load=verify_folder, work=folder.parents[2] / "work", patience=hasty(hub)
    )


def test_a_first_version_is_on_main_under_its_tag(hub: RunningHub, version: Version) -> None:
    done = published(version())
    assert (hub.version(), hub.version("refs/tags/v0001")) == ("v0001", "v0001")
    assert (done.revision, done.via, done.previous) == ("v0001", "branch", None)
    assert (hub.head("refs/tags/v0001"), hub.head()) == (done.commit, done.main_commit)
    assert hub.state()["private"]
