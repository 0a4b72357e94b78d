"""Figures of acceptance: by domain and arm, along the block, and over the length of the prompt.

Arms stand beside each other in tokens per step, since not every method drafts in every step. Along the block
it is asked how good drafted tokens are, so there only rounds with a draft count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.evaluation import DRAFT, INCUMBENT
from tasks.evaluate.arm_models import ArmDetail
from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.evaluate.worth.models import ContextTau
from tasks.report.figures import Colours, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MACRO = "macro"
FEW_ROUNDS = 30
"""A conditional share from fewer rounds is drawn hollow: it may be chance."""


@dataclass(frozen=True)
class Style:
    """How one arm is drawn: colour, mark and dash, so that no two differ by colour alone."""

    colour: str
    mark: str
    dash: str = "-"


STYLES = {
    "replay": Style("replay", "o"),
    "draft": Style("replay", "o"),
    "live": Style("live", "s"),
    "incumbent": Style("incumbent", "D", "--"),
    "ngram": Style("other", "^", "-."),
    "suffix": Style("further", "v", ":"),
    "mtp": Style("further", "P", "--"),
    "plain": Style("ink", "x"),
}
OWN = (
    Style("further", "X", "--"),
    Style("other", "p", ":"),
    Style("ink", "*", "-."),
    Style("live", "h", ":"),
)
"""Arms with names of the user's own, in the order in which they are drawn."""


def styles(names: Iterable[str]) -> dict[str, Style]:
    """How each of these arms is drawn; no two alike, up to four names of the user's own."""
    found, own = {}, itertools.cycle(OWN)
    for name in names:
        found[name] = STYLES.get(name.split(" ")[0]) or next(own)
    return found


def per_drafted_round(evaluation: EvaluationReport) -> dict[str, Measurement]:
    """Acceptance over the rounds that drafted, by the name in the legend: the quality of drafted tokens."""
    return _series(evaluation, evaluation.live, lambda arm: arm.acceptance)


def per_step(evaluation: EvaluationReport) -> dict[str, Measurement]:
    """Tokens per step of everything that drafts, by the name in the legend: what compares methods."""
    return _series(evaluation, evaluation.live_per_step, lambda arm: arm.tokens_per_step)


def _series(
    evaluation: EvaluationReport, live: Measurement, of: Callable[[ArmDetail], Measurement | None]
) -> dict[str, Measurement]:
    decided, old = evaluation.decided, evaluation.incumbent_replay
    found: dict[str, Measurement | None] = {"replay": evaluation.replay}
    found["live" if decided == DRAFT and evaluation.replay.pooled.rounds else decided] = live
    if old is not None:
        found["incumbent (replay)"] = old
    for arm in evaluation.arms_detail.arms if evaluation.arms_detail else ():
        replayed = arm.name == INCUMBENT and old is not None
        if arm.acceptance is not None and arm.name != decided and not replayed:
            found[arm.name] = of(arm)
    return {name: one for name, one in found.items() if one is not None and one.pooled.rounds}


