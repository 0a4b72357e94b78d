"""What page, terminal and Prefect show of a replay in depth: a warning, draft tokens, positions, contexts."""

from __future__ import annotations

from typing import Any

from tasks.evaluate.replay_models import ContextBucket, PositionEstimate, ReplayDetail
from tasks.report import wording
from tasks.report.record import RunRecord

Row = dict[str, str]

WRONG = "The draft does not behave as trained"


def detail_of(record: RunRecord) -> ReplayDetail | None:
    """The detail of the replay, if there was one."""
    return record.evaluation.replay_detail if record.evaluation else None


def diagnosis(record: RunRecord) -> str:
    """What is wrong with the draft, in a sentence; empty if nothing seems to be."""
    detail = detail_of(record)
    return (detail.verdict.diagnosis or "") if detail else ""


def warning(record: RunRecord) -> dict[str, Any] | None:
    """The box at the top of the evaluation; None for a draft that behaves as trained."""
    detail = detail_of(record)
    if detail is None or not detail.verdict.diagnosis:
        return None
    verdict = detail.verdict
    first = f"{wording.percent(verdict.first)} of all places"
    if verdict.expected is not None:
        first += f"; suspicious below {wording.percent(verdict.expected)}"
    return {
        "title": WRONG,
        "text": verdict.diagnosis,
        "facts": [("First draft token right", first)] if verdict.first is not None else [],
        "trials": [_trial(one) for one in verdict.trials],
    }


def _trial(one: dict[str, Any]) -> Row:
    """One correction that was tried, and what it gave."""
    return {
        "what": str(one.get("what", wording.MISSING)),
        "tau": wording.tau(one.get("tau")),
        "first": wording.percent(one.get("first")),
    }


def token_rows(detail: ReplayDetail | None) -> list[Row]:
    """Acceptance by number of draft tokens, and what each further token adds."""
    rows, before = [], 1.0
    for one in detail.by_draft_tokens if detail else ():
        value = one.macro.value
        if value is None:
            continue
        rows.append(
            {
                "tokens": str(one.draft_tokens),
                "macro": wording.tau(value),
                "interval": wording.interval(one.macro.low, one.macro.high),
                "gain": f"{value - before:+.2f}",
                "pooled": wording.tau(one.pooled.value),
            }
        )
        before = value
    return rows


def how_blocks_were_drafted(detail: ReplayDetail) -> str:
    """How acceptance with fewer tokens than a whole block came about."""
    if detail.own_blocks:
        return "Blocks of each length were drafted anew, as an engine does."
    return "Whole blocks were cut to each length; an engine drafts shorter blocks anew."


def position_rows(found: PositionEstimate) -> list[Row]:
    """Overlap of draft and target at each position, beside the greedy rates; none without overlaps."""
    if not any(value is not None for value in found.overlap):
        return []
    places = max(len(found.unconditional), len(found.conditional), len(found.overlap))
    return [
        {
            "position": str(place + 1),
            "accepted": _share(found.unconditional, place),
            "conditional": _share(found.conditional, place),
            "overlap": _share(found.overlap, place),
        }
        for place in range(places)
    ]


def _share(values: tuple[float | None, ...] | tuple[float, ...], place: int) -> str:
    return wording.percent(values[place] if place < len(values) else None)


def sampled_lengths(detail: ReplayDetail) -> list[tuple[str, str]]:
    """Expected tokens per round at temperature 1: all prompts, then each domain."""
    whole = detail.positions.expected_length
    if whole is None:
        return []
    parts = {name: one.expected_length for name, one in detail.domains.items()}
    return [("all prompts, pooled", wording.tau(whole))] + [
        (name, wording.tau(value)) for name, value in parts.items() if value is not None
    ]


def context_rows(detail: ReplayDetail | None) -> list[Row]:
    """Acceptance by the tokens before a round; nothing where all rounds lie in one range."""
    known = [one for one in (detail.contexts if detail else ()) if one.tau.rounds and one.tau.value]
    if len(known) < 2:
        return []
    return [
        {
            "range": _range(one),
            "tau": wording.tau(one.tau.value),
            "interval": wording.interval(one.tau.low, one.tau.high),
            "median": wording.tau(one.median),
            "top_tenth": wording.tau(one.top_tenth),
            "largest": wording.tau(one.largest),
            "prompts": wording.count(one.tau.prompts),
            "rounds": wording.count(one.tau.rounds),
        }
        for one in known
    ]


def _range(one: ContextBucket) -> str:
    if one.up_to is None:
        return f"above {one.above:,}"
    return f"{one.above + 1:,} to {one.up_to:,}" if one.above else f"up to {one.up_to:,}"
