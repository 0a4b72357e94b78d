"""Figures of speed: speed-up over concurrency with its crossover, and the Pareto fronts of the arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.evaluate.worth.models import Curve, FrontPoint, Matched, Worth
from tasks.evaluate.worth.points import DRAFT, PLAIN
from tasks.report.evaluation_figures import Style, styles
from tasks.report.figures import Colours, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEANINGLESS = " - meaningless: Triton's interpreter"


def speed_up_over_concurrency(worth: Worth) -> Drawing | None:
    """Every arm's output tokens/s over those without a draft; None without a usable pair of points."""
    curves = [one for one in worth.curves if one.baseline == PLAIN and one.points]
    if not curves:
        return None
    drawn = styles(one.arm for one in curves)

    def draw(axes: Axes, colours: Colours) -> None:
        for one in curves:
            _line(axes, one, drawn[one.arm], colours)
        axes.axhline(1.0, color=colours["ink"], linewidth=1)
        places = sorted({point.concurrency for one in curves for point in one.points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("concurrency, requests in flight")
        axes.set_ylabel("speed-up of output tokens/s")
        _crossover(axes, curves[0], colours)
        _grid(axes, colours)
        axes.legend(loc="lower left", fontsize=9)

    return Drawing("Speed-up over concurrency (1.0 = no draft)" + _warning(worth), 3.1, draw)


def _line(axes: Axes, one: Curve, style: Style, colours: Colours) -> None:
    colour = colours[style.colour]
    x = [point.concurrency for point in one.points]
    axes.plot(x, [point.speedup for point in one.points], color=colour, linestyle=style.dash, linewidth=1.8,
              marker=style.mark, markersize=5, label=one.arm)  # fmt: skip
    bounded = [p for p in one.points if p.low is not None and p.high is not None]
    if bounded and one.arm == DRAFT:
        low, high = [p.low or 0.0 for p in bounded], [p.high or 0.0 for p in bounded]
        axes.fill_between([p.concurrency for p in bounded], low, high, color=colour, alpha=0.18, linewidth=0)


def _crossover(axes: Axes, one: Curve, colours: Colours) -> None:
    if one.arm != DRAFT:
        return
    top = axes.get_ylim()[1]
    if one.crossover is None:
        if one.points[-1].speedup > 1:
            axes.annotate("crossover beyond\nthe range measured", (1, 0.97), xycoords="axes fraction",
                          ha="right", va="top", fontsize=9, color=colours["muted"])  # fmt: skip
        return
    axes.axvline(one.crossover, color=colours["muted"], linewidth=1, linestyle=":")
    axes.annotate(
        f"crossover {one.crossover:.0f}", (one.crossover, top), xytext=(4, -3), textcoords="offset points",
        ha="left", va="top", fontsize=9, color=colours["muted"],
    )  # fmt: skip


def pareto(worth: Worth) -> Drawing | None:
    """Output tokens/s over tokens/s/user for each arm; numbers are the concurrency of a point."""
    fronts = {arm: points for arm, points in worth.fronts.items() if points}
    if len(fronts) < 2:
        return None
    drawn = styles(fronts)

    def draw(axes: Axes, colours: Colours) -> None:
        for arm, points in fronts.items():
            _front(axes, arm, points, drawn[arm], colours)
        axes.margins(x=0.1, y=0.12)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        _matched(axes, worth.matched, colours)
        axes.set_xlabel("interactivity, tokens/s/user")
        axes.set_ylabel("output tokens/s, all users")
        _grid(axes, colours)
        axes.legend(loc="best", fontsize=9)

    return Drawing("Throughput against interactivity (Pareto)" + _warning(worth), 3.3, draw)


def _front(axes: Axes, arm: str, points: Sequence[FrontPoint], style: Style, colours: Colours) -> None:
    colour = colours[style.colour]
    x, y = [p.tokens_per_s_per_user for p in points], [p.tokens_per_s for p in points]
    axes.plot(
        x, y, color=colour, linestyle=style.dash, linewidth=1.8, marker=style.mark, markersize=5, label=arm
    )
    if arm in (DRAFT, PLAIN):
        above = arm == DRAFT  # the fronts cross, so labels of the two stay on different sides
        for point in points:
            axes.annotate(
                str(point.concurrency), (point.tokens_per_s_per_user, point.tokens_per_s),
                xytext=(5, 4) if above else (-6, 0), textcoords="offset points",
                ha="left" if above else "right", va="bottom" if above else "center", fontsize=8.5,
                color=colour,
            )  # fmt: skip


def _matched(axes: Axes, found: Sequence[Matched], colours: Colours) -> None:
    """A line between both fronts where the draft gives most more throughput."""
    best = max(found, key=lambda one: one.ratio, default=None)
    if best is None or best.ratio <= 1:
        return
    x = best.tokens_per_s_per_user
    ends = best.plain_tokens_per_s, best.draft_tokens_per_s
    axes.plot([x, x], ends, color=colours["muted"], linewidth=1.2, linestyle=":")
    axes.annotate(
        f"{best.ratio:.1f}x at {x:.0f}", (x, sum(ends) / 2), xytext=(4, 0), textcoords="offset points",
        va="center", fontsize=9, color=colours["muted"],
    )  # fmt: skip


def _warning(worth: Worth) -> str:
    return "" if worth.measured.speed_is_meaningful else MEANINGLESS


def _grid(axes: Axes, colours: Colours) -> None:
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0)
    axes.spines["left"].set_visible(False)
