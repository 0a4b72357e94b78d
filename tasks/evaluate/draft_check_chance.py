"""Whether a draft is right too seldom at the first token: much less than it should be, and not by chance.

Training measures few held-out conversations and an evaluation other ones: on small runs two measurements of
one sound draft differ by a third in every fifth run. So two things are asked: is it so much less that it
matters (`min_of_record`), and would a sound draft show so little less than once in 1,000 runs
(`measure.shares`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.evaluate.draft_check import TrainingRecord
from tasks.measure.shares import LEVEL, Share, Shortfall, shortfall

MORE = (
    "for a verdict evaluate more prompts (prompts.evaluate_per_domain) or hold more out in training "
    "(prompts.held_out)"
)


@dataclass(frozen=True)
class Promise:
    """What is known of the first token's accuracy, from elsewhere."""

    value: Share | float
    """A number is exact."""
    least: float
    """Share below which a draft is suspicious."""
    words: str
    is_measured: bool = False
    """It is training's own accuracy."""


@dataclass(frozen=True)
class Suspicion:
    """What the first token says of a draft."""

    expected: float
    """Least share that is not suspicious."""
    is_measured: bool
    """Training's own accuracy is known. A floor or a promised length bounds it only loosely (a shifted anchor
    left the demo's draft at 19 % of 35 %), so without it corrections are tried in any case."""
    is_low: bool
    """It is less: corrections are tried, and one that restores the acceptance is named."""
    is_certain: bool
    """And by so much that chance is no explanation: said also where no correction helps."""
    words: str
    """Both values with their counts and the difference."""

    @property
    def note(self) -> str:
        """What is said where it is low, perhaps by chance, and nothing restores it."""
        return f"{self.words}; no correction restores it, so this is no alarm: {MORE}"


def suspicion(seen: Share, record: TrainingRecord | None, options: Mapping[str, Any], most: int) -> Suspicion:
    """Compare the first tokens of a replay with what is known of the draft.

    Args:
        seen: Right first draft tokens of the replay.
        options: `evaluate.replay` of the profile.
        most: Draft tokens of a block.
    """
    promise = promise_of(seen, record, options, most)
    short = shortfall(seen, promise.value)
    low = seen.value < promise.least
    words = (
        f"the first draft token is right in {seen.value:.1%} of {seen.places:,} places in "
        f"{seen.conversations:,} conversations, {promise.words}"
    )
    said = f"{words}; {_chance(short)}" if low else words
    return Suspicion(promise.least, promise.is_measured, low, low and short.is_certain, said)


def promise_of(seen: Share, record: TrainingRecord | None, options: Mapping[str, Any], most: int) -> Promise:
    """What the draft should reach. A promise without counts is taken as measured on as much as `seen`."""
    share = float(options["min_of_record"])
    if record is not None and record.first_right is not None:
        places, conversations = record.first_places, record.first_conversations
        counted = bool(places and conversations)
        value = Share(
            record.first_right,
            places if counted and places else seen.places,
            conversations if counted and conversations else seen.conversations,
            record.first_error if counted else None,
        )
        sizes = f" of {places:,} in {conversations:,}" if counted else ""
        words = f"{record.source} measured {record.first_right:.1%}{sizes}"
        return Promise(value, share * record.first_right, words, is_measured=True)
    if record is not None and record.tau is not None:
        # The first token is accepted at least as often as any later one.
        least = (record.tau - 1) / most
        words = f"{record.source} promises {record.tau:.2f} tokens per round, for which it takes {least:.1%}"
        return Promise(Share(least, seen.places, seen.conversations), share * least, words)
    floor = float(options["min_first"])
    return Promise(floor, floor, f"evaluate.replay.min_first is {floor:.1%}")


def _chance(short: Shortfall) -> str:
    """What the difference says, in words."""
    found = f"{100 * short.points:.1f} points less, with a standard error of {100 * short.error:.1f}"
    if short.is_certain:
        return f"{found}: chance gives so much less than once in {1 / LEVEL:,.0f} times"
    return f"{found}: that may be chance"