def tau_by_domain(series: Mapping[str, Measurement]) -> Drawing | None:
    """Tokens per step of each domain and arm with its interval, by falling value of the first arm."""
    first = next(iter(series.values()), None)
    if first is None:
        return None
    known = [name for name, tau in first.domains.items() if tau.value is not None]
    known.sort(key=lambda name: -(first.domains[name].value or 0))
    rows = [MACRO, *known] if first.macro.value is not None else known
    if not rows:
        return None

    drawn = styles(series)

    def draw(axes: Axes, colours: Colours) -> None:
        for place, (name, one) in enumerate(series.items()):
            shift = min(0.18, 0.7 / len(series)) * (place - (len(series) - 1) / 2)
            _dots(axes, one, rows, shift, name, drawn[name], colours)
        axes.axvline(1.0, color=colours["muted"], linewidth=1)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        for row in range(len(rows) - 1):
            axes.axhline(row + 0.5, color=colours["grid"], linewidth=0.6)
        axes.grid(axis="x", color=colours["grid"], linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="both", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("tokens per step of the engine (1.0 = no draft)")
        _legend_above(axes, len(series))

    return Drawing("Tokens per step, by domain and arm", 0.9 + (0.18 + 0.08 * len(series)) * len(rows), draw)


def _dots(
    axes: Axes, one: Measurement, rows: Sequence[str], shift: float, name: str, style: Style, colours: Colours
) -> None:
    label = name
    for row, domain in enumerate(rows):
        tau: TauEstimate | None = one.macro if domain == MACRO else one.domains.get(domain)
        if tau is None or tau.value is None:
            continue
        colour = colours[style.colour]
        if tau.low is not None and tau.high is not None:
            axes.plot([tau.low, tau.high], [row + shift] * 2, color=colour, linewidth=1.8)
        axes.plot(
            [tau.value], [row + shift], color=colour, marker=style.mark, markersize=6.5,
            markeredgecolor=colours["paper"], markeredgewidth=0.6, linestyle="none", label=label,
        )  # fmt: skip
        label = "_"


def _legend_above(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=min(4, columns), handlelength=1.2, columnspacing=1.2,
        borderpad=0, fontsize=9,
    )  # fmt: skip


def conditional_shares(tau: TauEstimate) -> list[tuple[float, int]]:
    """(share accepted of the rounds that reached the position, those rounds) for each position.

    Ends where nothing reached a position: the share is then not zero, it is unknown.
    """
    shares = []
    before = 1.0
    for now in tau.per_position:
        reached = round(tau.rounds * before)
        if reached == 0:
            break
        shares.append((now / before, reached))
        before = now
    return shares


def suffix_decay(series: Mapping[str, Measurement]) -> Drawing | None:
    """Conditional acceptance along the block: how likely the next token is right if all before it were.

    Args:
        series: From `per_drafted_round`.
    """
    lines = {name: shares for name, one in series.items() if (shares := conditional_shares(one.pooled))}
    if not lines:
        return None
    drawn = styles(lines)

    def draw(axes: Axes, colours: Colours) -> None:
        for name, shares in lines.items():
            style = drawn[name]
            colour = colours[style.colour]
            places = range(1, len(shares) + 1)
            values = [100 * share for share, _ in shares]
            axes.plot(places, values, color=colour, linestyle=style.dash, linewidth=1.8, label=name,
                      marker=style.mark, markersize=5)  # fmt: skip
            few = [(p, v) for p, v, (_, n) in zip(places, values, shares, strict=True) if n < FEW_ROUNDS]
            if few:
                axes.plot(*zip(*few, strict=True), color=colour, marker=style.mark, markersize=6,
                          markerfacecolor=colours["paper"], linestyle="none")  # fmt: skip
        axes.set_xticks(range(1, max(map(len, lines.values())) + 1))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("position in the block")
        axes.set_ylabel("accepted if all before are, %")
        _grid(axes, colours)
        axes.legend(loc="best")

    return Drawing("Conditional acceptance along the block", 2.7, draw)


def tau_over_context(contexts: Sequence[ContextTau]) -> Drawing | None:
    """Acceptance length over the prompt's length; nothing where there is only one range."""
    known = [one for one in contexts if one.tau.value is not None]
    if len(known) < 2:
        return None

    def draw(axes: Axes, colours: Colours) -> None:
        places = list(range(len(known)))
        values = [one.tau.value or 0.0 for one in known]
        low = [value - (one.tau.low or value) for one, value in zip(known, values, strict=True)]
        high = [(one.tau.high or value) - value for one, value in zip(known, values, strict=True)]
        axes.errorbar(places, values, yerr=[low, high], color=colours["replay"], marker="o", markersize=5,
                      linewidth=1.8, capsize=3, label="pooled, interval")  # fmt: skip
        _spread(axes, known, "top_tenth", "^", "best tenth: at least", colours)
        _spread(axes, known, "best", "x", "best prompt", colours)
        axes.axhline(1.0, color=colours["muted"], linewidth=1)
        axes.set_xticks(places, [f"{one.at_least:,}-{one.below:,}\n{one.prompts} prompts" for one in known])
        axes.set_xlabel("prompt length, tokens")
        axes.set_ylabel("tokens per round")
        _grid(axes, colours)
        axes.margins(x=0.08, y=0.1)
        _legend_above(axes, 3)

    return Drawing("Acceptance length over the length of the prompt", 3.0, draw)


def _spread(
    axes: Axes, known: Sequence[ContextTau], field: str, mark: str, label: str, colours: Colours
) -> None:
    points = [(i, value) for i, one in enumerate(known) if (value := getattr(one, field)) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=colours["muted"], marker=mark, markersize=5,
                  linestyle="none", label=label)  # fmt: skip


def _grid(axes: Axes, colours: Colours) -> None:
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0)
    axes.spines["left"].set_visible(False)
