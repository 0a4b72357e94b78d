"""What the page shows, as plain rows: no markup here, no numbers formatted in the template."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tasks.evaluate.models import EvaluationReport, TauEstimate
from tasks.report import wording
from tasks.report.record import STAGE_PURPOSE, RunRecord
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.summary import count_text, summary_lines

Rows = list[tuple[str, str]]

STATUS_TEXT = {
    "completed": "Promoted",
    "held": "Held: not published",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
LOSSLESS_TEXT = {
    "identical": "Every answer with the draft equals the answer without it, token for token.",
    "within_noise": "Answers differ only where the target itself has two equally likely tokens.",
    "different": "Answers with the draft differ from the target's own: this draft must not serve.",
}
FIRST_TIME = "has not run"  # the stage contract's reason of a first run, which needs no explanation
MAX_FACTS = 120
MAX_FACT_CHARS = 300
SPEED_NOTE = "meaningless: the kernels ran in Triton's interpreter"


def headline(record: RunRecord, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Decision and macro acceptance length: what a reader wants first."""
    evaluation = record.evaluation
    shown = evaluation.shown if evaluation else None
    macro = shown.macro if shown else None
    stopped = stopped_stage(record, summary)
    verdict = STATUS_TEXT[summary["status"]]
    if summary["status"] == "completed" and summary["decision"]["promote"] is None:
        verdict = "Measured"  # an evaluation alone publishes nothing
    if summary["status"] in ("failed", "cancelled") and stopped:
        verdict += f" in {stopped}"
    return {
        "status": summary["status"],
        "verdict": verdict,
        "tau": wording.tau(macro.value) if macro else None,
        "interval": wording.interval(macro.low, macro.high) if macro else "",
        "confidence": wording.percent(record.profile.evaluate.confidence, 0) if record.profile else "",
        "domains": len(shown.domains) if shown else 0,
        "replayed": bool(evaluation and evaluation.replay.domains),
        "bounded": bool(shown and any(one.low is not None for one in shown.domains.values())),
        "decided": evaluation.decided if evaluation else "",
        "incumbent": wording.tau(evaluation.incumbent_replay.macro.value)
        if evaluation and evaluation.incumbent_replay
        else "",
        "incumbent_name": evaluation.incumbent if evaluation else None,
        "gain": _gain(evaluation) if evaluation else "",
        "reasons": summary["decision"]["reasons"],
    }


def _gain(evaluation: EvaluationReport) -> str:
    """Paired difference to the incumbent, e.g. `+0.21 [0.15, 0.27]`."""
    gain = evaluation.incumbent_gain
    if gain is None or gain.value is None:
        return ""
    return f"{gain.value:+.2f} {wording.interval(gain.low, gain.high)}".rstrip()


def stopped_stage(record: RunRecord, summary: Mapping[str, Any]) -> str | None:
    """The stage in which a run ended early."""
    if record.error and record.error.get("stage"):
        return str(record.error["stage"])
    rows = summary["stages"]
    for row in rows:
        if row["status"] == "failed":
            return str(row["name"])
    unfinished = [row["name"] for row in rows if row["status"] == "skipped"]
    return str(unfinished[0]) if unfinished else None


def tiles(record: RunRecord, summary: Mapping[str, Any]) -> Rows:
    """The few figures beside the headline."""
    rows = [("Run time", wording.duration(summary["seconds"]))]
    evaluation = record.evaluation
    if evaluation:
        rows.append(("Lossless", evaluation.lossless.replace("_", " ")))
        rows.append(("Live, pooled", wording.tau(evaluation.live_per_step.pooled.value)))
        if evaluation.replay.domains:
            rows.append(("Live against replay", f"{wording.percent(evaluation.live_gap)} apart"))
    if record.draft:
        rows.append(("Trained parameters", wording.millions(record.draft.trained_parameters)))
    if record.captures:
        rows.append(("Captured", f"{wording.count(record.captures.tokens)} tokens"))
    return rows


