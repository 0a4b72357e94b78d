"""Detail of a replay from its rows: hand-made rows, then a real replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.evaluation import Replay
from tasks.evaluate.assemble import ReplayRow
from tasks.evaluate.replay import check_file, slots_file
from tasks.evaluate.replay_detail import by_draft_tokens, contexts, positions, replay_detail, verdict_notes
from tasks.measure.acceptance import conditional_rates, expected_length
from tasks.measure.intervals import Bootstrap
from tests.unit.tasks.evaluate.replay_world import ANSWER, PROMPTS, ReplayWorld

HOW = Bootstrap(200, 0.9, 0)


def row(
    prompt: int, accepted: tuple[int, ...], domain: str = "qa", overlap: dict[str, Any] | None = None
) -> ReplayRow:
    """An answer whose rounds accepted so many of 3 draft tokens; with fewer tokens, as many as there are."""
    anchors, place = [], 0
    for count in accepted:
        anchors.append(place)
        place += count + 1
    by_tokens = []
    for most in (1, 2, 3):
        kept = [min(count, most) for count in accepted]
        positions_ = [sum(count > k for count in kept) for k in range(most)]
        by_tokens.append({"rounds": len(kept), "accepted": sum(kept), "per_position": positions_})
    walks = {"9": {**by_tokens[-1], "by_tokens": by_tokens}}
    return ReplayRow(
        f"p{prompt}", domain, tuple(range(prompt)), (1, 2), walks, (tuple(anchors), accepted), overlap
    )


def test_every_number_of_draft_tokens_has_an_estimate_with_its_interval() -> None:
    found = list(by_draft_tokens({"qa": [row(1, (3, 0)), row(2, (1, 2))], "code": [row(3, (3, 3))]}, 9, HOW))
    assert [one.draft_tokens for one in found] == [1, 2, 3]
    assert [one.pooled.value for one in found] == [1 + 5 / 6, 1 + 9 / 6, 1 + 12 / 6]
    assert found[2].macro.value == pytest.approx(((1 + 6 / 4) + 4) / 2)
    for one in found:
        assert one.pooled.low is not None and one.pooled.high is not None and one.pooled.value is not None
        assert one.pooled.low <= one.pooled.value <= one.pooled.high
    assert found[0].pooled.per_position == (5 / 6,)


def test_conditional_rates_count_only_rounds_that_came_so_far() -> None:
    whole = positions([row(1, (3, 0, 1, 1))], 9)
    assert whole.unconditional == (0.75, 0.25, 0.25)
    assert whole.conditional == (0.75, pytest.approx(1 / 3), 1.0)
    assert whole.expected_length is None and whole.overlap == ()
    assert conditional_rates(4, (2, 0, 0)) == (0.5, 0.0, None)
    assert conditional_rates(0, (0,)) == (None,)


def test_the_expected_length_is_the_mean_of_products() -> None:
    first = {"survival": [0.5, 0.25, 0.125], "overlap": [0.5, 0.5, 0.5], "known": [1, 1, 1]}
    second = {"survival": [1.0, 1.0, 0.0], "overlap": [1.0, 1.0, 0.0], "known": [1, 1, 0]}
    whole = positions([row(1, (0,), overlap=first), row(1, (3,), overlap=second)], 9)
    assert whole.overlap == (0.75, 0.75, 0.5)
    assert whole.expected_length == pytest.approx(1 + 0.75 + 0.625 + 0.125)
    assert expected_length([0.5, 0.5, 0.5]) == pytest.approx(1.875)
    assert expected_length([]) == 1.0


def test_rounds_are_sorted_by_the_tokens_before_them() -> None:
    """A prompt of 8 tokens and the answer's first make 9; the second round starts 4 tokens later."""
    rows = [row(8, (3, 0)), row(2, (1,)), row(20, (2, 2, 2))]
    found = list(contexts({"qa": rows}, (3, 9, 12, 22), HOW))
    assert [(one.above, one.up_to) for one in found] == [(0, 3), (3, 9), (12, 22), (22, None)]
    assert [one.tau.rounds for one in found] == [1, 1, 2, 2]
    assert [one.tau.prompts for one in found] == [1, 1, 2, 1]
    middle = found[2]
    assert middle.tau.value == 2.0 and middle.median == 2.0 and middle.largest == 3.0
    assert middle.top_tenth == pytest.approx(2.8)


def test_no_round_gives_no_bucket() -> None:
    assert list(contexts({"qa": [row(8, ())]}, (3,), HOW)) == []


def test_a_real_replay_adds_up(replayed: ReplayWorld, tmp_path: Path) -> None:
    raw, _, out = replayed.replay(tmp_path, replayed.draft)
    rows = [ReplayRow.of(one) for one in raw]
    options = Replay(context_bounds=(10, 18))
    detail = replay_detail(rows, ANSWER, options, HOW, check_file(out), slots_file(out))
    assert set(detail.domains) == {"qa", "writing"} and detail.slots == "replay.slots.safetensors"
    whole = detail.by_draft_tokens[-1].pooled
    assert sum(bucket.tau.rounds for bucket in detail.contexts) == whole.rounds
    assert sum(bucket.tau.accepted for bucket in detail.contexts) == whole.accepted
    values = [one.pooled.value or 0 for one in detail.by_draft_tokens]
    assert values == sorted(values) and values[0] <= 2.0
    assert whole.prompts == PROMPTS and detail.verdict.diagnosis is None
    length = detail.positions.expected_length
    assert length is not None and 1.0 < length < 5.0
    assert json.loads(detail.model_dump_json())["contexts"][0]["up_to"] == 10
    assert verdict_notes(check_file(out)) == []


def test_bounds_must_rise() -> None:
    with pytest.raises(ValueError, match="must rise"):
        Replay(context_bounds=(10, 10))
