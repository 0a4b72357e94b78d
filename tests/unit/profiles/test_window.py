"""A window of captures: what it implies, and what cannot work with it."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.load import ProfileProblem, load_profile

WINDOW = {"retention": "window", "window_bytes": 10**9}
FITTING = {"epochs": 1, "draft": {"vocab_size": None}}


def test_window_implies_overlap() -> None:
    profile = load_profile("laptop", {"stream": WINDOW, "train": FITTING}).profile
    assert profile.stream.overlaps and not profile.stream.overlap
    assert not load_profile("laptop").profile.stream.overlaps
    assert load_profile("laptop", {"stream": {"overlap": True}}).profile.stream.overlaps


@pytest.mark.parametrize(
    ("stream", "train", "field"),
    [
        ({"window_bytes": None}, {}, "stream.window_bytes"),
        ({}, {"epochs": 2}, "train.epochs"),
        ({}, {"max_steps": 10}, "train.max_steps"),
        ({}, {"max_wall_s": 60}, "train.max_wall_s"),
        ({}, {"early_stopping": 2}, "train.early_stopping"),
        ({}, {"draft": {"vocab_size": 512}}, "train.draft.vocab_size"),
    ],
)
def test_what_needs_a_sample_twice_or_many_at_once_is_refused(
    stream: dict[str, Any], train: dict[str, Any], field: str
) -> None:
    with pytest.raises(ProfileProblem, match=field.replace(".", r"\.")):
        load_profile("laptop", {"stream": {**WINDOW, **stream}, "train": {**FITTING, **train}})
