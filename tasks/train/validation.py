"""Held-out metrics beyond upstream's: how acceptance falls along a block, and how well confidence follows it.

Positions count from 1, the first drafted token, whatever the convention of the anchor: so drafts of both
conventions compare. Each metric is a sum and a total, which add up over batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from tasks.train.loss import BlockOutcome

CALIBRATION_BINS = 10
_CONDITIONAL = re.compile(r"^conditional_(\d+)_acc$")


def validation_sums(outcome: BlockOutcome) -> dict[str, tuple[float, float]]:
    """Metric -> (sum, total).

    `conditional_<k>_acc`: share of right tokens at position k where all before it were right (greedy).
    `conditional_<k>_overlap`: the same under rejection sampling: the expected acceptance at k, weighted by
    the probability that all before it were accepted.
    `confidence_<k>_error`: mean distance between predicted and analytic acceptance at position k.
    `confidence_cumprod_bias`: predicted minus analytic probability that a prefix is accepted (upstream's).
    """
    first = outcome.first_slot
    valid = outcome.valid[:, first:].float()
    # Slots behind the end of a document have no loss; they are neither right nor wrong.
    right = outcome.correct[:, first:] * valid
    overlap = outcome.accept_rate[:, first:] * valid
    sums = _conditional("acc", right, valid) | _conditional("overlap", overlap, valid)
    if outcome.confidence is not None:
        predicted = outcome.confidence[:, first:] * valid
        sums |= _confidence(predicted, overlap, valid)
    return sums


def _conditional(what: str, accepted: Tensor, valid: Tensor) -> dict[str, tuple[float, float]]:
    """Acceptance at each position, given acceptance at all before it."""
    reached = torch.cat([torch.ones_like(accepted[:, :1]), accepted.cumprod(dim=1)[:, :-1]], dim=1) * valid
    values, totals = (reached * accepted).sum(0).tolist(), reached.sum(0).tolist()
    return {
        f"conditional_{slot + 1}_{what}": (value, total)
        for slot, (value, total) in enumerate(zip(values, totals, strict=True))
    }


def _confidence(predicted: Tensor, overlap: Tensor, valid: Tensor) -> dict[str, tuple[float, float]]:
    errors, totals = ((predicted - overlap).abs() * valid).sum(0).tolist(), valid.sum(0).tolist()
    sums = {
        f"confidence_{slot + 1}_error": (error, total)
        for slot, (error, total) in enumerate(zip(errors, totals, strict=True))
    }
    bias = (predicted.cumprod(dim=1) - overlap.cumprod(dim=1)) * valid
    sums["confidence_cumprod_bias"] = (float(bias.sum()), float(valid.sum()))
    return sums | _bins(predicted[valid.bool()], overlap[valid.bool()])


def _bins(predicted: Tensor, overlap: Tensor) -> dict[str, tuple[float, float]]:
    """Signed error and share of the slots in each bin of predicted acceptance, for the calibration error."""
    place = (predicted * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
    error = torch.zeros(CALIBRATION_BINS, dtype=torch.float64).to(predicted.device)
    error.index_add_(0, place, (predicted - overlap).double())
    count = len(predicted)
    return {f"calibration_bin_{n}": (value, float(count)) for n, value in enumerate(error.tolist())}


def finished(means: Mapping[str, float]) -> dict[str, float]:
    """The means, with what only all batches together give.

    `suffix_decay`: slope of the conditional accuracy over the positions (least squares); 0 where acceptance
    does not fall along the block. `confidence_calibration_error`: mean over the bins of predicted acceptance
    of the distance to the analytic one, weighted by how many slots fall into a bin.
    """
    shown = {name: value for name, value in means.items() if not name.startswith("calibration_bin_")}
    bins = [value for name, value in means.items() if name.startswith("calibration_bin_")]
    if bins:
        shown["confidence_calibration_error"] = sum(abs(value) for value in bins)
    curve = conditional_accuracy(means)
    if len(curve) > 1:
        shown["suffix_decay"] = slope(curve)
    return shown


def conditional_accuracy(metrics: Mapping[str, float]) -> dict[int, float]:
    """Position -> conditional accuracy, rising; positions that nothing reached are absent."""
    found = {int(m[1]): value for name, value in metrics.items() if (m := _CONDITIONAL.match(name))}
    return dict(sorted(found.items()))


def slope(curve: Mapping[int, float]) -> float:
    """Least-squares slope of values over positions."""
    places, values = list(curve), list(curve.values())
    middle, mean = sum(places) / len(places), sum(values) / len(values)
    spread = sum((place - middle) ** 2 for place in places)
    return sum((p - middle) * (v - mean) for p, v in zip(places, values, strict=True)) / spread
