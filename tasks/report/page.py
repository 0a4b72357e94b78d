"""`report.html`: one self-contained page about a run, whatever way it ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.evaluate.arm_report import difference_notes
from tasks.evaluate.models import EvaluationReport
from tasks.report import (
    evaluation_arms_view,
    evaluation_figures,
    evaluation_load_figures,
    evaluation_policy_figures,
    evaluation_policy_view,
    evaluation_replay_view,
    evaluation_view,
    figures,
    plan_view,
    view,
)
from tasks.report.limits import limits
from tasks.report.record import RunRecord, of_this_attempt, read_run
from tasks.report.summary import read_summary
from tasks.report.validation_figures import validation_drawings
from tasks.run_folder import RunFolder
from tasks.stage import write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
REPORT = "report.html"
FIGURES = "figures"
LOG_LINES = 25
LOG_TAIL_BYTES = 16_384


def write_report(run: RunFolder) -> Path:
    """Write the page from what the run folder holds; needs nothing else and no network."""
    path = run.path / REPORT
    write_atomic(path, render(read_run(run), read_summary(run)))
    return path


def write_figures(run: RunFolder) -> list[Path]:
    """Write the evaluation's figures as PNG files under `figures/`; those of an earlier attempt go."""
    folder = run.path / FIGURES
    shutil.rmtree(folder, ignore_errors=True)
    evaluation = read_run(run).evaluation
    drawn = evaluation_drawings(evaluation) if evaluation else {}
    paths = []
    for name, drawing in drawn.items():
        if drawing is not None:
            folder.mkdir(exist_ok=True)
            paths.append(folder / f"{name}.png")
            paths[-1].write_bytes(drawing.png())
    return paths


def render(record: RunRecord, summary: dict[str, Any]) -> str:
    """The page as HTML. Prompts and answers are never part of it."""
    record = of_this_attempt(record, summary["stages"])
    page = _environment().get_template("report.html.j2")
    return page.render(**_context(record, summary))


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )


