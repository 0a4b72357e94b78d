"""The two-sample test of sampled continuations."""

from __future__ import annotations

import random

import numpy as np

from profiles.evaluation import Sampled
from tasks.evaluate.distribution import check_distribution, permutation_p

HOW = Sampled(prompts=4, samples=64, tokens=2, permutations=199)
PROMPTS = ("a", "b", "c", "d")


def drawn(seed: int, weights: tuple[float, ...] = (0.5, 0.3, 0.2)) -> dict[str, list[tuple[int, ...]]]:
    """Continuations of two tokens, the second depending on the first."""
    chance = random.Random(seed)
    found = {}
    for name in PROMPTS:
        firsts = chance.choices((1, 2, 3), weights, k=HOW.samples)
        found[name] = [(first, 10 * first + chance.randrange(2)) for first in firsts]
    return found


def test_samples_of_one_distribution_pass_and_the_power_is_stated() -> None:
    done = check_distribution(drawn(1), drawn(2), HOW, 0)
    assert done is not None and not done.differs and done.p_value > 0.01
    assert (done.prompts, done.samples, done.tokens) == (4, 64, 2)
    assert done.detectable is not None and 0.05 < done.detectable <= 0.5


def test_false_alarms_are_as_rare_as_the_level_says() -> None:
    values = []
    for i in range(20):
        pairs = [
            (np.array(left), np.array(right))
            for left, right in zip(drawn(2 * i).values(), drawn(2 * i + 1).values(), strict=True)
        ]
        values.append(permutation_p(pairs, 99, np.random.default_rng(i)))
    assert sum(value < 0.1 for value in values) <= 6  # of 20 at a level of 10 %; more has a chance of 0.2 %
    assert max(values) > 0.5


def test_another_distribution_is_found() -> None:
    done = check_distribution(drawn(1), drawn(2, (0.9, 0.05, 0.05)), HOW, 0)
    assert done is not None and done.differs and done.p_value <= 0.005 and done.detectable is None


def test_a_change_of_the_second_token_alone_is_found() -> None:
    swapped = {name: [(one, 10 * one) for one, _ in rows] for name, rows in drawn(2).items()}
    done = check_distribution(drawn(1), swapped, HOW, 0)
    assert done is not None and done.differs


def test_more_samples_find_less() -> None:
    few = {name: rows[:16] for name, rows in drawn(1).items()}
    less = check_distribution(few, {name: rows[:16] for name, rows in drawn(2).items()}, HOW, 0)
    more = check_distribution(drawn(1), drawn(2), HOW, 0)
    assert less is not None and more is not None and more.detectable is not None
    assert less.detectable is None or less.detectable > more.detectable


def test_samples_that_ended_early_are_compared_too() -> None:
    short = {name: [(one,) for one, _ in rows] for name, rows in drawn(2).items()}
    done = check_distribution(drawn(1), short, HOW, 0)
    assert done is not None and done.differs
    assert check_distribution(drawn(1), {}, HOW, 0) is None
