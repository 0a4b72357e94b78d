"""What Prefect and MLflow show of each stage: tables, short texts and images. No Prefect here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.evaluate.models import EvaluationReport
from tasks.publish.models import Publication
from tasks.report import evaluation_replay_view, evaluation_view, figures, view, wording
from tasks.report.limits import PREVIEW_TOOLKIT
from tasks.report.page import evaluation_drawings
from tasks.report.record import RunRecord, read_run
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetIdentity
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport
from tasks.validate.summary import summary_lines, title

Table = list[dict[str, str]]

SPEED_COLUMNS = {
    "concurrency": "concurrency",
    "plain": "without, tokens/s",
    "draft": "with, tokens/s",
    "speedup": "speed-up",
    "per_user": "tokens/s/user, without / with",
    "draft_met": "targets with",
}
CAPACITY_COLUMNS = {
    "arm": "arm",
    "server": "tokens/s of a server",
    "gpu": "tokens/s of a GPU",
    "gpus": "GPUs for the load",
    "why_not": "",
}


@dataclass(frozen=True)
class StageArtifact:
    """One thing to show.

    Args:
        kind: `table` has rows as content, `markdown` text, `image` PNG bytes of at most 200,000.
        description: Title and the sentence to read it by.
        part: Tells several of one kind apart; part of the key where it is not empty.
    """

    kind: Literal["table", "markdown", "image"]
    description: str
    content: Table | str | bytes
    part: str = ""

    @property
    def key(self) -> str:
        """End of the artifact's key, behind the stage's name: Prefect takes lower case and hyphens only."""
        return f"{self.kind}-{self.part}" if self.part else self.kind


def stage_artifacts(stage: str, result: Any, run: RunFolder) -> list[StageArtifact]:
    """Artifacts of a finished stage: at most one of each key, so that `<stage>-<key>` is stable.

    Args:
        stage: Stage word.
        result: What the stage returned.
        run: Folder that training curves are read from.
    """
    record = read_run(run)
    return _BUILDERS[stage](result, record)


def _facts(rows: view.Rows) -> Table:
    return [{"what": name, "value": value} for name, value in rows]


def _image(description: str, drawing: figures.Drawing | None) -> list[StageArtifact]:
    return [StageArtifact("image", description, drawing.png())] if drawing else []


def _validate(result: ValidationReport, record: RunRecord) -> list[StageArtifact]:
    rows = [
        {
            "status": line.status,
            "check": line.name,
            "where": line.where,
            "found": line.observed,
            "required": line.required,
            "why": line.message,
            "to do": line.remedy,
        }
        for line in summary_lines(result.checks)
    ]
    notes = [title(result), *([PREVIEW_TOOLKIT] if result.toolkit_channel == "preview" else [])]
    return [StageArtifact("table", ". ".join(notes), rows)]


def _serve(result: TargetIdentity, record: RunRecord) -> list[StageArtifact]:
    rows = [
        ("model", result.served_name),
        ("architecture", f"{result.architecture}, {result.num_hidden_layers} layers"),
        ("type", result.dtype),
        ("captured layers", ", ".join(str(layer) for layer in result.layer_ids)),
        ("engine", result.engine),
        ("connector", result.connector),
        ("model digest", result.model_digest),
    ]
    return [StageArtifact("table", "The target that answers", _facts(rows))]


def _stream(result: CaptureManifest, record: RunRecord) -> list[StageArtifact]:
    title = f"Captures: {result.samples:,} samples, {result.counters.lost} lost"
    return [StageArtifact("table", title, _facts(view.capture_rows(result)))]


def _train(result: DraftCheckpoint, record: RunRecord) -> list[StageArtifact]:
    title = f"The draft: acceptance (eal) {wording.tau(result.held_out_eal)} on held-out data"
    lines = [f"## {title}", "", *_markdown_table(("", ""), view.training(result))]
    lines += [f"\n{note}" for note in result.notes]
    curve = figures.training_curve(
        record.training, "eal", "tokens per round", "Acceptance on held-out data (eal)", result.step
    )
    return [StageArtifact("markdown", title, "\n".join(lines)), *_image(title, curve)]


def _evaluate(result: EvaluationReport, record: RunRecord) -> list[StageArtifact]:
    macro = result.shown.macro
    title = (
        f"Macro tau {wording.tau(macro.value)} {wording.interval(macro.low, macro.high)}, {result.lossless}"
    )
    shown = record.evaluation or result
    images = [
        StageArtifact("image", drawing.title, drawing.png(), "" if name == "tau" else name.replace("_", "-"))
        for name, drawing in evaluation_drawings(shown).items()
        if drawing is not None
    ]
    return [*_worth(shown, record), StageArtifact("table", title, view.tau_table(result)), *images]


def _worth(result: EvaluationReport, record: RunRecord) -> list[StageArtifact]:
    """The sentence first, then what is wrong or bounds it, speeds, capacity and costs."""
    shown = replace(record, evaluation=result)
    found, wrong = evaluation_view.decision(shown), evaluation_replay_view.diagnosis(shown)
    warning = ["", f"**{evaluation_replay_view.WRONG}**: {wrong}"] if wrong else []
    if found is None:
        title = evaluation_replay_view.WRONG
        return [StageArtifact("markdown", title, "\n".join([f"## {title}", "", wrong]))] if wrong else []
    lines = [f"## {found['sentence']}", *warning, "", *(f"- {line}" for line in found["known"])]
    if found["speeds"]:
        lines += ["", *_markdown_rows(SPEED_COLUMNS, found["speeds"])]
    if found["capacity"]:
        lines += ["", *_markdown_rows(CAPACITY_COLUMNS, found["capacity"])]
    lines += ["", *_markdown_table(("cost", ""), [*found["memory"], *found["money"]])]
    return [StageArtifact("markdown", found["sentence"], "\n".join(lines))]


def _markdown_rows(columns: Mapping[str, str], rows: list[dict[str, str]]) -> list[str]:
    """A Markdown table; a bar inside a cell would end it."""
    head = f"| {' | '.join(columns.values())} |"
    body = ["| " + " | ".join(row[key].replace("|", "/") for key in columns) + " |" for row in rows]
    return [head, "|" + "---|" * len(columns), *body]


def _publish(result: Publication, record: RunRecord) -> list[StageArtifact]:
    decision = result.decision
    word = "Promoted" if decision.promote else "Held"
    title = f"{word} {result.revision}".rstrip()
    lines = [
        f"## {title}",
        "",
        *(f"- {reason}" for reason in decision.reasons),
        "",
        f"Draft: `{result.location}`",
    ]
    if result.serve_command:
        lines += ["", "```", result.serve_command, "```"]
    return [StageArtifact("markdown", title, "\n".join(lines))]


def _markdown_table(header: tuple[str, str], rows: view.Rows) -> list[str]:
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


_BUILDERS: dict[str, Callable[[Any, RunRecord], list[StageArtifact]]] = {
    "validate": _validate,
    "serve": _serve,
    "stream": _stream,
    "train": _train,
    "evaluate": _evaluate,
    "publish": _publish,
}
