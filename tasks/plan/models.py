"""What a plan holds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tasks.prompts.counts import PromptCounts


class PlannedProcess(BaseModel):
    """One process that a run starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    stage: str
    role: str
    command: str
    memory_bytes: int
    """Expected resident memory, with its children."""


class PlannedDisk(BaseModel):
    """One thing that a run writes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    bytes: int


class PlannedStage(BaseModel):
    """Work of one stage and the minutes that it should take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    work: str
    minutes: float | None
    """None where nothing measured says how long it takes."""


class Plan(BaseModel):
    """What a run would do, without doing any of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str
    target: str
    samples: int
    prompts: PromptCounts
    trainable_tokens: int
    """Answer tokens of the train split, at most: what the target generates if every answer is longest."""
    token_bytes: int
    sample_bytes: int
    largest_sample_bytes: int
    log_bytes: int
    in_flight_samples: int
    """Typical samples that fit into the byte budget of the store."""
    draft_parameters: int
    trained_parameters: int
    steps: int
    """Optimizer steps, at most."""
    processes: tuple[PlannedProcess, ...]
    disk: tuple[PlannedDisk, ...]
    ports: dict[str, str]
    stages: tuple[PlannedStage, ...]
    overlap: tuple[tuple[str, str], ...] = ()
    """What and when of training beside the capture; empty without `stream.overlap`."""
    peak_memory_bytes: int
    expected_minutes: float | None
    notes: tuple[str, ...] = ()

    @property
    def disk_bytes(self) -> int:
        return sum(item.bytes for item in self.disk)
