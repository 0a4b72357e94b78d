"""The levels of a sweep from the profile, the prompts that they send, and the sweep's summary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from profiles.schema import Profile
from tasks.evaluate.live import LivePrompt
from tasks.evaluate.load.models import Level, LoadPoint, LoadSweep
from tasks.stage import write_atomic

NO_SPEED = (
    "load: under Triton's interpreter the speeds of the sweep are those of the interpreter and mean nothing; "
    "they show that the way to measure them works"
)


def levels_of(profile: Profile) -> tuple[Level, ...]:
    """Levels of the profile's `evaluate.load`, rising; none where the sweep is off.

    The heaviest comes last: an engine that does not survive it has answered the others.
    """
    load = profile.evaluate.load
    shared = {
        "max_new_tokens": load.max_new_tokens,
        "timeout_s": load.level_timeout_s,
        "max_failed": load.max_failed,
        "seed": load.seed,
    }
    users = [
        Level(
            concurrency=count,
            requests=max(load.min_requests, load.requests_per_user * count),
            warm_ups=count if load.warm_up else 0,
            **shared,
        )
        for count in sorted(set(load.concurrency))
    ]
    rates = [
        Level(
            concurrency=None,
            request_rate=rate,
            requests=load.min_requests,
            warm_ups=1 if load.warm_up else 0,
            **shared,
        )
        for rate in sorted(set(load.request_rates))
    ]
    return (*users, *rates)


def write_prompts(file: Path, prompts: Iterable[LivePrompt]) -> Path:
    """Write the prompts of a sweep as the generator reads them: as token ids, exactly as they were captured.

    Returns:
        `file`: JSON lines `{"prompt": [token ids]}`.
    """
    rows = [json.dumps({"prompt": list(prompt.token_ids)}) for prompt in prompts]
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(file, "".join(f"{row}\n" for row in rows))
    return file


def load_sweep(points: Sequence[LoadPoint], speed_is_meaningful: bool) -> LoadSweep:
    """All arms' points, with one note for each that cannot be used."""
    notes = [] if speed_is_meaningful or not points else [NO_SPEED]
    for point in points:
        where = f"load, arm {point.arm}, {_load_of(point)}"
        if point.timed_out:
            notes.append(f"{where}: timed out; {point.failed} of {point.requests} requests had no answer")
        elif point.invalid:
            notes.append(f"{where}: invalid: {point.invalid}")
    return LoadSweep(points=tuple(points), speed_is_meaningful=speed_is_meaningful, notes=tuple(notes))


def _load_of(point: LoadPoint) -> str:
    if point.request_rate is not None:
        return f"{point.request_rate:g} requests/s"
    return f"{point.concurrency} at once"
