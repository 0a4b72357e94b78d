"""Fits rates to one finished run, from its own records: manifests, progress, metrics, counters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.figures import Figure
from tasks.plan.rates import UNITS, RateName, Rates, levels_of
from tasks.report.record import RunRecord, read_run, stage_folder
from tasks.run_folder import RunFolder

NEEDED = ("serve", "stream", "train")


def fit_run(run: RunFolder) -> Rates:
    """Rates of a run that at least served, captured and trained in one attempt.

    Fixed parts are what a stage took beyond its progress: start, first answers, warm-up, export.

    Raises:
        UsageError: A stage is missing, or was measured while another one ran beside it.
    """
    record = read_run(run)
    profile = record.profile
    missing = [name for name in NEEDED if name not in record.seconds]
    if profile is None or missing:
        raise UsageError(
            f"run {run.run_id} cannot be fitted: {', '.join(missing) or 'its profile'} is not there",
            where=str(run.path),
            hint="give a run that finished, for example of `retrain-dspark run --pilot`",
        )
    if profile.stream.overlaps:
        raise UsageError(
            f"run {run.run_id} trained beside its capture, so neither can be timed alone",
            where="stream.overlap",
            hint="run the pilot without it: `run --pilot` does so; the plan itself may overlap",
        )
    found: dict[RateName, float] = {}
    found |= _capture(record)
    found |= _training(record, profile)
    found |= _evaluation(record)
    found |= _fixed(record)
    where = f"run {run.run_id}"
    captures, draft = record.captures, record.draft
    return Rates(
        profile=profile.name,
        runs=(run.run_id,),
        samples=captures.samples if captures else 0,
        steps=draft.steps if draft else 0,
        train_ranks=profile.train.scale.world,
        packs_per_step=profile.train.packs_per_step,
        batch_tokens=profile.train.batch_tokens,
        load_levels=levels_of(profile),
        max_new_tokens=profile.stream.max_new_tokens,
        draft_vocab_size=draft.draft_vocab_size if draft else None,
        concurrency=min(profile.stream.concurrency, profile.serve.max_num_seqs),
        rates={
            name: Figure(value=round(value, 6), unit=UNITS.get(name, "s"), source="measured", where=where)
            for name, value in found.items()
        },
    )


def _fixed(record: RunRecord) -> dict[RateName, float]:
    """Stages that do not grow with the work, and what the flow takes around all stages."""
    seconds = record.seconds
    found: dict[RateName, float] = {"serve_start_s": seconds["serve"]}
    if "validate" in seconds:
        found["validate_s"] = seconds["validate"]
    if "publish" in seconds:
        found["publish_s"] = seconds["publish"]
    summary = _json(record.run.path / "summary.json")
    stages = summary.get("stages") or ()
    whole = summary.get("seconds")
    if whole and stages and all(row["status"] == "completed" for row in stages):
        found["around_s"] = max(0.0, whole - sum(row["seconds"] for row in stages))
    return found


def _capture(record: RunRecord) -> dict[RateName, float]:
    """Tokens per second between the first and the last sample; what is left of the stage is its start."""
    captures = record.captures
    rows = [row for row in rows_of(record.run.progress / "capture.jsonl") if row.get("unit") == "samples"]
    grown = [row for row in rows if row["done"] > 0 and "tokens" in row["metrics"]]
    if captures is None or len(grown) < 2 or grown[-1]["t"] <= grown[0]["t"]:
        return {}
    first, last = grown[0], grown[-1]
    rate = (last["metrics"]["tokens"] - first["metrics"]["tokens"]) / (last["t"] - first["t"])
    if rate <= 0:
        return {}
    found: dict[RateName, float] = {
        "capture_tokens_per_s": rate,
        "capture_start_s": max(0.0, record.seconds["stream"] - captures.tokens / rate),
        "sample_tokens": captures.tokens / max(1, captures.samples),
    }
    if record.validation is not None and (speed := _store_speed(record)) is not None:
        found["store_bytes_per_s"] = speed
    return found


def _store_speed(record: RunRecord) -> float | None:
    """What the validate stage's round trip through the store reached, bytes per second."""
    for check in record.validation.checks if record.validation else ():
        if check.id == "store.roundtrip" and check.status == "pass":
            number, _, rest = check.observed.partition(" GB/s")
            try:
                return float(number) * 1e9 if rest else None
            except ValueError:
                return None
    return None


