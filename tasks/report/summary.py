"""`summary.json`: the stable contract of a run for scripts, for every way a run can end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from tasks.evaluate.models import Lossless
from tasks.evaluate.worth.models import Verdict
from tasks.report.record import STAGE_NAMES, RunRecord, of_this_attempt, read_run, stage_folder
from tasks.run_folder import RunFolder
from tasks.stage import write_atomic

RunStatus = Literal["completed", "held", "failed", "cancelled"]
StageStatus = Literal["completed", "reused", "skipped", "failed"]

SUMMARY = "summary.json"


class Part(BaseModel):
    """Base of every part: no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StageRow(Part):
    """How one stage ended in this run."""

    name: str
    status: StageStatus
    seconds: float | None = None


class CaptureSummary(Part):
    """What was captured; None where the stage did not finish."""

    samples: int | None = None
    tokens: int | None = None
    trainable_tokens: int | None = None
    bytes: int | None = None
    target_prompt_tokens: int | None = None
    target_generated_tokens: int | None = None
    lost: int | None = None
    regenerated: int | None = None


class DraftSummary(Part):
    """The trained draft."""

    path: str | None = None
    parameters: int | None = None
    trained_parameters: int | None = None
    steps: int | None = None
    epochs: int | None = None


class DomainTau(Part):
    """Acceptance length of one domain by replay, with its interval."""

    value: float | None
    low: float | None
    high: float | None
    prompts: int


class EvaluationSummary(Part):
    """Acceptance lengths and the lossless verdict."""

    tau_macro: float | None = None
    tau: dict[str, DomainTau] = {}
    tau_live_pooled: float | None = None
    tau_replay_pooled: float | None = None
    tokens_per_step: dict[str, float | None] = {}
    """Of every arm on the engine, macro: what arms of different methods are compared by."""
    lossless: Lossless | None = None
    incumbent_tau_macro: float | None = None
    worth: Verdict | None = None
    worth_sentence: str | None = None


class DecisionSummary(Part):
    """Promote or hold, and why."""

    promote: bool | None = None
    reasons: tuple[str, ...] = ()


class PublicationSummary(Part):
    """Where the draft is and how to serve it."""

    kind: Literal["local", "hub"] | None = None
    location: str | None = None
    revision: str | None = None
    serve_command: str | None = None


class MlflowSummary(Part):
    """Where MLflow recorded the run."""

    tracking_uri: str | None = None
    parent_run_id: str | None = None


class PrefectSummary(Part):
    """The Prefect flow run."""

    flow_run_id: str | None = None


class Summary(Part):
    """The whole of `summary.json`. Fields are added, never renamed or removed."""

    run_id: str
    profile: str | None
    status: RunStatus
    seconds: float | None
    stages: tuple[StageRow, ...]
    capture: CaptureSummary = CaptureSummary()
    draft: DraftSummary = DraftSummary()
    evaluation: EvaluationSummary = EvaluationSummary()
    decision: DecisionSummary = DecisionSummary()
    publication: PublicationSummary = PublicationSummary()
    mlflow: MlflowSummary = MlflowSummary()
    prefect: PrefectSummary = PrefectSummary()


def build_summary(
    run: RunFolder,
    stage_rows: Iterable[Mapping[str, Any] | StageRow] | None = None,
    status: str | None = None,
    *,
    seconds: float | None = None,
    tracking_uri: str | None = None,
    parent_run_id: str | None = None,
    flow_run_id: str | None = None,
) -> dict[str, Any]:
    """Summarise a run from its folder.

    Args:
        stage_rows: Name, status and seconds of the stages that this run reached, in any order; the
            others become `skipped`. None reads them from the manifests.
        status: How the run ended. `completed` becomes `held` if the decision did not promote; None is
            worked out from what the folder holds, and a run without a decision then counts as failed.
        seconds: Length of the run; None adds up its stages.
        tracking_uri: Where MLflow recorded the run; None takes `mlflow_tracking_uri` of `run.json`.
        parent_run_id: MLflow parent run; None takes `mlflow_parent_run_id` of `run.json`.
        flow_run_id: Prefect flow run; None takes `flow_run_id` of `run.json`.

    Returns:
        Content of `summary.json`, JSON types only. What a run did not reach is null.
    """
    record = read_run(run)
    rows = _stage_rows(record, stage_rows)
    record = of_this_attempt(record, [row.model_dump() for row in rows])
    if seconds is None:
        known = [row.seconds for row in rows if row.seconds is not None and row.status != "reused"]
        seconds = round(sum(known), 3) if known else None
    facts = record.facts
    summary = Summary(
        run_id=run.run_id,
        profile=record.profile.name if record.profile else None,
        status=_status(record, status),
        seconds=round(seconds, 3) if seconds is not None else None,
        stages=rows,
        capture=_capture(record),
        draft=_draft(record),
        evaluation=_evaluation(record),
        decision=_decision(record),
        publication=_publication(record),
        mlflow=MlflowSummary(
            tracking_uri=tracking_uri or _text(facts, "mlflow_tracking_uri"),
            parent_run_id=parent_run_id or _text(facts, "mlflow_parent_run_id"),
        ),
        prefect=PrefectSummary(flow_run_id=flow_run_id or _text(facts, "flow_run_id")),
    )
    return summary.model_dump(mode="json")


