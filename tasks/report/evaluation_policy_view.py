"""What the page shows of draft tokens, confidences and costs, as plain rows."""

from __future__ import annotations

from typing import Any

from tasks.evaluate.policy.models import (
    Calibration,
    CostTable,
    Gain,
    PolicyReport,
    Recommended,
    Reliability,
    SimulatedPolicy,
    Temperature,
)
from tasks.evaluate.policy.options import MODEL, command_line
from tasks.report import evaluation_replay_view as replay
from tasks.report import wording
from tasks.report.record import RunRecord

Row = dict[str, str]

NAMES = {
    "adaptive": "adaptive verification (vLLM)",
    "scheduler": "scheduler (Algorithm 1)",
    "calibrated_scheduler": "scheduler, scaled confidences (held-out prompts)",
}
NO_DRAFT = "without a draft"


def policy(record: RunRecord) -> dict[str, Any] | None:
    """Everything of the section "How many draft tokens"; None where nothing was replayed in depth."""
    evaluation = record.evaluation
    found = evaluation.policy if evaluation and evaluation.policy else PolicyReport()
    detail = replay.detail_of(record)
    shown: dict[str, Any] = {
        "tokens": replay.token_rows(detail),
        "blocks": replay.how_blocks_were_drafted(detail) if detail else "",
        "sampled": replay.sampled_lengths(detail) if detail else [],
        "positions": replay.position_rows(detail.positions) if detail else [],
        "advice": [advice_row(one) for one in found.recommendation],
        "options": option_rows(found),
        "schedule": command_line(found.schedule_options),
        "played": played_rows(found),
        "levels": [str(load.concurrency) for load in found.simulation],
        "calibration": calibration_text(found.calibration) if found.calibration else "",
        "positions_fitted": calibration_rows(found.calibration) if found.calibration else [],
        "steps": step_rows(found.costs) if found.costs else [],
        "drafting": drafting_rows(found.costs) if found.costs else [],
        "notes": notes(found),
    }
    if not any(value for name, value in shown.items() if name != "blocks"):
        return None
    return {**shown, "meaningless": found.costs is not None and not found.costs.meaningful, "model": MODEL}


def advice_row(one: Recommended) -> Row:
    """What to serve with at one concurrency."""
    tokens = one.num_speculative_tokens
    return {
        "concurrency": str(one.concurrency),
        "tokens": str(tokens) if tokens else "0 (no draft)",
        "tau": wording.tau(one.expected_tau),
        "speedup": _times(one.expected_speedup, one.expected_speedup_low, one.expected_speedup_high),
        "adaptive": adaptive_text(one),
        "basis": "extrapolated" if one.extrapolated else "measured",
    }


def _times(value: float | None, low: float | None = None, high: float | None = None) -> str:
    if value is None:
        return wording.MISSING
    return f"{value:.2f}x {wording.interval(low, high)}".rstrip()


def adaptive_text(one: Recommended) -> str:
    """Whether adaptive verification is worth switching on, and by how much."""
    if one.adaptive_gain is None:
        return "not played: no confidences"
    word = {True: "helps", False: "does not help", None: "undecided"}[one.adaptive_verification_helps]
    return f"{word}: {gain_text(one.adaptive_gain)}"


def gain_text(found: Gain) -> str:
    """A relative difference: `+4.1 % [+2.0, +6.3]`."""
    return f"{100 * found.value:+.1f} % [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def option_rows(found: PolicyReport) -> list[Row]:
    """vLLM's option by concurrency; levels with the same option share a row."""
    levels: dict[str, list[str]] = {}
    for one in found.recommendation:
        levels.setdefault(one.command_line, []).append(str(one.concurrency))
    return [{"levels": ", ".join(at), "command": line} for line, at in levels.items()]


def played_rows(found: PolicyReport) -> list[dict[str, Any]]:
    """Every policy over every concurrency: speed-up, and what is verified for it where that varies."""
    names = list(dict.fromkeys(_name(one) for load in found.simulation for one in load.policies))
    by_load = [{_name(one): one for one in load.policies} for load in found.simulation]
    rows: list[dict[str, Any]] = [
        {"name": name, "cells": [_played(load.get(name)) for load in by_load]} for name in names
    ]
    gains = [load.calibration_gain for load in found.simulation]
    if any(gains):
        cells = [_scaled(one) for one in gains]
        rows.append({"name": "scheduler, scaled over raw (held-out prompts)", "cells": cells})
    return rows


