"""Back to the version before: in one commit, once, and only from where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from publishing_hub import WRITER, RunningHub, hasty, people, published, settings

from tasks.errors import PublishError
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.rollback import roll_back

Version = Callable[..., Path]


def back(leaving: str, to: str) -> HubRelease:
    ours = settings()
    return roll_back(ours, token=WRITER, leaving=leaving, to=to, patience=hasty(ours))


@pytest.fixture
def two(hub: RunningHub, version: Version) -> RunningHub:
    """A hub with two versions."""
    published(version())
    published(version())
    return hub


def test_main_holds_the_version_before_and_nothing_is_sent_again(two: RunningHub) -> None:
    people(two, {"NOTES.md": b"by people"}, "A note")
    two.fail()
    done = back("v0002", "v0001")
    assert two.version() == "v0001" and two.files()["NOTES.md"] == b"by people"
    assert (done.revision, done.previous, done.main_commit) == ("v0001", "v0002", two.head())
    assert not two.requests("PUT ")
    assert two.version("refs/tags/v0002") == "v0002"


def test_done_again_it_changes_nothing_and_forward_is_possible(two: RunningHub) -> None:
    done = back("v0002", "v0001")
    assert back("v0002", "v0001") == done
    back("v0001", "v0002")
    assert two.version() == "v0002"


def test_what_was_taken_back_is_not_published_by_the_same_run_again(
    hub: RunningHub, version: Version
) -> None:
    published(version())
    second = version()
    published(second)
    back("v0002", "v0001")
    with pytest.raises(PublishError, match="main held v0002 already and was changed after that"):
        published(second)
    assert hub.version() == "v0001"


@pytest.mark.parametrize(
    ("leaving", "to", "said"),
    [
        ("v0001", "v0002", None),
        ("v0003", "v0001", "has no tag v0003"),
        ("v0002", "v0009", "has no tag v0009"),
    ],
)
def test_from_elsewhere_or_to_nowhere_is_refused(
    two: RunningHub, leaving: str, to: str, said: str | None
) -> None:
    if said is None:
        assert back(leaving, to).revision == "v0002"  # it is there already
        return
    with pytest.raises(PublishError, match=said):
        back(leaving, to)
    assert two.version() == "v0002"


def test_a_version_that_people_changed_is_not_left_unseen(two: RunningHub) -> None:
    people(two, {"README.md": b"other words"}, "Better words")
    with pytest.raises(PublishError, match="as it was published, but v0002, changed since"):
        back("v0002", "v0001")
    assert two.files()["README.md"] == b"other words"


def test_a_cut_answer_does_not_roll_back_twice(two: RunningHub) -> None:
    two.fail({"on": "POST .*/commit/main", "do": "cut", "when": "after"})
    back("v0002", "v0001")
    titles = [two.commit(one)["title"] for one in two.state()["refs"]["refs/heads/main"]]
    assert titles.count("Back from v0002 to v0001") == 1 and two.version() == "v0001"
