"""A version on a hub: what a reader sees, what others did, what is done again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from publishing_hub import WRITER, RunningHub, people, published, settings

from tasks.errors import PublishError
from tests.unit.tasks.publish import drafts

Version = Callable[..., Path]


def test_a_first_version_is_on_main_under_its_tag(hub: RunningHub, version: Version) -> None:
    done = published(version())
    assert (hub.version(), hub.version("refs/tags/v0001")) == ("v0001", "v0001")
    assert (done.revision, done.via, done.previous) == ("v0001", "branch", None)
    assert (hub.head("refs/tags/v0001"), hub.head()) == (done.commit, done.main_commit)
    assert hub.state()["private"]


def test_the_next_version_replaces_every_file_of_the_one_before(hub: RunningHub, version: Version) -> None:
    published(version())
    first = hub.files("refs/tags/v0001")
    done = published(version())
    assert (hub.version(), hub.version("refs/tags/v0002"), done.previous) == ("v0002", "v0002", "v0001")
    assert hub.files("refs/tags/v0001") == first


def test_done_again_it_sends_nothing_and_says_the_same(hub: RunningHub, version: Version) -> None:
    folder = version()
    done = published(folder)
    refs = hub.state()["refs"]
    hub.fail()
    assert published(folder) == done
    assert hub.state()["refs"] == refs
    assert not hub.requests("PUT ") and not hub.requests("/commit/") and not hub.requests("/resolve/main")


def test_files_of_people_stay_and_their_commits_are_told(hub: RunningHub, version: Version) -> None:
    published(version())
    people(hub, {"NOTES.md": b"ours"}, "A note")
    done = published(version())
    assert hub.version() == "v0002" and hub.files()["NOTES.md"] == b"ours"
    assert done.notes == ()  # it was there before the candidate was made


def test_a_file_that_the_next_version_has_not_goes(hub: RunningHub, version: Version) -> None:
    published(version(profile=drafts.profile(margin=0.03)))
    assert "cpu/sitecustomize.py" in hub.files()
    plain = drafts.profile()
    live = plain.evaluate.live.model_copy(update={"triton_interpreter": False})
    plain = plain.model_copy(update={"evaluate": plain.evaluate.model_copy(update={"live": live})})
    published(version(profile=plain))
    assert hub.version() == "v0002" and "cpu/sitecustomize.py" not in hub.files()


def test_weights_of_somebody_else_are_refused(hub: RunningHub, version: Version) -> None:
    published(version())
    people(hub, {"pytorch_model.bin": b"old"}, "Old weights")
    with pytest.raises(PublishError, match=r"not published by this tool: pytorch_model\.bin"):
        published(version())
    assert "refs/tags/v0002" not in hub.state()["refs"]


def test_a_draft_that_does_not_load_never_gets_a_tag(hub: RunningHub, version: Version) -> None:
    def broken(folder: Path) -> None:
        raise PublishError("it does not load", where=str(folder), hint="train it again")

    with pytest.raises(PublishError, match="it does not load"):
        published(version(), load=broken)
    assert hub.version() is None and not any("tags" in ref for ref in hub.state()["refs"])


def test_a_pull_request_is_opened_once_checked_and_left_to_people(hub: RunningHub, version: Version) -> None:
    published(version())
    folder, ours = version(), settings(via="pull_request")
    done = published(folder, ours)
    assert (done.pull_request, done.revision, done.main_commit) == (1, "refs/pr/1", None)
    assert hub.version() == "v0001" and hub.version("refs/pr/1") == "v0002"
    assert published(folder, ours) == done
    assert [one["status"] for one in hub.state()["pull_requests"]] == ["open"]


def test_a_pull_request_that_people_closed_is_not_opened_again(hub: RunningHub, version: Version) -> None:
    folder, ours = version(), settings(via="pull_request")
    published(folder, ours)
    HfApi(hub.url, token=WRITER).change_discussion_status(ours.repo, 1, "closed")
    with pytest.raises(PublishError, match="pull request 1 with v0001 was closed"):
        published(folder, ours)
    assert len(hub.state()["pull_requests"]) == 1
