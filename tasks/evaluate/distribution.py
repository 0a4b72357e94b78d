"""At a temperature above 0: do short continuations with a draft have the distribution of those without?

No answer can be compared token for token there, so two samples are: for each prompt N continuations of a
few tokens from either server. The statistic is the squared maximum mean discrepancy with the kernel "length
of the common prefix, as a share": it is the sum, over prefix lengths, of the squared distance of the two
histograms of prefixes. Dividing the pooled samples of each prompt at random many times shows how large it
gets by chance; the sum over prompts gives one p-value. (Gretton et al., A Kernel Two-Sample Test, JMLR
2012.)

A test that finds nothing says little by itself, so its power is computed too: the smallest share of samples
that, replaced by one fixed continuation (what a server that accepts every greedy draft would give), is
found four times in five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.evaluation import Sampled
from tasks.evaluate.arm_models import DistributionCheck

Samples = Mapping[str, Sequence[tuple[int, ...]]]
Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]

SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
"""Shares of wrong samples that the power is computed for."""
POWER = 0.8
TRIALS = 20
_TRIAL_PERMUTATIONS = 199
_ENDED = -1


def check_distribution(plain: Samples, other: Samples, how: Sampled, seed: int) -> DistributionCheck | None:
    """Test two servers' samples of the same prompts; None if no prompt has samples of both.

    Args:
        plain: Continuations by prompt, of the target alone.
        other: The same prompts, of an arm.
    """
    common = [name for name in plain if len(plain[name]) > 1 and len(other.get(name, ())) > 1]
    if not common:
        return None
    pairs = [(_padded(plain[name], how.tokens), _padded(other[name], how.tokens)) for name in common]
    p_value = permutation_p(pairs, how.permutations, np.random.default_rng([seed, 1]))
    return DistributionCheck(
        temperature=how.temperature,
        prompts=len(common),
        samples=min(min(len(left), len(right)) for left, right in pairs),
        tokens=how.tokens,
        p_value=p_value,
        differs=p_value < how.level,
        level=how.level,
        detectable=None
        if p_value < how.level
        else detectable(pairs, how.level, np.random.default_rng([seed, 2])),
    )


def permutation_p(
    pairs: Sequence[tuple[Tokens, Tokens]], permutations: int, generator: np.random.Generator
) -> float:
    """Share of random divisions, this one included, whose statistic is at least as large.

    Args:
        pairs: For each prompt two arrays `[samples, tokens]`.
    """
    observed, drawn = 0.0, np.zeros(permutations)
    for left, right in pairs:
        kernel = _kernel(np.concatenate([left, right]))
        signs = np.concatenate([np.full(len(left), 1 / len(left)), np.full(len(right), -1 / len(right))])
        shuffled = generator.permuted(np.tile(signs, (permutations, 1)), axis=1)
        observed += float(signs @ kernel @ signs)
        drawn += ((shuffled @ kernel) * shuffled).sum(axis=1)
    # Divisions that are equal but for the order of summing count as at least as large.
    return float((1 + np.sum(drawn >= observed - 1e-12)) / (1 + permutations))


def detectable(
    pairs: Sequence[tuple[Tokens, Tokens]], level: float, generator: np.random.Generator
) -> float | None:
    """Smallest share in `SHARES` that the test finds with `POWER`; None if it finds not even all.

    The more samples are wrong the more often that is found, so the shares are searched by halving.
    """

    def is_found(share: float) -> bool:
        return sum(_finds(pairs, share, level, generator) for _ in range(TRIALS)) >= POWER * TRIALS

    first, beyond = 0, len(SHARES)
    while first < beyond:
        middle = (first + beyond) // 2
        first, beyond = (first, middle) if is_found(SHARES[middle]) else (middle + 1, beyond)
    return SHARES[first] if first < len(SHARES) else None


def _finds(
    pairs: Sequence[tuple[Tokens, Tokens]], share: float, level: float, generator: np.random.Generator
) -> bool:
    """One trial: both sides drawn from the plain samples, a share of one side replaced."""
    trial = []
    for plain, other in pairs:
        left = plain[generator.integers(0, len(plain), len(plain))]
        right = plain[generator.integers(0, len(plain), len(other))].copy()
        right[generator.random(len(right)) < share] = _most_frequent(plain)
        trial.append((left, right))
    return permutation_p(trial, _TRIAL_PERMUTATIONS, generator) < level


def _most_frequent(samples: Tokens) -> Tokens:
    values, counts = np.unique(samples, axis=0, return_counts=True)
    return np.asarray(values[int(counts.argmax())])


def _kernel(samples: Tokens) -> Floats:
    """Length of the common prefix of each pair, as a share: `[samples, samples]`."""
    equal = samples[:, None, :] == samples[None, :, :]
    return np.asarray(np.logical_and.accumulate(equal, axis=2).mean(axis=2), dtype=np.float64)


def _padded(samples: Sequence[tuple[int, ...]], tokens: int) -> Tokens:
    """`[samples, tokens]`; a sample that ended early is filled up with a token that no vocabulary has."""
    rows = [(*one[:tokens], *[_ENDED] * (tokens - len(one))) for one in samples]
    return np.array(rows, dtype=np.int64)
