"""The alarm of a draft that is right too seldom: not by chance, and not missed where it is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from profiles.evaluation import Replay
from tasks.evaluate.draft_check import TrainingRecord
from tasks.evaluate.draft_check_chance import Suspicion, suspicion
from tasks.measure.shares import Share, share_of

OPTIONS: dict[str, Any] = Replay().model_dump()
ALIKE = 0.08
"""Correlation within a conversation: SmolLM2's 108 evaluation answers with the demo's draft."""
LAPTOP = 0.38
"""Accuracy of that draft at the first token."""
TIMES = 400


def sample(
    generator: np.random.Generator, value: float, conversations: int, longest: int
) -> list[tuple[int, int]]:
    """Right tokens and tokens of answers whose own accuracy varies around `value`."""
    spread = 1 / ALIKE - 1
    own = generator.beta(value * spread, (1 - value) * spread, size=conversations)
    places = generator.integers(longest // 8, longest, size=conversations)
    return [(int(a), int(b)) for a, b in zip(generator.binomial(places, own), places, strict=True)]


def record_of(share: Share) -> TrainingRecord:
    return TrainingRecord(
        source="the train stage",
        first_right=share.value,
        first_places=share.places,
        first_conversations=share.conversations,
        first_error=share.error,
    )


def measured(generator: np.random.Generator, value: float, conversations: int, longest: int) -> Share:
    share = share_of(sample(generator, value, conversations, longest))
    assert share is not None
    return share


def raised(
    value: float,
    held_out: int,
    evaluated: int,
    share: float = 1.0,
    of: Callable[[Suspicion], bool] = lambda doubt: doubt.is_certain,
) -> float:
    """Share of runs in which the alarm is raised.

    Args:
        held_out: Conversations in training, half of whose tokens are looked at.
        evaluated: Conversations in the evaluation.
        share: What the draft reaches of what it was trained to.
    """
    generator = np.random.default_rng(held_out * 1000 + evaluated)
    found = 0
    for _ in range(TIMES):
        trained = record_of(measured(generator, value, held_out, 32))
        found += of(suspicion(measured(generator, share * value, evaluated, 64), trained, OPTIONS, 4))
    return found / TIMES


@pytest.mark.parametrize("evaluated", [9, 36, 72])
@pytest.mark.parametrize("held_out", [3, 6, 39])
@pytest.mark.parametrize("value", [0.02, 0.1, LAPTOP])
def test_a_sound_draft_raises_the_alarm_in_one_of_a_hundred_runs_at_most(
    value: float, held_out: int, evaluated: int
) -> None:
    assert raised(value, held_out, evaluated) <= 0.01


def test_the_share_alone_would_raise_it_often() -> None:
    """What the alarm was before it knew of chance: on small runs every fifth was false"""
    assert raised(0.1, 6, 72, of=lambda doubt: doubt.is_low) > 0.1


@pytest.mark.parametrize("evaluated", [36, 72, 108])
def test_half_the_acceptance_is_found_at_the_sizes_of_the_laptop_profile(evaluated: int) -> None:
    assert raised(LAPTOP, 39, evaluated, share=0.5) >= 0.9


SEEN = Share(0.066, 1764, 36, 0.009)


def test_the_run_that_raised_it_wrongly() -> None:
    """6.6 % against 10.2 % of a few held-out conversations: said with counts, but no alarm"""
    trained = record_of(Share(0.102, 147, 6, 0.035))
    doubt = suspicion(SEEN, trained, OPTIONS, 4)
    assert doubt.is_low and not doubt.is_certain
    assert doubt.words.startswith(
        "the first draft token is right in 6.6% of 1,764 places in 36 conversations, the train stage "
        "measured 10.2% of 147 in 6; 3.6 points less, with a standard error of "
    )
    assert "may be chance" in doubt.note and "prompts.evaluate_per_domain" in doubt.note


def test_the_same_difference_of_many_conversations_is_certain() -> None:
    doubt = suspicion(
        Share(0.066, 49_000, 1000, 0.0017), record_of(Share(0.102, 25_000, 1000, 0.003)), OPTIONS, 4
    )
    assert doubt.is_certain and "chance gives so much less than once in 1,000 times" in doubt.words


def test_a_small_difference_is_none_however_certain() -> None:
    """The effect counts too: a tenth less on other prompts is no fault"""
    doubt = suspicion(
        Share(0.35, 50_000, 1000, 0.004), record_of(Share(0.39, 50_000, 1000, 0.004)), OPTIONS, 4
    )
    assert not doubt.is_low and not doubt.is_certain


def test_a_record_without_counts_is_taken_as_measured_on_as_much() -> None:
    bare = TrainingRecord(source="an older run", first_right=0.102)
    doubt = suspicion(SEEN, bare, OPTIONS, 4)
    assert not doubt.is_certain and "an older run measured 10.2%; 3.6 points" in doubt.words
    bare = bare.model_copy(update={"first_right": 0.4})
    assert suspicion(SEEN, bare, OPTIONS, 4).is_certain


def test_without_a_record_the_profiles_floor_holds_but_for_chance() -> None:
    few, many = Share(0.12, 200, 5, 0.04), Share(0.02, 2000, 40, 0.01)
    assert suspicion(few, None, OPTIONS, 4).is_low and not suspicion(few, None, OPTIONS, 4).is_certain
    doubt = suspicion(many, None, OPTIONS, 4)
    assert doubt.is_certain and "evaluate.replay.min_first is 15.0%; 13.0 points less" in doubt.words