@dataclass(frozen=True)
class Piece:
    """Time between two progress lines of the trainer."""

    seconds: float
    steps: int
    """Optimizer steps in it; 0 for a measurement of the held-out samples."""


def _training(record: RunRecord, profile: Profile) -> dict[RateName, float]:
    """Seconds of a step after the first piece, of a measurement, and what is left: start, warm-up, export."""
    draft, captures = record.draft, record.captures
    pieces = training_pieces(rows_of(record.run.progress / "train.jsonl"), record.training)
    steps = [piece for piece in pieces if piece.steps]
    if draft is None or captures is None or not steps:
        return {}
    steady = steps[1:] or steps
    step_s = sum(piece.seconds for piece in steady) / sum(piece.steps for piece in steady)
    measuring = sum(piece.seconds for piece in pieces if not piece.steps)
    measured = sum(row.get("split") == "held_out" for row in record.training)
    held_out = captures.splits.get("held_out", 0)
    found: dict[RateName, float] = {
        "step_s": step_s,
        "train_start_s": max(0.0, record.seconds["train"] - step_s * draft.steps - measuring),
    }
    if measured and held_out:
        found["held_out_sample_s"] = measuring / (measured * held_out)
    limit = profile.train.max_steps
    trained = captures.splits.get("train", 0)
    if draft.steps and trained and (limit is None or draft.steps < limit):
        tokens = captures.tokens / max(1, captures.samples) * trained * draft.epochs
        room = draft.steps * profile.train.batch_tokens * profile.train.packs_per_step
        found["step_fill"] = min(1.0, tokens / room)
    return found


def training_pieces(
    progress: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]
) -> list[Piece]:
    """Pieces of a training in one attempt: the lines with a speed belong, in order, to the metrics' rows.

    Steps that are not logged one by one are as many as the rows' steps differ by.
    """
    numbers = [int(row["step"]) for row in metrics if row.get("split") == "train"]
    speeds = [row for row in progress if "tokens_per_s" in row["metrics"]]
    if len(numbers) != len(speeds):
        return []  # more than one attempt, or rows of another one
    pieces: list[Piece] = []
    done, before, last = iter(numbers), None, 0
    measuring = False
    for row in progress:
        if before is not None and "tokens_per_s" in row["metrics"]:
            number = next(done)
            pieces.append(Piece(row["t"] - before, number - last))
            last = number
        elif before is not None and measuring:
            pieces.append(Piece(row["t"] - before, 0))
        elif "tokens_per_s" in row["metrics"]:
            last = next(done)
        before, measuring = row["t"], row["note"] == "held-out evaluation"
    return [piece for piece in pieces if piece.seconds >= 0]


def _evaluation(record: RunRecord) -> dict[RateName, float]:
    """Starts of arms, their output tokens, and replayed answers."""
    if "evaluate" not in record.seconds:
        return {}
    arms = [_json(path) for path in sorted(stage_folder(record.run, "evaluate").glob("arms/*.json"))]
    arms = [arm for arm in arms if isinstance(arm.get("seconds"), int | float)]
    tokens = sum(_output_tokens(arm) for arm in arms)
    asked = sum(arm["seconds"] for arm in arms)
    replayed = rows_of(record.run.progress / "replay.jsonl")
    replay = replayed[-1]["t"] - replayed[0]["t"] if replayed else 0.0
    answers = replayed[-1]["done"] - replayed[0]["done"] if replayed else 0
    starts = sum(int(arm.get("starts", 1)) for arm in arms)
    found: dict[RateName, float] = {}
    if answers:
        found["replay_answer_s"] = replay / answers
    if starts:
        found["arm_start_s"] = max(0.0, record.seconds["evaluate"] - asked - replay) / starts
    if tokens:
        found["live_token_s"] = asked / tokens
    return found


def _output_tokens(arm: Mapping[str, Any]) -> int:
    answers = arm.get("answers")
    rows = answers.values() if isinstance(answers, Mapping) else ()
    return sum(len(answer.get("token_ids") or ()) for answer in rows)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Progress lines of the last attempt: those from the last start on."""
    rows = list(_lines(path))
    starts = [i for i, row in enumerate(rows) if i and row["done"] < rows[i - 1]["done"]]
    return rows[starts[-1] :] if starts else rows


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"t", "done", "metrics"} <= row.keys():
            yield {"note": "", "unit": "", **row}


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
