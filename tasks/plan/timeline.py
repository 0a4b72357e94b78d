"""When which node does what, and how long nodes are held without work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.schema import Profile
from tasks.plan.figures import Figure
from tasks.plan.models import Period
from tasks.plan.predict import Prediction
from tasks.plan.topology import Place, Topology

STAGES = ("validate", "serve", "stream", "train", "evaluate", "publish")


@dataclass(frozen=True)
class Phase:
    """A stretch of a run: which roles have work in it, and what."""

    stage: str
    begin_s: float
    end_s: float
    doing: dict[str, str]
    """Role -> work; a role that is missing is idle."""


def phases(profile: Profile, found: Prediction) -> list[Phase]:
    """Stages one after another, training beside the capture where the profile overlaps them.

    Empty where the time of a stage is not known.
    """
    seconds = {name: found.stages[name].value for name in STAGES}
    known = {name: value for name, value in seconds.items() if value is not None}
    if len(known) < len(STAGES):
        return []
    both = {"serve": "checks", "train": "checks"}
    rows: list[Phase] = []
    now = _add(rows, "validate", 0.0, known["validate"], both)
    now = _add(rows, "serve", now, known["serve"], {"serve": "starts the target"})
    if profile.stream.overlaps:
        later = known["train"] * (1 - 1 / max(1, profile.train.epochs))
        now = _overlapped(rows, now, known["stream"], found.capture_s or 0.0, known["train"], later)
    else:
        now = _add(rows, "stream", now, known["stream"], {"serve": "captures"})
        now = _add(rows, "train", now, known["train"], {"train": "trains"})
    replay = min(found.replay_s or 0.0, known["evaluate"])
    now = _add(rows, "evaluate", now, replay, {"train": "replays"})
    now = _add(rows, "evaluate", now, known["evaluate"] - replay, {"serve": "serves the arms"})
    _add(rows, "publish", now, known["publish"], {})
    return [row for row in rows if row.end_s > row.begin_s]


def _add(rows: list[Phase], stage: str, begin: float, seconds: float, doing: dict[str, str]) -> float:
    rows.append(Phase(stage, begin, begin + seconds, doing))
    return begin + seconds


def _overlapped(
    rows: list[Phase], now: float, stream: float, capture: float, train: float, later_epochs: float
) -> float:
    """Training begins with the first samples; its first epoch cannot end before the last one is there."""
    first = now + max(0.0, stream - capture)
    captured = now + stream
    trained = max(first + train, captured + later_epochs)
    rows.append(Phase("stream", now, first, {"serve": "captures"}))
    rows.append(Phase("stream", first, captured, {"serve": "captures", "train": "trains beside it"}))
    rows.append(Phase("train", captured, trained, {"train": "trains"}))
    return trained


def length_of(rows: Sequence[Phase]) -> float | None:
    """Seconds from the first to the last phase; None where the time is not known."""
    return rows[-1].end_s if rows else None


def periods(rows: Sequence[Phase], topology: Topology, idle: Sequence[str] = ()) -> tuple[Period, ...]:
    """The phases of every machine.

    Args:
        idle: Names of machines that have no work at all.
    """
    return tuple(
        Period(
            node=place.name,
            begin_s=round(row.begin_s, 1),
            end_s=round(row.end_s, 1),
            stage=row.stage,
            busy=bool(doing := _doing(place, row)) and place.name not in idle,
            doing=doing if place.name not in idle else "",
        )
        for place in topology.places
        for row in rows
    )


def _doing(place: Place, row: Phase) -> str:
    return ", ".join(dict.fromkeys(row.doing[role] for role in place.roles if role in row.doing))


def idle_node_hours(found: Sequence[Period]) -> float:
    """Node-hours without work."""
    return sum(one.end_s - one.begin_s for one in found if not one.busy) / 3600


def total_seconds(rows: Sequence[Phase], around: Figure) -> Figure:
    """The whole run: the phases and what the flow takes around them."""
    length = length_of(rows)
    if length is None:
        return Figure(unit="s")
    return Figure(
        value=length + (around.value or 0.0), unit="s", source="estimated", where="sum of the stages"
    )
