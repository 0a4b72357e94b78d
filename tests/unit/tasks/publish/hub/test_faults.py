"""A hub that fails: nothing is published twice, nothing by halves, and the error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from publishing_hub import REPO, WRITER, RunningHub, people, published, settings

from tasks.errors import PublishError
from tasks.publish.core import publish
from tasks.publish.verify import verify_folder
from tests.unit.tasks.publish.drafts import publish_inputs

Version = Callable[..., Path]
COMMIT, MAIN = r"POST .*/commit/release-", r"POST .*/commit/main"


def commits(hub: RunningHub, ref: str) -> int:
    """Commits that a ref has got beyond its first."""
    return len(hub.state()["refs"].get(ref, [])) - 1


def ours_below(hub: RunningHub, commit: str) -> int:
    """Commits of ours that a commit's history holds, itself included."""
    count, place = 0, hub.commit(commit)
    while place["parent"]:
        count, place = count + ("Retrain-Manifest" in place["message"]), hub.commit(place["parent"])
    return count


PASSING: dict[str, dict[str, Any]] = {
    "overloaded": {"on": "GET .*/refs", "do": "status", "status": 503, "times": 2},
    "too many requests": {"on": COMMIT, "do": "status", "status": 429, "headers": {"Retry-After": "0"}},
    "moved once": {"on": COMMIT, "do": "status", "status": 412},
    "moved once on main": {"on": MAIN, "do": "status", "status": 412},
    "conflict": {"on": MAIN, "do": "status", "status": 409},
    "failed before": {"on": MAIN, "do": "status", "status": 500},
    "failed after": {"on": MAIN, "do": "status", "status": 500, "when": "after"},
    "cut before": {"on": COMMIT, "do": "cut"},
    "cut after": {"on": COMMIT, "do": "cut", "when": "after"},
    "cut after on main": {"on": MAIN, "do": "cut", "when": "after"},
    "late": {"on": COMMIT, "do": "cut", "when": "late", "seconds": 0.3},
    "late on main": {"on": MAIN, "do": "cut", "when": "late", "seconds": 0.3},
    "tag made, answer lost": {"on": "POST .*/tag/", "do": "cut", "when": "after"},
    "branch dropped, answer lost": {"on": "DELETE .*/branch/", "do": "cut", "when": "after"},
    "branch made, answer lost": {"on": "POST .*/branch/", "do": "cut", "when": "after"},
    "repository made, answer lost": {"on": "POST .*/repos/create", "do": "cut", "when": "after"},
    "stale head": {"on": "GET .*/refs", "do": "stale", "times": 3},
    "stale commit": {"on": "GET .*/tree/", "do": "stale", "times": 4},
    "slow": {"on": MAIN, "do": "slow", "seconds": 0.2},
    "cut in a download": {"on": "GET .*/resolve/.*safetensors", "do": "cut"},
}


ALWAYS = ("overloaded", "too many requests", "moved once on main", "conflict", "failed after", "late")
ALWAYS += ("cut after on main", "tag made, answer lost", "stale head", "slow")


def every_time(fault: str) -> Any:
    """One fault of each kind in `make test`, the others of the kind in `make verify`."""
    return pytest.param(fault, marks=[] if fault in ALWAYS else pytest.mark.verify("publish"))


@pytest.mark.parametrize("fault", [every_time(fault) for fault in PASSING])
def test_a_fault_that_passes_leaves_one_commit(hub: RunningHub, version: Version, fault: str) -> None:
    hub.fail(PASSING[fault])
    done = published(version())
    assert hub.version() == hub.version("refs/tags/v0001") == "v0001"
    assert (hub.head(), hub.head("refs/tags/v0001")) == (done.main_commit, done.commit)
    assert (commits(hub, "refs/heads/main"), ours_below(hub, done.commit)) == (1, 1)
    assert [ref for ref in hub.state()["refs"] if "heads" in ref] == ["refs/heads/main"]
    assert len(hub.requests("PUT ")) == 1


def test_an_old_head_of_main_is_not_taken_for_somebody_else(hub: RunningHub, version: Version) -> None:
    def meanwhile(folder: Path) -> None:
        hub.fail({"on": "GET .*/refs", "do": "stale", "times": 4})

    published(version())
    published(version(), load=meanwhile)
    assert hub.version() == "v0002" and commits(hub, "refs/heads/main") == 2


def test_an_upload_that_is_cut_is_sent_again_and_no_other(hub: RunningHub, version: Version) -> None:
    hub.fail({"on": "PUT ", "do": "cut", "when": "middle"})
    published(version())
    assert hub.version() == "v0001"
    assert [row["status"] for row in hub.requests("PUT ")] == [0, 200]


