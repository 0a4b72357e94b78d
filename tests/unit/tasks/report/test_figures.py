"""Figures: small PNG files, SVG that follows the page, nothing drawn from nothing."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.report import evaluation_figures, figures
from tasks.report.page import drawings
from tasks.report.record import read_run
from tasks.report.validation_figures import validation_drawings
from tasks.run_folder import RunFolder

VALIDATION = {
    "accuracy": "right tokens, %",
    "conditional": "right if all before are, %",
    "accept_len": "tokens per round",
    "confidence": "mean error of acceptance",
}


@pytest.mark.parametrize("name", ["tau", "position", "eal", "loss", *VALIDATION])
def test_png_is_small_and_svg_uses_the_pages_colours(finished_run: RunFolder, name: str) -> None:
    drawing = drawings(read_run(finished_run))[name]
    assert drawing is not None
    png, svg = drawing.png(), drawing.svg()
    assert png.startswith(b"\x89PNG") and len(png) <= figures.MAX_PNG_BYTES
    assert "var(--replay)" in svg and "#0a0b" not in svg
    assert "http" not in svg and "<style" not in svg and "font-family" not in svg
    root = ET.fromstring(svg.replace("xlink:href", "href"))
    assert root.get("aria-label") == drawing.title
    texts = [element.text for element in root.iter("text")]
    assert texts, "text stays text, so that it can be read aloud and searched"


def test_axes_carry_units(finished_run: RunFolder) -> None:
    drawn = drawings(read_run(finished_run))
    labels = {
        "tau": "tokens per step of the engine (1.0 = no draft)",
        "position": "accepted, % of rounds",
        "eal": "tokens per round",
        "loss": "optimizer step",
        **VALIDATION,
    }
    for name, label in labels.items():
        drawing = drawn[name]
        assert drawing is not None and label in drawing.svg()


def test_exported_step_is_marked(finished_run: RunFolder) -> None:
    drawing = drawings(read_run(finished_run))["eal"]
    assert drawing is not None and "exported: step 468" in drawing.svg()


def test_held_out_metrics_are_drawn_from_the_first_position_on() -> None:
    """A draft that keeps its anchor's slot for the known token has no slot 0; its first position is 1 too."""
    rows = [
        {"split": "held_out", "step": step, "position_1_acc": 0.5, "position_2_acc": value}
        for step, value in ((0, 0.0), (7, 0.25))
    ]
    drawing = validation_drawings(rows, best_step=7)["accuracy"]
    assert drawing is not None
    svg = drawing.svg()
    assert "untrained" in svg and "exported: step 7" in svg
    assert ">1</text>" in svg and ">3</text>" not in svg
    assert validation_drawings(rows, best_step=7)["conditional"] is None
    assert validation_drawings([], best_step=None)["accuracy"] is None


def test_nothing_measured_draws_nothing(finished_run: RunFolder) -> None:
    evaluation = read_run(finished_run).evaluation
    assert evaluation is not None
    nothing = TauEstimate(value=None, prompts=0, rounds=0, accepted=0)
    empty = Measurement(domains={"qa": nothing}, macro=nothing, pooled=nothing)
    report: EvaluationReport = evaluation.model_copy(
        update={"replay": empty, "live": empty, "incumbent_replay": None}
    )
    assert evaluation_figures.tau_by_domain(evaluation_figures.per_step(report)) is None
    assert figures.acceptance_per_position(report) is None
    assert (
        figures.training_curve([{"split": "train", "step": 1, "loss": "x"}], "loss", "loss", "Loss") is None
    )
    nan = [{"split": "held_out", "step": 1, "eal": float("nan")}]
    assert figures.training_curve(nan, "eal", "tokens", "EAL") is None


def test_live_may_miss_domains(finished_run: RunFolder) -> None:
    evaluation = read_run(finished_run).evaluation
    assert evaluation is not None
    live = evaluation.live.model_copy(update={"domains": {}})
    report = evaluation.model_copy(update={"live": live})
    drawing = evaluation_figures.tau_by_domain(evaluation_figures.per_step(report))
    assert drawing is not None and "writing" in drawing.svg()


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, tasks.report.page, tasks.report.artifacts; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
