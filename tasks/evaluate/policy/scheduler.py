"""The hardware-aware prefix scheduler: how many draft tokens of each request are worth verifying.

Algorithm 1 of the DSpark paper (arXiv 2607.05147, section 4.2). Draft tokens of all requests are taken in the
order of their survival probability, and verified as long as each one raises the expected tokens per second.
It stops at the first that does not. That stop keeps the output lossless: whether a token is verified never
depends on the confidence of a later token, which depends on what the earlier one turned out to be.
`best_budget` looks at all of them instead; appendix A shows how that changes the output distribution.

Letters: S batches that are decided side by side (any leading axes), R requests of a batch, K positions.
"""

from __future__ import annotations

import numpy as np

from tasks.evaluate.policy.slots import Floats, Ints


def survival(confidences: Floats) -> Floats:
    """Chance that a whole prefix is accepted: product along the positions of `[..., R, K]`."""
    return np.cumprod(confidences, axis=-1, dtype=np.float64)


def schedule(confidences: Floats, steps_per_s: Floats, max_tokens: int | None = None) -> Ints:
    """Draft tokens to verify for each request.

    Args:
        confidences: `[..., R, K]`, each given that the tokens before it were accepted, 0 to 1.
        steps_per_s: `[R * K + 1]` or shorter, engine steps per second when 0, 1, ... draft tokens are
            verified beside the one token of each request. Its length bounds the draft tokens.
        max_tokens: Most tokens of a batch, the one of each request included.

    Returns:
        `[..., R]`, 0 to K.
    """
    chance = survival(confidences)
    budget = causal_budget(chance, steps_per_s, max_tokens)
    return allocate(chance, budget)


def causal_budget(chance: Floats, steps_per_s: Floats, max_tokens: int | None = None) -> Ints:
    """Draft tokens in all, `[...]`: up to the first that does not raise the expected tokens per second."""
    speed = _expected_speed(chance, steps_per_s, max_tokens)
    # A last column that always stops: every draft token was taken, or there is none.
    end = np.ones((*speed.shape[:-1], 1), dtype=bool)
    stops = np.concatenate([speed[..., 1:] <= speed[..., :-1], end], axis=-1)
    return np.argmax(stops, axis=-1)


def best_budget(chance: Floats, steps_per_s: Floats, max_tokens: int | None = None) -> Ints:
    """Draft tokens in all, `[...]`, with the highest expected tokens per second of all numbers.

    Not lossless on the confidences of the tokens that it admits. vLLM applies it to those of the step before.
    """
    return np.argmax(_expected_speed(chance, steps_per_s, max_tokens), axis=-1)


def allocate(chance: Floats, budget: Ints) -> Ints:
    """Give the `budget [...]` draft tokens of largest `chance [..., R, K]` to their requests.

    `chance` never rises along a request, so each request gets a prefix.

    Returns:
        `[..., R]`.
    """
    requests, positions = chance.shape[-2:]
    order = np.argsort(-_by_position(chance), axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    admitted = rank < np.asarray(budget)[..., None]
    return admitted.reshape(*chance.shape[:-2], positions, requests).sum(axis=-2)


def threshold(chance: Floats, least: float) -> Ints:
    """Draft tokens `[..., R]` whose survival is at least `least`."""
    return (chance >= least).sum(axis=-1)


def _expected_speed(chance: Floats, steps_per_s: Floats, max_tokens: int | None) -> Floats:
    """`[..., n + 1]`, expected tokens per second when the 0 ... n most likely draft tokens are verified."""
    requests, positions = chance.shape[-2:]
    room = requests * positions if max_tokens is None else max(0, max_tokens - requests)
    most = min(room, requests * positions, len(steps_per_s) - 1)
    gains = -np.sort(-_by_position(chance), axis=-1)[..., :most]
    first = np.full((*gains.shape[:-1], 1), float(requests))
    tokens = np.concatenate([first, requests + np.cumsum(gains, axis=-1)], axis=-1)
    return tokens * steps_per_s[: most + 1]


def _by_position(chance: Floats) -> Floats:
    """`[..., K * R]`, first positions first: of equal values the stable sort takes the earlier position."""
    return np.swapaxes(chance, -1, -2).reshape(*chance.shape[:-2], -1)
