"""Reliability of probabilities: bins, expected calibration error, its noise, area under the ROC curve."""

from __future__ import annotations

import numpy as np

from tasks.evaluate.policy.models import Reliability
from tasks.evaluate.policy.slots import Bools, Floats, Ints

_DIGITS = 6


def sigmoid(logits: Floats) -> Floats:
    """`1 / (1 + exp(-x))` without overflow."""
    out: Floats = np.exp(-np.logaddexp(0.0, -logits))
    return out


def expected_error(predicted: Floats, happened: Bools, bins: int) -> float | None:
    """Expected calibration error over `bins` of equal width: mean over samples of |predicted - observed|.

    Args:
        predicted: `[N]`, probabilities.
        happened: `[N]`.

    Returns:
        0 to 1; None without samples.
    """
    if not len(predicted):
        return None
    places = _places(predicted, bins)
    gaps = np.bincount(places, predicted, bins) - np.bincount(places, happened, bins)
    return float(np.abs(gaps).sum() / len(predicted))


def expected_noise(predicted: Floats, bins: int) -> float | None:
    """The error that perfectly calibrated predictions would show, since each bin holds few samples.

    In a bin the observed sum varies around the predicted one with variance `sum p (1 - p)`; the mean of the
    absolute value of a normal variable is `sqrt(2 / pi)` of its deviation.
    """
    if not len(predicted):
        return None
    variance = np.bincount(_places(predicted, bins), predicted * (1 - predicted), bins)
    return float(np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / len(predicted))


def area_under_curve(predicted: Floats, happened: Bools) -> float | None:
    """Chance that a sample that happened was given more than one that did not; equal values count half.

    None if only one of both kinds is there.
    """
    yes = int(happened.sum())
    no = len(happened) - yes
    if not yes or not no:
        return None
    _, inverse, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[happened].sum() - yes * (yes + 1) / 2) / (yes * no))


def reliability(predicted: Floats, happened: Bools, bins: int) -> Reliability:
    """The diagram of `predicted [N]` against `happened [N]`, with its figures."""
    if not len(predicted):
        return Reliability()
    places = _places(predicted, bins)
    counts = np.bincount(places, minlength=bins)
    filled = counts > 0
    mean = np.bincount(places, predicted, bins)[filled] / counts[filled]
    share = np.bincount(places, happened, bins)[filled] / counts[filled]
    return Reliability(
        counts=tuple(int(count) for count in counts[filled]),
        confidence=tuple(round(float(value), _DIGITS) for value in mean),
        accepted=tuple(round(float(value), _DIGITS) for value in share),
        total=len(predicted),
        total_accepted=int(happened.sum()),
        ece=expected_error(predicted, happened, bins),
        noise=expected_noise(predicted, bins),
        auc=area_under_curve(predicted, happened),
    )


def _places(predicted: Floats, bins: int) -> Ints:
    """Bin of each value; 1.0 belongs to the last."""
    return np.clip((predicted * bins).astype(np.int64), 0, bins - 1)
