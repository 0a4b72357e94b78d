"""Figures of the confidence head before and after scaling, and of the speed-up that is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.evaluate.policy.models import PolicyReport, PositionReliability, Reliability
from tasks.report.figures import Colours, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALLEST, _LARGEST = 12.0, 130.0
"""Areas of the marks, square points."""


def policy_drawings(policy: PolicyReport | None) -> dict[str, Drawing | None]:
    """Every figure of calibration and policy by name; None where there is nothing to draw."""
    return {
        "reliability": reliability_diagram(policy) if policy else None,
        "calibration": calibration_error(policy) if policy else None,
        "speedup_by_tokens": speedup_by_concurrency(policy) if policy else None,
    }


def reliability_diagram(policy: PolicyReport) -> Drawing | None:
    """Accepted share against the chance that the head gave a prefix, before and after scaling."""
    if policy.calibration is None or not policy.calibration.report.cumulative_before.counts:
        return None
    half = policy.calibration.report
    fitted = any(one.fitted for one in policy.calibration.temperatures)

    def draw(axes: Axes, colours: Colours) -> None:
        axes.plot([0, 100], [0, 100], color=colours["muted"], linewidth=1, linestyle="--", label="perfect")
        _marks(axes, half.cumulative_before, "as trained", "incumbent", "s", colours)
        if fitted:
            _marks(axes, half.cumulative_after, "after scaling", "replay", "o", colours)
        axes.set_xlim(-3, 103)
        axes.set_ylim(-3, 103)
        axes.set_xlabel("predicted chance that the prefix is accepted, %")
        axes.set_ylabel("accepted, % of blocks")
        _quiet(axes, colours, "both")
        axes.legend(loc="best", handletextpad=0.4)

    return Drawing("Reliability of the confidence head, held-out prompts", 3.4, draw)


def _marks(axes: Axes, measured: Reliability, name: str, colour: str, marker: str, colours: Colours) -> None:
    """One line through the bins; the area of a mark grows with the blocks in its bin."""
    x = [100 * value for value in measured.confidence]
    y = [100 * value for value in measured.accepted]
    most = max(measured.counts)
    sizes = [_SMALLEST + (_LARGEST - _SMALLEST) * count / most for count in measured.counts]
    error = "" if measured.ece is None else f", ECE {100 * measured.ece:.1f} %"
    axes.plot(x, y, color=colours[colour], linewidth=1.2, zorder=2)
    axes.scatter(
        x, y, s=sizes, marker=marker, color=colours[colour], edgecolor=colours["paper"], linewidth=0.6,
        zorder=3, label=f"{name}{error}",
    )  # fmt: skip


def calibration_error(policy: PolicyReport) -> Drawing | None:
    """Error of the cumulative product at each position, and what chance alone would show."""
    if policy.calibration is None:
        return None
    positions = [one for one in policy.calibration.report.positions if one.cumulative_before.ece is not None]
    if not positions:
        return None

    def draw(axes: Axes, colours: Colours) -> None:
        series = {"as trained": ("incumbent", _errors(positions, "before"), -0.2),
                  "after scaling": ("replay", _errors(positions, "after"), 0.2)}  # fmt: skip
        for name, (colour, values, shift) in series.items():
            places = [one.position + shift for one in positions]
            axes.bar(places, values, width=0.38, color=colours[colour], label=name)
        noise = [100 * (one.cumulative_before.noise or 0.0) for one in positions]
        for index, (one, value) in enumerate(zip(positions, noise, strict=True)):
            axes.plot([one.position - 0.4, one.position + 0.4], [value, value], color=colours["ink"],
                      linewidth=1.4, label="by chance alone" if index == 0 else None)  # fmt: skip
        axes.set_xticks([one.position for one in positions])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("position in the block")
        axes.set_ylabel("calibration error (ECE), %")
        _quiet(axes, colours, "y")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderpad=0, fontsize=9)

    return Drawing("Calibration error per position, held-out prompts", 2.7, draw)


def _errors(positions: Sequence[PositionReliability], when: str) -> list[float]:
    parts = [one.cumulative_before if when == "before" else one.cumulative_after for one in positions]
    return [100 * (part.ece or 0.0) for part in parts]


def speedup_by_concurrency(policy: PolicyReport) -> Drawing | None:
    """Predicted speed-up against concurrency: the best fixed number of draft tokens, and adapting it."""
    if not policy.recommendation:
        return None
    meaningful = policy.costs is not None and policy.costs.meaningful
    title = "Predicted speed-up of decoding" + ("" if meaningful else " (interpreter: meaningless)")
    adaptive = [
        (load.concurrency, 1 + one.speedup.value)
        for load in policy.simulation
        for one in load.policies
        if one.policy == "adaptive"
    ]

    def draw(axes: Axes, colours: Colours) -> None:
        places = [one.concurrency for one in policy.recommendation]
        values = [one.expected_speedup or 1.0 for one in policy.recommendation]
        axes.axhline(1.0, color=colours["muted"], linewidth=1)
        axes.plot(places, values, color=colours["replay"], marker="o", markersize=5,
                  label="best fixed number")  # fmt: skip
        axes.fill_between(
            places,
            [one.expected_speedup_low or 1.0 for one in policy.recommendation],
            [one.expected_speedup_high or 1.0 for one in policy.recommendation],
            color=colours["replay"], alpha=0.18, linewidth=0,
        )  # fmt: skip
        if adaptive:
            axes.plot(*zip(*adaptive, strict=True), color=colours["live"], marker="s", markersize=4,
                      linestyle="--", label="adaptive verification")  # fmt: skip
        for one, value in zip(policy.recommendation, values, strict=True):
            axes.annotate(f"K={one.num_speculative_tokens}", (one.concurrency, value), xytext=(0, -15),
                          textcoords="offset points", ha="center", color=colours["ink"])  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
        axes.minorticks_off()
        axes.margins(x=0.08, y=0.25)
        axes.set_xlabel("requests in flight")
        axes.set_ylabel("tokens/s relative to no draft")
        _quiet(axes, colours, "y")
        axes.legend(loc="best")

    return Drawing(title, 2.9, draw)


def _quiet(axes: Axes, colours: Colours, grid: str) -> None:
    axes.grid(axis="both" if grid == "both" else "y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0)
    axes.spines["left"].set_visible(False)
