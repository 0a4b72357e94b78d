"""The last lines in the terminal: about ten, what came out, where it is, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tasks.redaction import MASK
from tasks.report import evaluation_replay_view, view, wording
from tasks.report.page import REPORT
from tasks.report.record import RunRecord, of_this_attempt, read_run
from tasks.run_folder import RunFolder

LOCAL_PAGE = "http://127.0.0.1:4200"
LABEL_WIDTH = 10
TEXT_WIDTH = 100
HARD = "\N{NO-BREAK SPACE}"
_WRAPPED = ("warning", "worth it?", "tau", "decision", "error", "to do")
_COLOUR = {"completed": "32", "held": "33", "failed": "31", "cancelled": "36"}


def closing_lines(
    summary: Mapping[str, Any],
    run: RunFolder,
    colour: bool = False,
    prefect_page: str = "",
    error_follows: bool = False,
) -> list[str]:
    """Plain lines for the end of a run.

    Args:
        summary: Content of `summary.json`.
        colour: Colour the first word with ANSI codes; leave off where output is not a terminal.
        prefect_page: Address of the Prefect server that the user runs; empty where the run had its own.
        error_follows: The caller prints the error itself, so that only its log is named here.
    """
    record = of_this_attempt(read_run(run), summary["stages"])
    rows: list[tuple[str, str]] = []
    if summary["status"] == "failed":
        rows += [] if error_follows else _error(record)
        rows.append(_log(record, summary))
    rows += _measured(record, summary)
    rows += _draft(summary)
    if summary["status"] in ("failed", "cancelled"):
        rows.append(("resume", f"retrain-dspark resume {run.run_id}"))
    rows += _places(summary, run, prefect_page)
    lines = [_first(record, summary, colour)]
    for label, text in rows:
        lines += _aligned(label, text)
    return lines


def _first(record: RunRecord, summary: Mapping[str, Any], colour: bool) -> str:
    status = summary["status"]
    stage = view.stopped_stage(record, summary) if status in ("failed", "cancelled") else None
    done = "promoted" if summary["decision"]["promote"] is not None else "measured"
    word = {"completed": done, "held": "held"}.get(status, status) + (f" in {stage}" if stage else "")
    if colour:
        word = f"\x1b[1;{_COLOUR[status]}m{word}\x1b[0m"
    return f"{summary['run_id']}: {word} after {wording.duration(summary['seconds'])}"


def _error(record: RunRecord) -> list[tuple[str, str]]:
    error = record.error or {}
    what = error.get("what") or "the run ended without saying why"
    rows = [("error", str(what).splitlines()[0])]
    parts = (("where", "where"), ("to do", "hint"))
    return [*rows, *((label, str(error[key])) for label, key in parts if error.get(key))]


def _log(record: RunRecord, summary: Mapping[str, Any]) -> tuple[str, str]:
    stage = view.stopped_stage(record, summary)
    return "log", f"retrain-dspark logs {summary['run_id']} {stage or ''}".rstrip()


def _measured(record: RunRecord, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    evaluation = record.evaluation
    rows: list[tuple[str, str]] = []
    worth = evaluation.worth if evaluation else None
    if evaluation is not None:
        # Servers that ran already were measured live only: nothing was captured that could be replayed.
        replayed, shown = bool(evaluation.replay.domains), evaluation.shown
        # Hard spaces keep each name and its figure on one line.
        domains = ", ".join(f"{name}{HARD}{wording.tau(t.value)}" for name, t in shown.domains.items())
        macro = shown.macro
        text = (
            f"{wording.tau(macro.value)} {wording.interval(macro.low, macro.high)} tokens per step, "
            f"{'replayed' if replayed else 'live'}"
        )
        if evaluation.live.pooled.value is not None:
            gap = (
                f", {wording.percent(evaluation.live_gap, 2)} from replay"
                if evaluation.live_gap is not None
                else ""
            )
            text += f"; live pooled {wording.tau(evaluation.live.pooled.value)}{gap}"
        equal = sum(comparison.equal for comparison in evaluation.comparisons)
        verdict = evaluation.lossless.replace("_", " ")
        lossless = f"{verdict} ({equal} of {len(evaluation.comparisons)} answers equal)"
        wrong = evaluation_replay_view.diagnosis(record)
        rows = [("warning", f"{evaluation_replay_view.WRONG}: {wrong}")] if wrong else []
        rows += [("worth it?", worth.sentence)] if worth else []
        rows += [("tau", domains), ("macro tau", text), ("lossless", lossless)]
    decision = summary["decision"]
    if decision["promote"] is not None:
        word = "promote" if decision["promote"] else "hold"
        rows.append(("decision", f"{word}: " + "; ".join(decision["reasons"])))
    return rows


def _draft(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    published, draft = summary["publication"], summary["draft"]
    location = published["location"] or draft["path"]
    rows = [("draft", location)] if location else []
    if published["serve_command"]:
        rows.append(("serve it", published["serve_command"]))
    return rows


def _places(summary: Mapping[str, Any], run: RunFolder, prefect_page: str) -> list[tuple[str, str]]:
    rows = []
    report = run.path / REPORT
    if report.is_file():
        rows.append(("report", report.as_uri()))
    uri = summary["mlflow"]["tracking_uri"]
    if uri:
        rows.append(("MLflow", _mlflow_page(uri)))
    flow_run = summary["prefect"]["flow_run_id"]
    if flow_run:
        start = "" if prefect_page else "retrain-dspark ui, then "
        rows.append(("Prefect", f"{start}{prefect_page.rstrip('/') or LOCAL_PAGE}/runs/flow-run/{flow_run}"))
    return rows


def _mlflow_page(uri: str) -> str:
    """Where to look, or the command that shows it; a masked password is left to the environment."""
    if uri.startswith("http"):
        return uri
    place = shlex.quote(uri) if MASK not in uri else '"$MLFLOW_TRACKING_URI"'
    return f"mlflow ui --backend-store-uri {place}"


def _aligned(label: str, text: str) -> list[str]:
    """Label and text; only lists of values and sentences wrap, commands and paths stay in one piece."""
    lines, current = [], ""
    for word in text.split(" "):
        joined = f"{current} {word}".strip()
        if current and len(joined) > TEXT_WIDTH and label in _WRAPPED:
            lines.append(current)
            joined = word
        current = joined
    lines.append(current)
    return [
        f"{label if i == 0 else '':<{LABEL_WIDTH}}{line.replace(HARD, ' ')}" for i, line in enumerate(lines)
    ]
