"""Figures beside the card: acceptance by domain and along the block, as small PNG files."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluate.models import EvaluationReport
from tasks.report import evaluation_figures

FOLDER = "plots"


@dataclass(frozen=True)
class Plot:
    """One image of the card.

    Args:
        file: Path in the published folder.
        title: What it shows; also for people who cannot see it.
    """

    file: str
    title: str
    png: bytes


def plots(evaluation: EvaluationReport) -> list[Plot]:
    """The images that there is something to draw for; none of them shows a speed."""
    drawings = {
        "acceptance-by-domain": evaluation_figures.tau_by_domain(evaluation_figures.per_step(evaluation)),
        "acceptance-by-position": evaluation_figures.suffix_decay(
            evaluation_figures.per_drafted_round(evaluation)
        ),
    }
    return [
        Plot(f"{FOLDER}/{name}.png", drawing.title, drawing.png())
        for name, drawing in drawings.items()
        if drawing is not None
    ]