def _name(one: SimulatedPolicy) -> str:
    if one.policy == "fixed":
        return f"{one.setting:.0f} token{'s' * (one.setting > 1)}" if one.setting else NO_DRAFT
    if one.policy == "threshold":
        return f"survival of at least {wording.percent(one.setting, 0)}"
    return NAMES[one.policy]


def _scaled(gain: Gain | None) -> Row:
    value, _, rest = gain_text(gain).partition(" [") if gain else (wording.MISSING, "", "")
    return {"speedup": value, "rest": rest and f"[{rest}"}


def _played(one: SimulatedPolicy | None) -> Row:
    if one is None:
        return {"speedup": wording.MISSING, "rest": ""}
    rest = "" if one.policy == "fixed" else f"{one.tau:.2f} / {one.verified:.1f}"
    return {"speedup": f"{1 + one.speedup.value:.2f}x", "rest": rest}


def calibration_text(found: Calibration) -> str:
    """How good the confidences are on prompts that were not fitted, before and after scaling."""
    half = found.report
    rounds = "rounds" if found.anchors == "rounds" else "answer tokens"
    text = f"On {half.prompts} prompts that were not fitted ({half.blocks:,} blocks, from {rounds})"
    if half.cumulative_ece_before is None:
        return f"{text} nothing can be said of the confidences."
    text += (
        f" the chance that a prefix is accepted is off by {wording.percent(half.cumulative_ece_before)} "
        "(cumulative ECE, mean over positions) as trained"
    )
    if half.cumulative_ece_after is not None and any(one.fitted for one in found.temperatures):
        text += f" and by {wording.percent(half.cumulative_ece_after)} after temperature scaling"
    if half.before.auc is not None:
        text += f"; accepted tokens have the higher confidence with probability {half.before.auc:.2f} (AUC)"
    return text + "."


def calibration_rows(found: Calibration) -> list[Row]:
    """Temperature and calibration error of each position, and what chance alone would show."""
    fitted = {one.position: one for one in found.temperatures}
    rows = []
    for one in found.report.positions:
        heat = fitted.get(one.position)
        rows.append(
            {
                "position": str(one.position),
                "temperature": f"{heat.value:.2f}" if heat and heat.fitted else "not fitted",
                "reason": _reason(heat) if heat else "",
                "before": _error(one.cumulative_before),
                "after": _error(one.cumulative_after) if heat and heat.fitted else wording.MISSING,
                "noise": wording.percent(one.cumulative_before.noise),
                "blocks": wording.count(one.cumulative_before.total),
            }
        )
    return rows


def _reason(heat: Temperature) -> str:
    return f"fitted at {heat.reason}" if heat.fitted and heat.reason else heat.reason


def notes(found: PolicyReport) -> list[str]:
    """Notes without those on single positions, which stand in the table of temperatures."""
    heats = found.calibration.temperatures if found.calibration else ()
    told = [(f"confidence, position {one.position}: ", one.reason) for one in heats if one.reason]
    return [
        note
        for note in found.notes
        if not any(note.startswith(start) and note.endswith(reason) for start, reason in told)
    ]


def _error(found: Reliability) -> str:
    return wording.percent(found.ece)


def step_rows(found: CostTable) -> list[Row]:
    """Time of an engine step by the tokens that it verifies."""
    return [
        {
            "tokens": wording.count(one.tokens),
            "ms": f"{1000 * one.seconds:,.1f}",
            "rate": f"{one.steps_per_s:,.1f}",
        }
        for one in found.verify
    ]


def drafting_rows(found: CostTable) -> list[Row]:
    """Time of drafting one block for every request of a batch."""
    return [
        {"requests": wording.count(one.requests), "ms": f"{1000 * one.seconds:,.1f}"} for one in found.draft
    ]
