"""Calibration of the confidence head by Sequential Temperature Scaling, and its reliability before and after.

From the DSpark paper (arXiv 2607.05147, section 4.2): on held-out data, position after position, one
temperature that minimises the expected calibration error of the cumulative product, earlier positions held
fixed. Dividing a logit by a temperature keeps the order of the confidences at a position, but cannot move one
across 0.5: a head that is wrong on average stays so.

Letters: N blocks, K positions of the block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiles.evaluation import Policy
from tasks.evaluate.policy.models import Calibration, Half, PositionReliability, Reliability, Temperature
from tasks.evaluate.policy.reliability import expected_error, reliability, sigmoid
from tasks.evaluate.policy.slots import Bools, Floats, Slots


def temperature_grid(settings: Policy) -> Floats:
    """Temperatures to try, those near 1 first: of equally good ones the mildest wins."""
    widest = np.log(settings.max_temperature)
    grid = np.linspace(-widest, widest, settings.temperature_steps)
    grid = np.unique(np.append(grid, 0.0))
    return np.asarray(np.exp(grid[np.argsort(np.abs(grid), kind="stable")]))


def scaled(logits: Floats, temperatures: Sequence[float]) -> Floats:
    """Confidences `[N, K]` of `logits [N, K]`, the logits of each position divided by its temperature."""
    return sigmoid(logits / np.asarray(temperatures))


def fit_temperatures(
    logits: Floats, prefix_right: Bools, known: Bools, settings: Policy
) -> tuple[Temperature, ...]:
    """Fit one temperature for each position, left to right.

    Args:
        logits: `[N, K]`, of the confidence head.
        prefix_right: `[N, K]`, the token and all before it were accepted.
        known: `[N, K]`, the answer reaches so far.

    Returns:
        K temperatures; where there are too few samples, 1 and the reason.
    """
    found: list[Temperature] = []
    product = np.ones(len(logits))
    for k in range(logits.shape[1]):
        rows = known[:, k]
        one = _fit(k + 1, product[rows], logits[rows, k], prefix_right[rows, k], settings)
        product = product * sigmoid(logits[:, k] / one.value)
        found.append(one)
    return tuple(found)


def _fit(position: int, before: Floats, logits: Floats, accepted: Bools, settings: Policy) -> Temperature:
    yes = int(accepted.sum())
    no = len(accepted) - yes
    if len(accepted) < settings.min_blocks:
        reason = f"too few blocks: {len(accepted)} of at least {settings.min_blocks}"
        return Temperature(position=position, reason=reason)
    if min(yes, no) < settings.min_outcomes:
        reason = (
            f"{yes} prefixes were accepted and {no} rejected; at least {settings.min_outcomes} of each needed"
        )
        return Temperature(position=position, reason=reason)
    grid = temperature_grid(settings)
    errors = [expected_error(before * sigmoid(logits / value), accepted, settings.bins) for value in grid]
    best = float(grid[int(np.argmin(np.array(errors, dtype=np.float64)))])
    at_end = best in (float(grid.min()), float(grid.max()))
    reason = "the end of the searched range: no temperature calibrates this position" if at_end else ""
    return Temperature(position=position, value=best, fitted=True, reason=reason)


def calibrate(
    slots: Slots, fitting: Bools, settings: Policy, *, draft: str = "", captures: str = ""
) -> Calibration | None:
    """Fit on one half of the prompts, report both.

    Args:
        fitting: `[prompts]`, True for the half to fit on.
        draft: Digest of the draft, kept with the result.
        captures: Digest of the captures.

    Returns:
        None if the draft has no usable confidence head or nothing was drafted.
    """
    if slots.confidence is None or not len(slots.prompt):
        return None
    chosen = slots.round if settings.anchors == "rounds" else np.ones(len(slots.prompt), dtype=bool)
    halves = fitting[slots.prompt]
    fit, rest = chosen & halves, chosen & ~halves
    temperatures = fit_temperatures(
        slots.confidence[fit], slots.prefix_right[fit], slots.known[fit], settings
    )
    return Calibration(
        temperatures=temperatures,
        fit=_half(slots, fit, temperatures, settings.bins),
        report=_half(slots, rest, temperatures, settings.bins),
        anchors=settings.anchors,
        bins=settings.bins,
        draft=draft,
        captures=captures,
    )


def _half(slots: Slots, rows: Bools, temperatures: Sequence[Temperature], bins: int) -> Half:
    """Reliability on the blocks `rows [A]`."""
    assert slots.confidence is not None
    logits = slots.confidence[rows]
    before = sigmoid(logits)
    after = scaled(logits, [one.value for one in temperatures])
    right, known = slots.right[rows], slots.known[rows]
    prefix = slots.prefix_right[rows]
    reached = known & np.hstack([np.ones((len(right), 1), dtype=bool), prefix[:, :-1]])
    positions = tuple(
        _position(k, before, after, right, known, reached, slots.overlap[rows], bins)
        for k in range(slots.positions)
    )
    return Half(
        prompts=len(np.unique(slots.prompt[rows])),
        blocks=int(rows.sum()),
        positions=positions,
        before=reliability(before[reached], right[reached], bins),
        after=reliability(after[reached], right[reached], bins),
        cumulative_before=reliability(
            np.cumprod(before, axis=1, dtype=np.float64)[known], prefix[known], bins
        ),
        cumulative_after=reliability(np.cumprod(after, axis=1, dtype=np.float64)[known], prefix[known], bins),
        cumulative_ece_before=_mean([one.cumulative_before for one in positions]),
        cumulative_ece_after=_mean([one.cumulative_after for one in positions]),
    )


def _position(
    k: int,
    before: Floats,
    after: Floats,
    right: Bools,
    known: Bools,
    reached: Bools,
    overlap: Floats,
    bins: int,
) -> PositionReliability:
    conditional, whole = reached[:, k], known[:, k]
    prefix = np.logical_and.accumulate(right, axis=1)[whole, k]
    seen = overlap[conditional, k]
    seen = seen[np.isfinite(seen)]
    return PositionReliability(
        position=k + 1,
        conditional_before=reliability(before[conditional, k], right[conditional, k], bins),
        conditional_after=reliability(after[conditional, k], right[conditional, k], bins),
        cumulative_before=reliability(np.prod(before[whole, : k + 1], axis=1), prefix, bins),
        cumulative_after=reliability(np.prod(after[whole, : k + 1], axis=1), prefix, bins),
        overlap=float(seen.mean()) if len(seen) else None,
    )


def _mean(parts: Sequence[Reliability]) -> float | None:
    errors = [part.ece for part in parts if part.ece is not None]
    return sum(errors) / len(errors) if errors else None


def calibration_notes(calibration: Calibration) -> list[str]:
    """What a reader must know before believing the calibration."""
    notes = [
        f"confidence, position {one.position}: {'fitted at' if one.fitted else 'not fitted,'} {one.reason}"
        for one in calibration.temperatures
        if one.reason
    ]
    for name, half in (("fitted", calibration.fit), ("reported", calibration.report)):
        if not half.blocks:
            notes.append(
                f"confidence: no prompt fell into the {name} half; more evaluation prompts are needed"
            )
    after, before = calibration.report.cumulative_ece_after, calibration.report.cumulative_ece_before
    if after is not None and before is not None and after > before:
        notes.append(
            f"confidence: scaling made the error of the other half larger ({before:.1%} to {after:.1%}); "
            "leave the confidences as they are"
        )
    return notes
