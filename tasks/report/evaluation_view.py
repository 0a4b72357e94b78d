"""What report, Prefect and terminal show of the decision inputs, as plain rows."""

from __future__ import annotations

from typing import Any

from profiles.references import Published, Reference, for_target, load_references
from tasks.evaluate.worth.models import Basis, Capacity, DraftMemory, Figure, Objective, Worth
from tasks.evaluate.worth.points import DRAFT, PLAIN, usable
from tasks.evaluate.worth.wording import times, tokens
from tasks.report import wording
from tasks.report.record import RunRecord

Rows = list[tuple[str, str]]

# The colours of a promoted, failed, held and cancelled run.
BOX = {
    "worth": "completed",
    "not_worth": "failed",
    "undecided": "held",
    "acceptance_only": "cancelled",
    "not_measured": "cancelled",
}
NOT_PUBLISHED = "not published"


def decision(record: RunRecord) -> dict[str, Any] | None:
    """Everything of the section "Is it worth serving?"; None where nothing was worked out."""
    worth = record.evaluation.worth if record.evaluation else None
    if worth is None:
        return None
    name = record.profile.target.model if record.profile else ""
    return {
        "sentence": worth.sentence,
        "box": BOX[worth.verdict],
        "known": worth.known,
        "meaningless": bool(worth.measured.points) and not worth.measured.speed_is_meaningful,
        "speeds": speed_rows(worth),
        "has_targets": bool(worth.objectives),
        "points": point_rows(worth),
        "matched": matched_rows(worth),
        "power": power_text(worth),
        "domains": domain_rows(worth),
        "has_incumbent": any(one.over_incumbent.value is not None for one in worth.measured.domains),
        "capacity": [capacity_row(one) for one in worth.capacity],
        "load": record.profile.evaluate.slo.load_tokens_per_s if record.profile else None,
        "memory": memory_rows(worth.measured.memory) if worth.measured.memory else [],
        "money": money_rows(worth),
        "references": [reference(one, name) for one in for_target(load_references(), name)],
    }


def speed_rows(worth: Worth) -> list[dict[str, str]]:
    """One row for each concurrency: both speeds, the speed-up, what one user sees, targets."""
    cells, _ = usable(worth.measured.points, worth.measured.differences)
    curve = next((one for one in worth.curves if (one.arm, one.baseline) == (DRAFT, PLAIN)), None)
    speedups = {point.concurrency: times(point) for point in (curve.points if curve else ())}
    met = {(one.arm, one.concurrency): one for one in worth.objectives}
    rows = []
    for at in sorted({at for arm, at in cells if arm in (DRAFT, PLAIN)}):
        both = [(cells.get((arm, at)), met.get((arm, at))) for arm in (PLAIN, DRAFT)]
        (plain, plain_met), (draft, draft_met) = both
        rows.append(
            {
                "concurrency": str(at),
                "plain": _number(plain.tokens_per_s if plain else None, 1),
                "draft": _number(draft.tokens_per_s if draft else None, 1),
                "speedup": speedups.get(at, wording.MISSING),
                "per_user": _number(plain.tokens_per_s_per_user if plain else None, 1)
                + " / "
                + _number(draft.tokens_per_s_per_user if draft else None, 1),
                "plain_met": _met(plain_met),
                "draft_met": _met(draft_met),
            }
        )
    return rows


def point_rows(worth: Worth) -> list[dict[str, str]]:
    """Every measured point of every arm, used or not."""
    reasons = {(one.arm, one.concurrency): one.reason for one in worth.left_out}
    return [
        {
            "arm": point.arm,
            "load": str(point.concurrency) if point.request_rate is None else f"{point.request_rate:g}/s",
            "tokens_per_s": f"{point.output_tokens_per_s:,.1f}",
            "per_user": _number(point.tokens_per_s_per_user, 1),
            "ttft": " / ".join(_number(v) for v in (point.ttft_ms.p50, point.ttft_ms.p90, point.ttft_ms.p99)),
            "itl": " / ".join(_number(v, 1) for v in (point.itl_ms.p50, point.itl_ms.p90, point.itl_ms.p99)),
            "per_step": _number(1.0 if point.usable and point.arm == PLAIN else point.tokens_per_step, 2),
            "failed": f"{point.failed} / {point.requests}",
            "left_out": reasons.get((point.arm, point.concurrency), ""),
        }
        for point in worth.measured.points
    ]


def _met(one: Objective | None) -> str:
    if one is None:
        return ""
    return "met" if one.met else "; ".join(one.misses)


def _number(value: float | None, digits: int = 0) -> str:
    return wording.MISSING if value is None else f"{value:,.{digits}f}"


def matched_rows(worth: Worth) -> list[dict[str, str]]:
    """Throughput of both arms where a user sees equally many tokens per second."""
    return [
        {
            "per_user": f"{one.tokens_per_s_per_user:.1f}",
            "plain": f"{one.plain_tokens_per_s:,.0f}",
            "draft": f"{one.draft_tokens_per_s:,.0f}",
            "ratio": f"{one.ratio:.2f}x",
            "basis": one.basis,
        }
        for one in worth.matched
    ]