@pytest.mark.parametrize("when", ["after", "late"])
def test_a_pull_request_whose_answer_is_lost_is_not_opened_twice(
    hub: RunningHub, version: Version, when: str
) -> None:
    ours = settings(via="pull_request")
    hub.fail({"on": MAIN, "do": "cut", "when": when, "seconds": 0.3})
    done = published(version(), ours)
    open_ones = [one["num"] for one in hub.state()["pull_requests"] if one["status"] == "open"]
    assert open_ones == [done.pull_request]
    assert hub.version(done.revision) == "v0001" and hub.version() is None


REFUSED = {
    401: "valid token with write access to lab/draft into the environment variable HF_TOKEN",
    403: "let the account of the token in the environment variable HF_TOKEN write into lab/draft",
}


@pytest.mark.parametrize("status", REFUSED)
def test_a_refusal_is_not_repeated_and_says_what_to_do(
    hub: RunningHub, version: Version, status: int
) -> None:
    hub.fail({"on": COMMIT, "do": "status", "status": status, "times": -1})
    with pytest.raises(PublishError) as caught:
        published(version())
    assert f"the hub answered {status}" in caught.value.what and REFUSED[status] in caught.value.hint
    assert len(hub.requests("/commit/")) == 1 and hub.version() is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"on": MAIN, "do": "status", "status": 412}, "the branch is moving"),
        ({"on": MAIN, "do": "cut"}, "whether main moved is looked up; given up after 3 tries"),
        ({"on": "GET .*/refs", "do": "status", "status": 500}, "the hub answered 500; given up after 3"),
        (
            {"on": MAIN, "do": "status", "status": 429, "headers": {"Retry-After": "9999"}},
            r"the next try would be in 9999 s, beyond publish\.hub\.timeout_s",
        ),
    ],
)
def test_a_fault_that_stays_ends_with_its_name_and_another_run_finishes(
    hub: RunningHub, version: Version, rule: dict[str, Any], said: str
) -> None:
    folder, ours = version(), settings(attempts=3)
    hub.fail({**rule, "times": -1})
    with pytest.raises(PublishError, match=said):
        published(folder, ours)
    assert not hub.state()["refs"].get("refs/heads/main", [0])[1:]
    hub.fail()
    published(folder, ours)
    assert hub.version() == "v0001"


def test_a_bad_card_is_refused_before_anything_is_sent(hub: RunningHub, version: Version) -> None:
    folder = version()
    hub.fail({"on": "POST /api/validate-yaml", "do": "status", "status": 400})
    with pytest.raises(PublishError, match="the hub refuses the card"):
        published(folder)
    assert not hub.requests("PUT ") and not hub.requests("/repos/create")


def test_somebody_who_changes_our_files_meanwhile_is_not_overwritten(
    hub: RunningHub, version: Version
) -> None:
    def meanwhile(folder: Path) -> None:
        verify_folder(folder)
        people(hub, {"README.md": b"---\nlicense: mit\n---\nBetter words"}, "Better words")

    folder = version()
    with pytest.raises(PublishError) as caught:
        published(folder, load=meanwhile)
    assert "somebody else changed files of the draft on main: 'Better words' by lab" in caught.value.what
    assert hub.files()["README.md"].endswith(b"Better words")
    with pytest.raises(PublishError, match="Better words"):
        published(folder)
    api = HfApi(hub.url, token=WRITER)  # the remedy that the error names
    api.delete_branch(REPO, branch=caught.value.hint.split("branch ")[1].split()[0])
    api.delete_tag(REPO, tag="v0001")
    published(folder)
    assert hub.version() == "v0001"


def test_somebody_who_adds_another_file_meanwhile_is_told_of(hub: RunningHub, version: Version) -> None:
    def meanwhile(folder: Path) -> None:
        people(hub, {"NOTES.md": b"by people"}, "A note")

    done = published(version(), load=meanwhile)
    assert hub.version() == "v0001" and hub.files()["NOTES.md"] == b"by people"
    assert done.notes == ("meanwhile on main: 'A note' by lab",)


def test_of_two_publishers_one_wins_and_the_other_says_so(
    hub: RunningHub, version: Version, tmp_path: Path
) -> None:
    first, second = version(), version()
    with pytest.raises(PublishError) as caught:
        published(first, load=lambda _: published(second) and None)
    assert "v0001 is not put on main, because v0002 of run r2 came first and is on main" in caught.value.what
    assert "start a new run, which measures it" in caught.value.hint
    assert hub.version() == "v0002"
    with pytest.raises(PublishError, match="v0002 of run r2 came first"):
        published(first)


def test_two_drafts_of_one_number_do_not_share_a_tag(
    hub: RunningHub, version: Version, tmp_path: Path
) -> None:

    elsewhere = Path(publish(**publish_inputs(tmp_path / "elsewhere", "other")).location)
    published(version())
    with pytest.raises(PublishError, match="the hub has a v0001 already, and it is another draft"):
        published(elsewhere)
    assert hub.version() == "v0001" and commits(hub, "refs/heads/main") == 1
