"""The first sentence: worth it up to where, not worth it and why, or what would settle it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.evaluate.worth.models import BestK, Curve, Figure, Objective, Power, SpeedUp, Verdict
from tasks.evaluate.worth.objectives import highest_met
from tasks.evaluate.worth.points import DRAFT, PLAIN
from tasks.evaluate.worth.power import power
from tasks.evaluate.worth.wording import at_least, at_most, times, tokens, two_digits

INCUMBENT = "incumbent"
UNTRAINED = ("ngram", "suffix", "mtp")
"""Arms that need no draft of their own."""


@dataclass(frozen=True)
class Evidence:
    """Everything that the sentence may say.

    Args:
        tau: Macro tokens per step: the acceptance length by replay, or the arm's own on servers that run
            already; its value is None if no draft was observed.
        compared: Answers compared with those without a draft, and how many of them differ.
        gain: Macro acceptance length against the incumbent's, paired by prompt.
        curve: Speed-up over the plain arm; None without a usable load sweep or where speeds mean nothing.
        rivals: Speed-up of the draft over every other arm.
        others: Macro tokens per step on the engine of the other arms whose answers are not wrong.
        live: Those of the draft on the same prompts.
    """

    tau: Figure
    prompts: int
    block_size: int
    lossless: str
    compared: int
    different: int
    confidence: float
    speed_is_meaningful: bool
    incumbent: str | None = None
    gain: Figure = field(default_factory=Figure)
    curve: Curve | None = None
    rivals: tuple[Curve, ...] = ()
    objectives: tuple[Objective, ...] = ()
    best_k: tuple[BestK, ...] = ()
    others: Mapping[str, Figure] = field(default_factory=dict)
    live: Figure = field(default_factory=Figure)
    swept: bool = False
    """Whether a load sweep was made at all."""


@dataclass(frozen=True)
class Said:
    """Verdict, its sentence, and the power behind an open question."""

    verdict: Verdict
    sentence: str
    power: Power | None = None


def say(found: Evidence) -> Said:
    """Decide, in the order in which one fact overrules the next."""
    if found.tau.value is None:
        return Said(
            "not_measured", "not measured: no drafts were observed, so nothing is known of this draft"
        )
    if not found.compared:
        return Said(
            "undecided",
            "undecided: no answer was compared with the target's own, so losslessness is not shown",
        )
    if found.lossless == "different":
        what = f"with the draft, {found.different} of {found.compared} answers differ from the target's own"
        return Said("not_worth", f"not worth it: {what}")
    if found.tau.value <= 1:
        return Said("not_worth", "not worth it: no draft token was accepted")
    if found.curve is None or not found.curve.points:
        return acceptance_only(found)
    return under_load(found, found.curve)


def acceptance_only(found: Evidence) -> Said:
    """Without speeds, what a round may cost is all that can be said."""
    low = found.tau.low if found.tau.low is not None else found.tau.value or 1.0
    against, tested = _against_incumbent(found)
    unknown = "speed under load was not measured"
    if not found.speed_is_meaningful:
        unknown = "speed is not known (Triton's interpreter)"
    elif found.swept:
        unknown = "no point of the load sweep can be used"
    text = (
        f"acceptance only: {tokens(found.tau)} tokens per step with K {found.block_size}{against}"
        f"{_better(found)}; it pays where a step costs less than {max(low, 1.0):.2f} steps without a "
        f"draft; {unknown}"
    )
    return Said("acceptance_only", text, tested)


def _better(found: Evidence) -> str:
    """The best other arm, if it yields more than this draft on the same prompts."""
    known = {name: one.value for name, one in found.others.items() if one.value is not None}
    best = max(known, key=lambda name: known[name], default=None)
    if best is None or found.live.value is None or known[best] <= found.live.value:
        return ""
    both = f"{found.live.value:.2f} against {known[best]:.2f} on the same prompts"
    why = ", which needs no training" if best in UNTRAINED else ""
    return f", less than {best}{why} ({both})"


def _against_incumbent(found: Evidence) -> tuple[str, Power | None]:
    if found.incumbent is None or found.gain.value is None:
        return "", power("tokens per step beyond 1", _beyond_one(found.tau), found.prompts, found.confidence)
    tested = power(f"tokens per step against {found.incumbent}", found.gain, found.prompts, found.confidence)
    difference = tokens(found.gain, signed=True)
    low, high = found.gain.low, found.gain.high
    if low is not None and low > 0:
        return f", {difference} over {found.incumbent}", tested
    if high is not None and high < 0:
        return f", less than {found.incumbent} ({difference})", tested
    return f", undecided against {found.incumbent}: {difference}{settling(tested)}", tested


def _beyond_one(tau: Figure) -> Figure:
    if tau.value is None or tau.low is None or tau.high is None:
        return Figure()
    return Figure(value=tau.value - 1, low=tau.low - 1, high=tau.high - 1)


def settling(tested: Power | None, factor: bool = False) -> str:
    """What these prompts can show, and how many more would settle it; empty without an interval.

    Args:
        factor: Effects are logarithms of a speed-up.
    """
    if tested is None:
        return ""
    smallest, seen = f"{tested.detectable:.2f}", f"{tested.observed:+.2f}"
    if factor:
        smallest, seen = f"{math.exp(tested.detectable):.2f}x", f"{math.exp(tested.observed):.2f}x"
    text = f" (these {tested.prompts} prompts show {smallest} or more; "
    if tested.more_prompts is None:
        return text + "no sensible number of prompts would settle so small a difference)"
    return text + f"about {two_digits(tested.more_prompts):,} more would settle {seen})"


def under_load(found: Evidence, curve: Curve) -> Said:
    """The sentence where speeds were measured."""
    gains = [point for point in curve.points if point.standing == "gain"]
    if gains:
        return _gain(found, curve, gains)
    best = max(curve.points, key=lambda point: point.speedup)
    where = _range(curve.points)
    if all(point.standing == "loss" for point in curve.points):
        text = f"not worth it: slower than without a draft at concurrency {where}, {_at(best)} at best"
        return Said("not_worth", text + _targets(found))
    still_open = [point for point in curve.points if point.standing == "open"]
    closest = max(still_open, key=lambda point: point.speedup)
    tested = speed_power(closest, found)
    lost = [point.concurrency for point in curve.points if point.standing == "loss"]
    above = f"; slower at {', '.join(map(str, lost))}" if lost else ""
    text = f"undecided: {_at(closest)}{settling(tested, factor=True)}{above}{_targets(found)}"
    if closest.low is None:
        text += "; without an interval, since no point was measured twice and acceptance has none"
    return Said("undecided", text, tested)


def speed_power(point: SpeedUp, found: Evidence) -> Power | None:
    """Power of one measured speed-up, on the scale of its logarithm."""
    if point.low is None or point.high is None:
        return None
    effect = Figure(value=math.log(point.speedup), low=math.log(point.low), high=math.log(point.high))
    return power(f"log speed-up at {point.concurrency}", effect, found.prompts, found.confidence)


def _gain(found: Evidence, curve: Curve, gains: Sequence[SpeedUp]) -> Said:
    worth = _first_run(curve.points)
    beaten = [rival for rival in found.rivals if _all(rival, worth, "loss")]
    if beaten:
        return Said("not_worth", f"not worth it: {_faster(beaten[0], worth)}{_targets(found)}")
    if found.objectives and _only_plain_meets(found.objectives):
        return Said(
            "not_worth", f"not worth it: it misses the targets that are met without it, at {_at(worth[0])}"
        )
    ends = f"{_at(worth[0])}" if len(worth) == 1 else f"{_at(worth[0])}, {_at(worth[-1])}"
    text = (
        f"WORTH IT {_reach(curve, worth)}: {ends}{_end(curve, worth)}{_rivals(found, worth)}{_targets(found)}"
    )
    return Said("worth", f"{text}; {best_k(found, worth)}")


def _first_run(points: Sequence[SpeedUp]) -> list[SpeedUp]:
    """The first unbroken run of points that are faster beyond doubt."""
    run: list[SpeedUp] = []
    for point in points:
        if point.standing == "gain":
            run.append(point)
        elif run:
            break
    return run


def _reach(curve: Curve, worth: Sequence[SpeedUp]) -> str:
    starts = worth[0] is curve.points[0]
    if worth[-1] is curve.points[-1]:
        last = worth[-1].concurrency
        sofar = f"up to concurrency {last}, the highest measured"
        return sofar if starts else f"from concurrency {worth[0].concurrency}, {sofar}"
    if starts and curve.sure_up_to is not None:
        return f"up to concurrency {at_most(curve.sure_up_to)}"
    return f"at concurrency {_range(worth)}"


def _end(curve: Curve, worth: Sequence[SpeedUp]) -> str:
    """Where it certainly ends, or that it may end somewhere beyond."""
    if worth[-1] is curve.points[-1]:
        return ""
    after = [p for p in curve.points if p.concurrency > worth[-1].concurrency]
    if any(point.standing == "gain" for point in after):
        lost = [str(point.concurrency) for point in after if point.standing != "gain"]
        return f"; not at {', '.join(lost)}"
    if curve.lost_above is not None:
        return f"; not above {at_least(curve.lost_above)}"
    return f"; open from there to {after[-1].concurrency}, the highest measured"


def _rivals(found: Evidence, worth: Sequence[SpeedUp]) -> str:
    """Arms that the draft does not beat everywhere in its range; one more clause for each."""
    clauses = []
    for rival in found.rivals:
        shared = _shared(rival, worth)
        behind = [point for point in shared if point.standing != "gain"]
        if behind:
            worst = min(behind, key=lambda point: point.speedup)
            clauses.append(f"; against {_arm(rival.baseline, found)} only {_at(worst)}")
    return "".join(clauses)


def _faster(rival: Curve, worth: Sequence[SpeedUp]) -> str:
    slowest = min(_shared(rival, worth), key=lambda point: point.speedup)
    why = ", which needs no training," if rival.baseline in UNTRAINED else ""
    return f"arm {rival.baseline}{why} is faster; the draft reaches {_at(slowest)} of its speed"


def _arm(name: str, found: Evidence) -> str:
    return f"the incumbent {found.incumbent}" if name == INCUMBENT and found.incumbent else name


def _shared(rival: Curve, worth: Sequence[SpeedUp]) -> list[SpeedUp]:
    wanted = {point.concurrency for point in worth}
    return [point for point in rival.points if point.concurrency in wanted]


def _all(rival: Curve, worth: Sequence[SpeedUp], standing: str) -> bool:
    shared = _shared(rival, worth)
    return bool(shared) and all(point.standing == standing for point in shared)


def _only_plain_meets(found: tuple[Objective, ...]) -> bool:
    return highest_met(found, DRAFT) is None and highest_met(found, PLAIN) is not None


def _targets(found: Evidence) -> str:
    if not found.objectives:
        return ""
    ours, plain = highest_met(found.objectives, DRAFT), highest_met(found.objectives, PLAIN)
    without = f"{plain} without" if plain is not None else "nowhere without"
    if ours is None:
        return f"; misses the profile's targets at every concurrency measured ({without})"
    return f"; meets the profile's targets up to {ours} ({without})"


def best_k(found: Evidence, worth: Sequence[SpeedUp]) -> str:
    """Draft tokens to serve with: what was recommended for the range, else the only number measured."""
    wanted = {point.concurrency for point in worth}
    drafting = [one for one in found.best_k if one.tokens > 0]
    chosen = [one for one in drafting if one.concurrency in wanted] or drafting
    if not chosen:
        return f"K {found.block_size}, the only one measured"
    other = any(one.tokens != found.block_size for one in chosen)
    with_k = f" (measured with K {found.block_size})" if other else ""
    if len({one.tokens for one in chosen}) == 1:
        return f"best K {chosen[0].tokens}{with_k}"
    return "best K " + ", ".join(f"{one.tokens} at {one.concurrency}" for one in chosen) + with_k


def _at(point: SpeedUp) -> str:
    return f"{times(point)} at {point.concurrency}"


def _range(points: Sequence[SpeedUp]) -> str:
    first, last = points[0].concurrency, points[-1].concurrency
    return str(first) if first == last else f"{first} to {last}"