def domain_rows(worth: Worth) -> list[dict[str, str]]:
    """Gains of each domain in tokens per step."""
    return [
        {
            "name": one.domain,
            "tau": tokens(one.tau),
            "none": _gain(one.over_none),
            "incumbent": _gain(one.over_incumbent),
            "prompts": str(one.prompts),
        }
        for one in worth.measured.domains
    ]


def _gain(figure: Figure) -> str:
    return wording.MISSING if figure.value is None else tokens(figure, signed=True)


def power_text(worth: Worth) -> str:
    """What these prompts can tell apart; speeds are compared on the logarithm, so they are left out here."""
    found = worth.power
    if found is None or found.what.startswith("log"):
        return ""
    text = (
        f"{found.prompts} prompts find a difference of {found.detectable:.2f} or more in four of five cases "
        f"({found.what}; here {found.observed:+.2f})."
    )
    return text + (f" About {found.more_prompts:,} more would settle it." if found.more_prompts else "")


def capacity_row(one: Capacity) -> dict[str, str]:
    """One arm of the capacity table; every figure says where it comes from."""
    place = "" if one.concurrency is None else f" at concurrency {one.concurrency:.3g}"
    return {
        "arm": "with the draft" if one.arm == DRAFT else "without",
        "server": _marked(one.tokens_per_s_per_server, one.basis, place),
        "gpu": _marked(one.tokens_per_s_per_gpu, one.basis),
        "gpus": _marked(one.gpus_needed, one.gpus_basis),
        "why_not": one.why_not,
    }


def _marked(value: float | None, basis: Basis, place: str = "") -> str:
    return wording.MISSING if value is None else f"{value:,.0f} ({basis}{place})"


def memory_rows(found: DraftMemory) -> Rows:
    """The draft's own memory and the KV cache that it costs, computed from its configuration.

    The type of the cache is the engine's setting, said with where it comes from.
    """
    weights = [
        ("Draft's own weights", f"{wording.size(found.own_weights_bytes)} in {found.dtype} (computed)"),
        ("Weights shared with the target", f"{wording.size(found.shared_weights_bytes)} (computed)"),
    ]
    cache = found.cache_dtype if found.cache_asked == found.cache_dtype else f"{found.cache_dtype} (auto)"
    said = f"{cache}, by {found.cache_source}"
    if found.kv_bytes_per_token is None or found.kv_bytes_per_request is None:
        return [*weights, ("KV cache", f"not computed: the size of the type {said}, is not known")]
    window = (
        f", at most the last {found.kv_window_tokens:,} tokens of each layer"
        if found.kv_window_tokens
        else ""
    )
    return [
        *weights,
        ("Type of the KV cache", said),
        ("KV cache of a token", f"{found.kv_bytes_per_token:,} B{window} (computed)"),
        (
            f"KV cache of a request of {found.context_tokens:,} tokens",
            f"{wording.size(found.kv_bytes_per_request)} (computed)",
        ),
    ]


def money_rows(worth: Worth) -> Rows:
    """GPU-hours spent and the break-even, or why there is none."""
    rows: Rows = []
    if worth.spent is not None:
        found = worth.spent
        hours = ", ".join(f"{name} {wording.duration(3600 * h)}" for name, h in found.stages.items())
        notes = "; ".join(found.notes)
        if found.gpus == 0:
            rows.append(("GPU-hours spent", f"0: {notes} ({hours})"))
        elif found.reserved_gpu_hours is None:
            rows.append(("GPU-hours spent", f"not known; {notes}"))
        else:
            text = f"{found.reserved_gpu_hours:.2f} reserved, {found.used_gpu_hours:.2f} used"
            rows.append(("GPU-hours spent", f"{text}, {found.gpus} GPUs ({hours}; {notes})"))
    if worth.break_even is not None:
        rows.append(("Break-even", _break_even(worth)))
    return rows


def _break_even(worth: Worth) -> str:
    found = worth.break_even
    if found is None or found.hours.value is None:
        return f"not computed: {found.why_not if found else 'nothing was measured'}"
    low = f"{found.hours.low:,.1f}" if found.hours.low is not None else wording.MISSING
    high = f"{found.hours.high:,.1f}" if found.hours.high is not None else "never"
    unit = found.currency
    return (
        f"after {found.hours.value:,.1f} hours of serving [{low}, {high}]: {found.cost:,.2f} {unit} for the "
        f"retraining, {found.saved_per_hour:,.2f} {unit} saved an hour (extrapolated)"
    )


def reference(one: Reference, target: str) -> dict[str, Any]:
    """One published reference with its conditions; what was not published is said."""
    return {
        "title": one.title,
        "open": one.concerns(target),
        "source": f"{one.source}, {one.date}",
        "rows": [(_value_name(value), _value(value)) for value in one.values],
        "conditions": ", ".join(
            f"{name}: {NOT_PUBLISHED if value is None else value}" for name, value in one.conditions.items()
        ),
        "notes": one.notes,
    }


def _value_name(value: Published) -> str:
    return f"{value.name}, {value.conditions}" if value.conditions else value.name


def _value(value: Published) -> str:
    if value.value is None:
        return NOT_PUBLISHED
    text = f"{value.value:g} {value.unit}"
    if value.without_draft is not None:
        ratio = f", {value.speed_up:.2f}x" if value.speed_up is not None else ", not on the same inputs"
        text = f"{value.without_draft:g} to {text}{ratio}"
    return text