def write_summary(run: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write `summary.json` so that readers see a whole one."""
    path = run.path / SUMMARY
    write_atomic(path, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return path


def read_summary(run: RunFolder) -> dict[str, Any]:
    """The stored summary, or one worked out from the folder where none can be read."""
    try:
        text = (run.path / SUMMARY).read_text(encoding="utf-8")
        return Summary.model_validate_json(text).model_dump(mode="json")
    except (OSError, ValueError):
        return build_summary(run)


def _text(facts: Mapping[str, Any], key: str) -> str | None:
    value = facts.get(key)
    return str(value) if value else None


def _status(record: RunRecord, status: str | None) -> RunStatus:
    decision = record.publication.decision if record.publication else None
    if status in (None, "completed") and decision is not None:
        return "completed" if decision.promote else "held"
    for known in get_args(RunStatus):
        if status == known:
            return known  # type: ignore[no-any-return]
    return "failed"


def _stage_rows(
    record: RunRecord, given: Iterable[Mapping[str, Any] | StageRow] | None
) -> tuple[StageRow, ...]:
    if given is None:
        return _rows_from_folder(record)
    rows: dict[str, StageRow] = {}
    for row in given:
        if not isinstance(row, StageRow):
            row = StageRow.model_validate({key: row.get(key) for key in StageRow.model_fields})
        rows[row.name] = row
    if "validate" in rows and record.validation is not None and record.validation.worst == "fail":
        rows["validate"] = rows["validate"].model_copy(update={"status": "failed"})
    return tuple(rows.get(name) or StageRow(name=name, status="skipped") for name in STAGE_NAMES)


def _rows_from_folder(record: RunRecord) -> tuple[StageRow, ...]:
    """Stages by their manifests, up to the first that has none: later ones are of an earlier attempt."""
    rows: list[StageRow] = []
    for name in STAGE_NAMES:
        stopped = bool(rows) and rows[-1].status != "completed"
        rows.append(StageRow(name=name, status="skipped") if stopped else _row_from_folder(record, name))
    return tuple(rows)


def _row_from_folder(record: RunRecord, name: str) -> StageRow:
    if name in record.seconds:
        failed = name == "validate" and record.validation is not None and record.validation.worst == "fail"
        status: StageStatus = "failed" if failed else "completed"
        return StageRow(name=name, status=status, seconds=record.seconds[name])
    stopped_here = (record.error or {}).get("stage") == name or _was_started(record.run, name)
    return StageRow(name=name, status="failed" if stopped_here else "skipped")


def _was_started(run: RunFolder, name: str) -> bool:
    folder = stage_folder(run, name)
    return folder.is_dir() and any(folder.iterdir())


def _capture(record: RunRecord) -> CaptureSummary:
    found = record.captures
    if found is None:
        return CaptureSummary()
    return CaptureSummary(
        samples=found.samples,
        tokens=found.tokens,
        trainable_tokens=found.trainable_tokens,
        bytes=found.bytes,
        target_prompt_tokens=found.counters.target_prompt_tokens,
        target_generated_tokens=found.counters.target_generated_tokens,
        lost=found.counters.lost,
        regenerated=found.counters.regenerated,
    )


def _draft(record: RunRecord) -> DraftSummary:
    found = record.draft
    if found is None:
        return DraftSummary()
    return DraftSummary(
        path=str(stage_folder(record.run, "train") / found.path),
        parameters=found.parameters,
        trained_parameters=found.trained_parameters,
        steps=found.steps,
        epochs=found.epochs,
    )


def _evaluation(record: RunRecord) -> EvaluationSummary:
    found = record.evaluation
    if found is None:
        return EvaluationSummary()
    incumbent = found.incumbent_replay
    return EvaluationSummary(
        tau_macro=found.replay.macro.value,
        tau={
            domain: DomainTau(value=tau.value, low=tau.low, high=tau.high, prompts=tau.prompts)
            for domain, tau in found.replay.domains.items()
        },
        tau_live_pooled=found.live.pooled.value,
        tau_replay_pooled=found.replay.pooled.value,
        tokens_per_step=found.arms_detail.tokens_per_step if found.arms_detail else {},
        lossless=found.lossless,
        incumbent_tau_macro=incumbent.macro.value if incumbent else None,
        worth=found.worth.verdict if found.worth else None,
        worth_sentence=found.worth.sentence if found.worth else None,
    )


def _decision(record: RunRecord) -> DecisionSummary:
    if record.publication is None:
        return DecisionSummary()
    decision = record.publication.decision
    return DecisionSummary(promote=decision.promote, reasons=decision.reasons)


def _publication(record: RunRecord) -> PublicationSummary:
    found = record.publication
    if found is None:
        return PublicationSummary()
    return PublicationSummary(
        kind=found.kind,
        location=found.location,
        revision=found.revision,
        serve_command=found.serve_command,
    )
