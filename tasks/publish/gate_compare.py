"""Is the candidate better than the incumbent, and does no domain pay for it? Paired, from the same run."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluate.models import Difference, EvaluationReport
from tasks.publish.models import Standing


@dataclass(frozen=True)
class ToBeat:
    """The incumbent of a decision."""

    name: str
    changes: tuple[str, ...] = ()
    """What is different about the target since the incumbent was made; empty if nothing is."""


@dataclass(frozen=True)
class Compared:
    """What the comparison says."""

    better: bool
    sentence: str
    standing: Standing
    first: bool = False
    """Judged as a first draft, against no draft at all."""
    fallen: tuple[str, ...] = ()
    """Domains that lost more than they may."""
    remarks: tuple[str, ...] = ()


def compare(
    evaluation: EvaluationReport, incumbent: ToBeat | None, *, margin: float, drop: float, level: float
) -> Compared:
    """Is the candidate better by more than the margin, by the lower bound?

    Args:
        margin: Tokens per round, macro.
        drop: Share of the incumbent's acceptance length that a domain may lose.
        level: Confidence of the intervals, two-sided.
    """
    macro = evaluation.replay.macro
    standing = _standing(evaluation, incumbent)
    if macro.value is None or macro.low is None:
        return Compared(False, "the candidate's acceptance length is unknown", standing)
    if incumbent is None:
        return _as_first(evaluation, "first draft", standing, margin, level)
    changed = f"the target is another than the one {incumbent.name} was made for ({_list(incumbent.changes)})"
    if standing == "unmeasured" and incumbent.changes:
        # It cannot draft for this target, so there is nothing to lose by replacing it.
        words = f"first draft for this target: {changed}, and it cannot be measured on this one"
        return _as_first(evaluation, words, standing, margin, level)
    gain, old = evaluation.incumbent_gain, evaluation.incumbent_replay
    if evaluation.incumbent != incumbent.name or gain is None or gain.low is None or old is None:
        why = evaluation.incumbent_unmeasured if standing == "unmeasured" else ""
        return Compared(
            False,
            f"the incumbent {incumbent.name} was not measured on the same prompts, so nothing shows a gain"
            + (f" ({why})" if why else ""),
            standing,
        )
    better = gain.low > margin
    fallen, remarks = fallen_domains(evaluation, drop, level)
    again = [f"{changed}: it is unverified, and was measured again here"] if incumbent.changes else []
    return Compared(
        better,
        f"macro acceptance length {macro.value:.3f} against {_tau(old.macro.value)} of {incumbent.name}: "
        f"difference {_signed(gain.value)}, paired by prompt, lower {level:.0%} bound {gain.low:+.3f}, "
        f"{'above' if better else 'not above'} {margin:.3f}",
        standing,
        fallen=tuple(fallen),
        remarks=(*again, *remarks),
    )


def fallen_domains(evaluation: EvaluationReport, drop: float, level: float) -> tuple[list[str], list[str]]:
    """Domains that fell by more than they may, and those of which the prompts cannot say.

    A domain has fallen if its paired interval lies below no change *and* its difference is beyond the limit:
    a dozen prompts move by more than the limit through chance alone. The intervals hold for all domains
    together. What is beyond the limit without the interval's word is a remark.

    Args:
        drop: Share of the incumbent's acceptance length.
    """
    old = evaluation.incumbent_replay
    if old is None:
        return [], []
    if not evaluation.incumbent_domains:
        return [
            "nothing was compared by domain: run evaluate again (retrain-dspark resume RUN --from evaluate)"
        ], []
    fallen, remarks = [], []
    for name, change in evaluation.incumbent_domains.items():
        before = old.domains[name].value if name in old.domains else None
        if before is None or change.value is None or change.value >= -drop * before:
            continue
        words = (
            f"{name}: acceptance length {change.value:+.3f} against {before:.3f}, a fall of "
            f"{-change.value / before:.1%}, more than {drop:.1%}"
        )
        if _lies_below(change):
            fallen.append(
                f"{words} (paired interval {_bounds(change)}, {level:.0%} for all domains together)"
            )
        else:
            remarks.append(f"{words}, but its interval {_bounds(change)} holds no change too")
    return fallen, remarks


def _lies_below(change: Difference) -> bool:
    return change.high is not None and change.high < 0


def _bounds(change: Difference) -> str:
    return f"{_signed(change.low)} to {_signed(change.high)}"


def _as_first(
    evaluation: EvaluationReport, words: str, standing: Standing, margin: float, level: float
) -> Compared:
    """Against no draft at all, where a round yields one token."""
    macro = evaluation.replay.macro
    value, low = macro.value or 0.0, macro.low or 0.0
    better = low > 1.0 + margin
    return Compared(
        better,
        f"{words}: macro acceptance length {value:.3f}, lower {level:.0%} bound {low:.3f}, "
        f"{'above' if better else 'not above'} {1.0 + margin:.3f}",
        standing,
        first=True,
    )


def _standing(evaluation: EvaluationReport, incumbent: ToBeat | None) -> Standing:
    if incumbent is None:
        return "none"
    if evaluation.incumbent is None and evaluation.incumbent_unmeasured:
        return "unmeasured"
    return "unverified" if incumbent.changes else "verified"


def _list(changes: tuple[str, ...]) -> str:
    return "; ".join(changes)


def _tau(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f}"