def timeline(record: RunRecord, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One bar per stage: start and length as percent of the whole."""
    reasons = record.facts.get("stage_reasons")
    reasons = reasons if isinstance(reasons, dict) else {}
    lengths = [0.0 if row["status"] == "reused" else row["seconds"] or 0.0 for row in summary["stages"]]
    total, start, bars = sum(lengths) or 1.0, 0.0, []
    for row, length in zip(summary["stages"], lengths, strict=True):
        name = row["name"]
        text = wording.duration(row["seconds"]) if row["seconds"] is not None else ""
        bars.append(
            {
                "name": name,
                "purpose": STAGE_PURPOSE[name],
                "status": row["status"],
                "left": round(100 * start / total, 2),
                "width": round(100 * length / total, 2),
                "text": "reused" if row["status"] == "reused" else text or row["status"],
                "reason": "" if reasons.get(name) in (None, FIRST_TIME) else str(reasons[name]),
            }
        )
        start += length
    return bars


def tau_table(evaluation: EvaluationReport) -> list[dict[str, str]]:
    """Rows of the acceptance table, tokens per step: macro and pooled first, then the domains."""
    live, old = evaluation.live_per_step, evaluation.incumbent_replay
    rows = [
        _tau_row("macro", evaluation.replay.macro, live.macro, old.macro if old else None),
        _tau_row("pooled", evaluation.replay.pooled, live.pooled, old.pooled if old else None),
    ]
    replayed = evaluation.replay.domains
    for name in replayed or live.domains:
        was = old.domains.get(name) if old else None
        rows.append(_tau_row(name, replayed.get(name), live.domains.get(name), was))
    return rows


def _tau_row(
    name: str, replay: TauEstimate | None, live: TauEstimate | None, incumbent: TauEstimate | None
) -> dict[str, str]:
    """One row; the interval is that of replay, or of live where nothing was replayed."""
    bounded = replay if replay and replay.rounds else live
    return {
        "name": name,
        "replay": wording.tau(replay.value) if replay else wording.MISSING,
        "interval": wording.interval(bounded.low, bounded.high) if bounded else "",
        "prompts": str(replay.prompts) if replay else wording.MISSING,
        "live": wording.tau(live.value) if live else wording.MISSING,
        "live_prompts": str(live.prompts) if live else wording.MISSING,
        "incumbent": wording.tau(incumbent.value) if incumbent else "",
    }


def agreement(record: RunRecord) -> dict[str, Any] | None:
    """Lossless verdict, and live against replay on the prompts that both measured."""
    evaluation = record.evaluation
    if evaluation is None:
        return None
    equal = sum(comparison.equal for comparison in evaluation.comparisons)
    limit = record.profile.evaluate.max_live_gap if record.profile else None
    gap = evaluation.live_gap
    return {
        "lossless": evaluation.lossless.replace("_", " "),
        "good": evaluation.lossless != "different",
        "meaning": LOSSLESS_TEXT[evaluation.lossless],
        "equal": f"{equal} of {len(evaluation.comparisons)} answers equal",
        "different": [
            f"{c.prompt_id}: token {c.first_difference} of {c.tokens}"
            for c in evaluation.comparisons
            if not c.equal
        ],
        "live": f"{evaluation.live.pooled.value:.3f}" if evaluation.live.pooled.value else wording.MISSING,
        "replay": f"{evaluation.common_replay_pooled:.3f}"
        if evaluation.common_replay_pooled
        else wording.MISSING,
        "gap": wording.percent(gap, 2),
        "limit": wording.percent(limit, 1),
        "within": evaluation.live_valid and gap is not None and limit is not None and gap <= limit,
        "valid": evaluation.live_valid,
        "left_out": len(evaluation.left_out),
    }


def training(draft: DraftCheckpoint) -> Rows:
    """Facts about the trained draft."""
    return [
        ("Held-out acceptance (eal) of the export", wording.tau(draft.held_out_eal)),
        ("Exported step", f"{wording.count(draft.step)} of {wording.count(draft.steps)}"),
        ("Epochs", str(draft.epochs)),
        ("Block size", f"{draft.block_size} tokens"),
        ("Trained parameters", wording.millions(draft.trained_parameters)),
        ("All parameters, frozen ones included", wording.millions(draft.parameters)),
        ("Draft vocabulary", f"{wording.count(draft.draft_vocab_size)} tokens"),
    ]


def epochs(record: RunRecord) -> list[dict[str, str]]:
    """Held-out metrics after each epoch."""
    best = record.draft.step if record.draft else None
    return [
        {
            "epoch": str(int(row["epoch"]) + 1) if isinstance(row.get("epoch"), int | float) else "",
            "step": wording.count(row.get("step")),
            "loss": f"{row['loss']:.3f}" if isinstance(row.get("loss"), int | float) else wording.MISSING,
            "eal": f"{row['eal']:.3f}" if isinstance(row.get("eal"), int | float) else wording.MISSING,
            "best": "exported" if row.get("step") == best else "",
        }
        for row in record.training
        if row.get("split") == "held_out"
    ]


def capture_rows(found: CaptureManifest) -> Rows:
    """What was captured, what it cost the target, and what went wrong on the way."""
    counters = found.counters
    splits = ", ".join(f"{wording.count(n)} {name.replace('_', '-')}" for name, n in found.splits.items())
    layers = ", ".join(str(layer) for layer in found.layer_ids)
    rejected = ", ".join(f"{reason}: {n}" for reason, n in counters.rejected.items()) or "none"
    return [
        ("Samples", f"{wording.count(found.samples)} ({splits})"),
        ("Tokens with hidden states", wording.count(found.tokens)),
        ("Answer tokens to train on", wording.count(found.trainable_tokens)),
        ("Distinct tokens", wording.count(found.distinct_tokens)),
        ("Hidden-state log", f"{wording.size(found.bytes)}, {found.dtype}, layers {layers}"),
        ("Prompt tokens that the target computed", wording.count(counters.target_prompt_tokens)),
        ("Tokens that the target generated", wording.count(counters.target_generated_tokens)),
        ("Lost samples", wording.count(counters.lost)),
        ("Asked for again", wording.count(counters.regenerated)),
        ("Rejected samples", rejected),
        ("Waits for space in the store", wording.count(counters.store_full_waits)),
        ("Digest of the captures", found.digest[:16]),
    ]


def machine_rows(record: RunRecord) -> Rows:
    """What the validate stage found: one row for each node of several, and the first one's facts."""
    if record.validation is None:
        return []
    nodes = [(str(node["node_id"]), _node_text(node)) for node in record.validation.nodes]
    return (nodes + _flatten(record.validation.facts))[:MAX_FACTS]


def _node_text(node: Mapping[str, Any]) -> str:
    """Role, kernel, driver and GPUs of a node."""
    names = Counter(str(gpu["name"]) for gpu in node["gpus"] or ())
    gpus = ", ".join(f"{number} x {name}" for name, number in names.items())
    parts = (node["role"], node["os"]["machine"], node["os"]["kernel_release"], node["driver"]["kmd_version"])
    return ", ".join([*(str(part) for part in parts if part), gpus or "no GPU"])


def _flatten(value: Any, name: str = "") -> Rows:
    if isinstance(value, Mapping):
        return [
            row
            for key, inner in value.items()
            for row in _flatten(inner, f"{name}.{key}" if name else str(key))
        ]
    if isinstance(value, list | tuple) and all(not isinstance(item, Mapping | list) for item in value):
        value = ", ".join(str(item) for item in value)
    if isinstance(value, list | tuple):
        return [row for i, item in enumerate(value) for row in _flatten(item, f"{name}.{i}")]
    return [(name, str(value)[:MAX_FACT_CHARS])] if value not in (None, "", {}, []) else []


def servers(record: RunRecord) -> list[dict[str, Any]]:
    """Every server that ran: engine and command line, and its figures where it was measured."""
    rows: list[dict[str, Any]] = []
    if record.target:
        target = record.target
        what = f"{target.architecture}, {target.num_hidden_layers} layers, {target.dtype}"
        facts = [("engine", target.engine), ("model", what), ("connector", target.connector),
                 ("model digest", target.model_digest[:16])]  # fmt: skip
        rows.append({"name": "target (captures)", "facts": facts, "argv": shlex.join(target.argv)})
    for arm in record.evaluation.arms if record.evaluation else ():
        rate = f"{arm.output_tokens / arm.seconds:.1f} tokens/s" if arm.seconds else wording.MISSING
        facts = [
            ("engine", arm.engine),
            ("requests", f"{arm.requests}, {arm.failed} failed"),
            ("output", f"{wording.count(arm.output_tokens)} tokens in {wording.duration(arm.seconds)}"),
            ("speed", rate if arm.speed_is_meaningful else f"{rate}, {SPEED_NOTE}"),
        ]
        rows.append({"name": arm.name, "facts": facts, "argv": shlex.join(arm.argv)})
    return rows


def checks(record: RunRecord) -> dict[str, Any] | None:
    """Validation checks: what does not pass in the open, worst first; the rest folded."""
    if record.validation is None or not record.validation.checks:
        return None
    lines = summary_lines(record.validation.checks)
    bad = [line for line in lines if line.status in ("fail", "warn")]
    return {
        "counts": count_text(record.validation.checks),
        "toolkit": record.validation.toolkit_channel,
        "failing": record.validation.worst == "fail",
        "bad": bad,
        "good": [line for line in lines if line not in bad],
    }
