"""From the rows of a replay to its detail: by draft tokens, position and context length, with intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profiles.evaluation import Replay
from tasks.evaluate.assemble import ReplayRow, tau_estimate
from tasks.evaluate.replay_models import (
    ContextBucket,
    CountEstimate,
    DraftVerdict,
    PositionEstimate,
    ReplayDetail,
)
from tasks.measure.acceptance import PromptCounts, conditional_rates, pool, position_rates, tau
from tasks.measure.intervals import Bootstrap, macro_interval, pooled_interval

TOP_TENTH = 90.0


def replay_detail(
    rows: Sequence[ReplayRow], length: int, options: Replay, how: Bootstrap, verdict: Path, slots: Path
) -> ReplayDetail:
    """The detail of one replay.

    Args:
        length: Answer tokens of the walks that are looked at; the longest, for the context buckets.
        verdict: `<replay>.check.json`.
        slots: `<replay>.slots.safetensors`.
    """
    domains: dict[str, list[ReplayRow]] = {}
    for row in rows:
        domains.setdefault(row.domain, []).append(row)
    return ReplayDetail(
        by_draft_tokens=tuple(by_draft_tokens(domains, length, how)),
        own_blocks=options.own_blocks,
        positions=positions(rows, length),
        domains={name: positions(part, length) for name, part in domains.items()},
        contexts=tuple(contexts(domains, options.context_bounds, how)),
        verdict=read_verdict(verdict),
        slots=slots.name if slots.exists() else "",
    )


def read_verdict(path: Path) -> DraftVerdict:
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw.pop("notes", None)
    return DraftVerdict.model_validate(raw)


def verdict_notes(path: Path) -> list[str]:
    """What the replay wants said of the draft, in words."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    said = [f"draft: {raw['diagnosis']}"] if raw["diagnosis"] else []
    return said + [f"draft: {note}" for note in raw["notes"]]


def by_draft_tokens(
    domains: Mapping[str, Sequence[ReplayRow]], length: int, how: Bootstrap
) -> Iterable[CountEstimate]:
    """Acceptance for every number of draft tokens; the same prompts are drawn again for each."""
    walks = {name: [row.by_tokens(length) for row in rows] for name, rows in domains.items()}
    most = max((len(counts) for rows in walks.values() for counts in rows), default=0)
    for index in range(most):
        counted = {
            name: [counts[min(index, len(counts) - 1)] for counts in rows if counts]
            for name, rows in walks.items()
        }
        everything = [one for counts in counted.values() for one in counts]
        yield CountEstimate(
            draft_tokens=index + 1,
            macro=tau_estimate(macro_interval(counted, how), everything),
            pooled=tau_estimate(pooled_interval(counted, how), everything),
        )


def positions(rows: Sequence[ReplayRow], length: int) -> PositionEstimate:
    """Rates by position over the rounds of `rows`, overlaps over all their tokens."""
    whole = pool(row.counts(length) for row in rows)
    sums = [row.overlap for row in rows if row.overlap is not None]
    if not sums:
        return PositionEstimate(
            unconditional=position_rates(whole.rounds, whole.per_position),
            conditional=conditional_rates(whole.rounds, whole.per_position),
        )
    known = [sum(column) for column in zip(*(one["known"] for one in sums), strict=True)]
    means = {
        name: [
            sum(column) / count if count else None
            for column, count in zip(zip(*(one[name] for one in sums), strict=True), known, strict=True)
        ]
        for name in ("overlap", "survival")
    }
    return PositionEstimate(
        unconditional=position_rates(whole.rounds, whole.per_position),
        conditional=conditional_rates(whole.rounds, whole.per_position),
        overlap=tuple(means["overlap"]),
        expected_length=1.0 + sum(value for value in means["survival"] if value is not None),
    )


def contexts(
    domains: Mapping[str, Sequence[ReplayRow]], bounds: Sequence[int], how: Bootstrap
) -> Iterable[ContextBucket]:
    """Buckets that hold a round, in rising order."""
    for above, up_to in zip((0, *bounds), (*bounds, None), strict=True):
        counted: dict[str, list[PromptCounts]] = {}
        for name, rows in domains.items():
            parts = [row.rounds_between(above, up_to) for row in rows]
            counted[name] = [part for part in parts if part.rounds]
        everything = [one for counts in counted.values() for one in counts]
        if not everything:
            continue
        own = [tau(one.rounds, one.accepted) or 0.0 for one in everything]
        yield ContextBucket(
            above=above,
            up_to=up_to,
            tau=tau_estimate(pooled_interval(counted, how), everything),
            median=float(np.median(own)),
            top_tenth=float(np.percentile(own, TOP_TENTH)),
            largest=max(own),
        )


def replay_config(options: Replay, record: Any) -> dict[str, Any]:
    """What a replay's process has to know of the profile and of the draft's training."""
    shown = options.model_dump(mode="json", exclude={"context_bounds", "verifier_names"})
    return {"options": shown, "record": None if record is None else record.model_dump(mode="json")}