def _context(record: RunRecord, summary: dict[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup

    css = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    drawn = {name: Markup(drawing.svg()) if drawing else "" for name, drawing in drawings(record).items()}
    return {
        "css": Markup(css),
        "summary": summary,
        "target_name": record.target.served_name if record.target else _configured_target(record),
        "head": view.headline(record, summary),
        "tiles": view.tiles(record, summary),
        "plan": plan_view.planned(record, summary),
        "problem": _problem(record, summary),
        "resume": _resume(summary),
        "serve": _serve(record),
        "tau": view.tau_table(record.evaluation) if record.evaluation else [],
        "warning": evaluation_replay_view.warning(record),
        "worth": evaluation_view.decision(record),
        "contexts": evaluation_replay_view.context_rows(evaluation_replay_view.detail_of(record)),
        "policy": evaluation_policy_view.policy(record),
        "arms": evaluation_arms_view.arms(record),
        "agreement": view.agreement(record),
        "timeline": view.timeline(record, summary),
        "training": view.training(record.draft) if record.draft else [],
        "training_notes": record.draft.notes if record.draft else (),
        "epochs": view.epochs(record),
        "captures": view.capture_rows(record.captures) if record.captures else [],
        "servers": view.servers(record),
        "machine": view.machine_rows(record),
        "checks": view.checks(record),
        "limits": [line for line in limits(record) if line not in _said_above(record)],
        "places": _places(record, summary),
        "figures": drawn,
    }


def _said_above(record: RunRecord) -> set[str]:
    """Notes of the evaluation that a section of its own says in full."""
    said = {f"draft: {evaluation_replay_view.diagnosis(record)}"}
    detail = record.evaluation.arms_detail if record.evaluation else None
    draft = detail.named(record.evaluation.decided) if detail and record.evaluation else None
    return said | set(difference_notes(draft.name, draft.verdict) if draft and draft.verdict else ())


def drawings(record: RunRecord) -> dict[str, figures.Drawing | None]:
    """Every figure of the run by name; None where there is nothing to draw."""
    best = record.draft.step if record.draft else None
    evaluation = record.evaluation
    return {
        **(evaluation_drawings(evaluation) if evaluation else dict.fromkeys(EVALUATION_DRAWINGS)),
        "eal": figures.training_curve(
            record.training, "eal", "tokens per round", "Acceptance on held-out data (eal)", best
        ),
        "loss": figures.training_curve(record.training, "loss", "loss", "Training loss", best),
        **validation_drawings(record.training, best),
    }


EVALUATION_DRAWINGS = (
    "tau", "position", "decay", "context", "speedup", "pareto", "reliability", "calibration",
    "speedup_by_tokens",
)  # fmt: skip


def evaluation_drawings(evaluation: EvaluationReport) -> dict[str, figures.Drawing | None]:
    """Every figure of an evaluation by name, in the order in which they are looked at."""
    worth = evaluation.worth
    return {
        "tau": evaluation_figures.tau_by_domain(evaluation_figures.per_step(evaluation)),
        "position": figures.acceptance_per_position(evaluation),
        "decay": evaluation_figures.suffix_decay(evaluation_figures.per_drafted_round(evaluation)),
        "context": evaluation_figures.tau_over_context(worth.measured.contexts) if worth else None,
        "speedup": evaluation_load_figures.speed_up_over_concurrency(worth) if worth else None,
        "pareto": evaluation_load_figures.pareto(worth) if worth else None,
        **evaluation_policy_figures.policy_drawings(evaluation.policy),
    }


def _configured_target(record: RunRecord) -> str:
    return Path(record.profile.target.model).name if record.profile else "an unknown target"


def _problem(record: RunRecord, summary: dict[str, Any]) -> dict[str, Any] | None:
    """What ended a failed run, with the log's last lines."""
    if summary["status"] != "failed":
        return None
    error = record.error or {}
    stage = view.stopped_stage(record, summary)
    known = [("Stage", stage), ("Where", error.get("where")), ("What to do", error.get("hint")),
             ("Error", error.get("kind"))]  # fmt: skip
    name, log = _log_tail(record, error)
    return {
        "what": error.get("what") or "The run ended without saying why, as after a crash or a kill.",
        "facts": [(label, str(value)) for label, value in known if value],
        "log_name": name,
        "log": log,
    }


def _log_tail(record: RunRecord, error: dict[str, Any]) -> tuple[str, str]:
    """The lines kept with the error, else the end of the log that was written last."""
    if error.get("log_tail"):
        return "its log", "\n".join(str(line) for line in error["log_tail"])
    logs = [path for path in record.run.logs.glob("*.log") if path.stat().st_size]
    if not logs or error.get("exit_code") == 2:
        return "", ""
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    with newest.open("rb") as stream:
        stream.seek(max(0, newest.stat().st_size - LOG_TAIL_BYTES))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    return f"logs/{newest.name}", "\n".join(lines[-LOG_LINES:])


def _resume(summary: dict[str, Any]) -> str:
    if summary["status"] not in ("failed", "cancelled"):
        return ""
    return f"retrain-dspark resume {summary['run_id']}"


def _serve(record: RunRecord) -> dict[str, Any] | None:
    found = record.publication
    if found is None or not found.serve_command:
        return None
    promoted = found.decision.promote
    intro = (
        f"{found.revision} is now the champion. The command loads it in vLLM beside its target."
        if promoted
        else "The draft was kept, but not promoted. The command loads it for a closer look."
    )
    facts = [("Draft", found.location), ("Kind", found.kind)]
    facts += [("Version", found.revision)] if found.revision else []
    return {"intro": intro, "command": found.serve_command, "facts": facts}


def _places(record: RunRecord, summary: dict[str, Any]) -> view.Rows:
    rows = [
        ("Run folder", str(record.run.path)),
        ("Logs", f"retrain-dspark logs {summary['run_id']}"),
        ("Draft", summary["draft"]["path"]),
        ("MLflow store", summary["mlflow"]["tracking_uri"]),
        ("MLflow parent run", summary["mlflow"]["parent_run_id"]),
        ("Prefect flow run", summary["prefect"]["flow_run_id"]),
        ("Profile", summary["profile"]),
        ("Started", record.facts.get("created_at")),
    ]
    return [(name, str(value)) for name, value in rows if value]
