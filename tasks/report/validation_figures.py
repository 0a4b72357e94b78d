"""Figures of the held-out metrics: along the block at the exported step, and over training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.report.figures import Colours, Drawing, training_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def validation_drawings(rows: Sequence[dict[str, Any]], best_step: int | None) -> dict[str, Drawing | None]:
    """Every figure of the held-out metrics by name; None where there is nothing to draw.

    Args:
        rows: Rows of `metrics.jsonl`.
        best_step: Step of the exported weights.
    """
    return {
        "accuracy": along_block(
            rows, r"position_(\d+)_acc", "right tokens, %", "Accuracy per position, held-out", best_step
        ),
        "conditional": along_block(
            rows,
            r"conditional_(\d+)_acc",
            "right if all before are, %",
            "Conditional acceptance per position (suffix decay)",
            best_step,
        ),
        "accept_len": training_curve(
            rows, "accept_len", "tokens per round", "Analytic acceptance length on held-out data", best_step
        ),
        "confidence": training_curve(
            rows,
            "confidence_abs_error",
            "mean error of acceptance",
            "Error of the confidence head on held-out data",
            best_step,
        ),
    }


def along_block(
    rows: Sequence[Row], pattern: str, label: str, title: str, best_step: int | None
) -> Drawing | None:
    """A held-out metric over the positions of a block: before training and at the exported step.

    Args:
        pattern: Of the metric's names; its group is the slot.
        label: Text of the vertical axis, with its unit.
    """
    held_out = [row for row in rows if row.get("split") == "held_out"]
    series = {
        name: points
        for name, step in (("untrained", 0), (f"exported: step {best_step}", best_step))
        if (row := _row_of(held_out, step)) is not None and (points := _values(row, pattern))
    }
    if not series:
        return None

    def draw(axes: Axes, colours: Colours) -> None:
        for (name, points), colour in zip(reversed(series.items()), ("replay", "incumbent"), strict=False):
            places = range(1, len(points) + 1)
            axes.plot(places, points, color=colours[colour], marker="o", markersize=4, label=name)
        longest = max(len(points) for points in series.values())
        axes.set_xticks(range(1, longest + 1))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("position in the block")
        axes.set_ylabel(label)
        axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="both", length=0)
        axes.spines["left"].set_visible(False)
        axes.legend(loc="best")

    return Drawing(title, 2.7, draw)


def _row_of(held_out: Sequence[Row], step: int | None) -> Row | None:
    return next((row for row in held_out if row.get("step") == step), None)


def _values(row: Row, pattern: str) -> list[float]:
    """Values of one row in per cent, in the order of the slots."""
    found = {
        int(match[1]): 100 * float(value)
        for name, value in row.items()
        if (match := re.fullmatch(pattern, name)) and isinstance(value, int | float)
    }
    return [found[slot] for slot in sorted(found)]
