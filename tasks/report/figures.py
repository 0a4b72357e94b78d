"""Figures of the report: SVG that follows the page's colours, PNG for Prefect and MLflow.

matplotlib is imported inside the functions: a run that only prints lines does not need it.
Every function returns None where there is nothing to draw.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tasks.evaluate.models import EvaluationReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PNG_BYTES = 200_000
WIDTH_INCHES = 5.0

# Blue, orange and grey stay apart for every common colour blindness, and in grey print; lines of more arms
# also differ in marks and dashes.
PNG_COLOURS = {
    "ink": "#1c2430",
    "muted": "#566172",
    "grid": "#d9dee5",
    "replay": "#3f87cf",
    "live": "#d9822b",
    "incumbent": "#6b7480",
    "other": "#b0568c",
    "further": "#1f8f74",
    "paper": "#ffffff",
}
# Stand-ins that no other element uses; they become the page's CSS variables.
_STAND_INS = {name: f"#0a0b{index + 16:02x}" for index, name in enumerate(PNG_COLOURS)}

Colours = dict[str, str]
Draw = Callable[["Axes", Colours], None]


@dataclass(frozen=True)
class Drawing:
    """One figure, drawn again for each output.

    Args:
        title: What it shows, with units; also the text for people who cannot see it.
        height_inches: Height at a width of `WIDTH_INCHES`.
        draw: Draws into empty axes with the colours given.
    """

    title: str
    height_inches: float
    draw: Draw

    def svg(self) -> str:
        """Inline SVG whose colours are CSS variables and whose text is text."""
        return _inline(_saved(self, _STAND_INS, "svg").decode(), self.title)

    def png(self) -> bytes:
        """PNG of at most `MAX_PNG_BYTES` on white, with its title."""
        for dpi in (200, 140, 100, 60):
            data = _saved(self, PNG_COLOURS, "png", dpi)
            if len(data) <= MAX_PNG_BYTES:
                break
        return data


def _saved(drawing: Drawing, colours: Colours, kind: str, dpi: int = 72) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": drawing.title,
        "font.size": 10,
        "text.color": colours["ink"],
        "axes.labelcolor": colours["muted"],
        "xtick.color": colours["muted"],
        "ytick.labelcolor": colours["ink"],
        "axes.edgecolor": colours["grid"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with mpl.rc_context(settings):
        height = drawing.height_inches + (0.3 if kind == "png" else 0)
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained", facecolor=colours["paper"])
        axes = figure.add_subplot()
        axes.set_facecolor(colours["paper"])
        if kind == "png":
            figure.suptitle(drawing.title, fontsize=10.5, fontweight="bold")
        drawing.draw(axes, colours)
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=dpi, transparent=kind == "svg")
    return data.getvalue()


def _inline(svg: str, title: str) -> str:
    """Turn matplotlib's file into an element: no outside addresses, no leaking style, CSS colours."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', body)
    opening = f'<svg class="figure" viewBox="{box.group(1) if box else ""}" role="img"'
    body = re.sub(r"<svg[^>]*>", f'{opening} aria-label="{escape(title)}">', body, count=1)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"font:\s*(?:(\d{3}) )?([\d.]+)px[^;\"]*", _font, body)
    body = re.sub(r"font-family: [^;\"]*;?", "", body)
    for name, stand_in in _STAND_INS.items():
        body = body.replace(stand_in, f"var(--{name})")
    return body


def _font(match: re.Match[str]) -> str:
    weight = f"; font-weight: {match.group(1)}" if match.group(1) else ""
    return f"font-size: {match.group(2)}px{weight}"


def acceptance_per_position(evaluation: EvaluationReport) -> Drawing | None:
    """Share of rounds in which each drafted position was accepted, over everything measured."""
    series = {
        name: [100 * share for share in measured.pooled.per_position]
        for name, measured in (("replay", evaluation.replay), ("live", evaluation.live))
        if measured.pooled.per_position
    }
    if not series:
        return None

    def draw(axes: Axes, colours: Colours) -> None:
        places = (-0.2, 0.2) if len(series) == 2 else (0.0,)
        for (name, shares), shift in zip(series.items(), places, strict=True):
            x = [i + 1 + shift for i in range(len(shares))]
            axes.bar(x, shares, width=0.38, color=colours[name], label=name)
        longest = max(len(shares) for shares in series.values())
        axes.set_xticks(range(1, longest + 1))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("position in the block")
        axes.set_ylabel("accepted, % of rounds")
        _plain(axes, colours)
        axes.legend(loc="upper right")

    return Drawing("Acceptance per position", 2.7, draw)


def _plain(axes: Axes, colours: Colours) -> None:
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0)
    axes.spines["left"].set_visible(False)


def training_curve(
    rows: Sequence[dict[str, Any]], key: str, label: str, title: str, best_step: int | None = None
) -> Drawing | None:
    """One metric over the optimizer steps: training as a smoothed line, held-out as points.

    Args:
        rows: Rows of `metrics.jsonl`.
        key: Metric, e.g. `loss` or `eal`.
        label: Text of the vertical axis, with its unit.
        best_step: Step of the exported weights, marked on the held-out points.
    """
    train = _points(rows, "train", key) if key == "loss" else []
    held_out = _points(rows, "held_out", key)
    if not train and not held_out:
        return None

    def draw(axes: Axes, colours: Colours) -> None:
        if train:
            axes.plot(*_smoothed(train), color=colours["incumbent"], linewidth=1.4, label="training")
        if held_out:
            steps, values = zip(*held_out, strict=True)
            axes.plot(
                steps, values, color=colours["replay"], marker="o", markersize=4, label="held-out, each epoch"
            )
            best = [(s, v) for s, v in held_out if s == best_step]
            if best:
                axes.plot(*zip(*best, strict=True), color=colours["live"], marker="o", markersize=10,
                          markerfacecolor="none", markeredgewidth=2, linestyle="none",
                          label=f"exported: step {best_step}, {best[0][1]:.2f}")  # fmt: skip
        axes.set_xlabel("optimizer step")
        axes.set_ylabel(label)
        _plain(axes, colours)
        axes.legend(loc="best")

    return Drawing(title, 2.7, draw)


def _points(rows: Sequence[dict[str, Any]], split: str, key: str) -> list[tuple[float, float]]:
    found = [
        (float(row["step"]), float(row[key]))
        for row in rows
        if row.get("split") == split
        and isinstance(row.get("step"), int | float)
        and isinstance(row.get(key), int | float)
    ]
    return sorted(point for point in found if point[1] == point[1])


def _smoothed(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Mean over windows of a sixtieth of the run: the trend without the noise of single steps."""
    window = max(1, len(points) // 60)
    chunks = [points[i : i + window] for i in range(0, len(points), window)]
    return (
        [sum(step for step, _ in chunk) / len(chunk) for chunk in chunks],
        [sum(value for _, value in chunk) / len(chunk) for chunk in chunks],
    )
