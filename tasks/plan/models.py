"""What a plan holds: the model behind `retrain-dspark plan --json`. Fields are added, never renamed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.plan.figures import Figure
from tasks.prompts.counts import PromptCounts


class PlanPart(BaseModel):
    """Base of every part: frozen, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedProcess(PlanPart):
    """One process that a run starts. Ports that a run chooses stand as 0."""

    name: str
    stage: str
    role: str
    node: str
    """Name of the planned node, as in `Plan.nodes`."""
    command: str
    """`argv` for reading: quoted as a shell needs it."""
    argv: tuple[str, ...]
    environment: dict[str, str]
    """What is added to the inherited environment; no secrets."""
    secret_environment: tuple[str, ...] = ()
    """Names of the variables that carry secrets; their values stand nowhere."""
    memory_bytes: int
    """Expected resident memory of the host, with its children."""
    gpu_bytes: int = 0
    """Expected memory of each GPU of its node; 0 without GPUs."""


class PlannedNode(PlanPart):
    """One machine and what it must hold at the same time."""

    name: str
    roles: tuple[str, ...]
    gpus: int | None
    """None: all that it has, and the profile does not say how many."""
    address: str
    """Address at which others reach it, as far as the profile names it."""
    host_bytes: int
    """Most memory of its processes that run together."""
    gpu_bytes: int
    """Most memory of one GPU."""
    gpu_usable_bytes: int | None = None
    """Memory of one GPU that may be used (`hardware.utilisation`); None where the profile names none."""


class PlannedDisk(PlanPart):
    """One thing that a run writes."""

    what: str
    bytes: int


class PlannedStage(PlanPart):
    """Work of one stage and the time that it should take."""

    name: str
    work: str
    minutes: float | None
    """None where nothing says how long it takes."""
    seconds: Figure = Figure()
    """The same with its origin."""


class Period(PlanPart):
    """One stretch of a node's time. Seconds count from the start of the run."""

    node: str
    begin_s: float
    end_s: float
    stage: str
    busy: bool
    doing: str


class Flow(PlanPart):
    """Rates of capture, store and trainer: who waits for whom."""

    capture_tokens_per_s: Figure = Figure()
    store_tokens_per_s: Figure = Figure()
    train_tokens_per_s: Figure = Figure()
    needed_gb_per_s: Figure = Figure()
    """Hidden states on their way to the trainer."""
    sentence: str = ""


class Cost(PlanPart):
    """What a run takes of machines and money; None where it is not known."""

    gpus: int | None = None
    node_hours: float | None = None
    idle_node_hours: float | None = None
    """Of them without work."""
    gpu_hours: float | None = None
    """All GPUs from the first stage to the last, idle or not."""
    price_serving_gpu_hour: float | None = None
    price_training_gpu_hour: float | None = None
    money: float | None = None
    currency: str = ""
    budget_gpu_hours: float | None = None
    budget_node_hours: float | None = None
    over_budget: bool = False


class Reuse(PlanPart):
    """Whether a resume of an existing run would use a stage's stored result."""

    stage: str
    reused: bool
    why: str


class Risk(PlanPart):
    """Something that is wrong with the plan, or may become so."""

    severity: Literal["refused", "warning", "note"]
    what: str
    where: str
    """Field of the profile, or file."""
    remedy: str


class Compared(PlanPart):
    """One set of nodes in a comparison."""

    serve_nodes: int
    train_nodes: int
    servers: int
    """Servers that its serving nodes make up."""
    seconds: Figure = Figure()
    idle_node_hours: float | None = None
    gpu_hours: float | None = None
    money: float | None = None
    flow: Flow = Flow()
    note: str = ""


class Plan(PlanPart):
    """What a run would do, without doing any of it."""

    version: Literal[1] = 1
    profile: str
    target: str
    target_from: Literal["config", "profile"] = "config"
    """Where the target's sizes come from: its `config.json`, or `hardware.target` of the profile."""
    samples: int
    prompts: PromptCounts
    trainable_tokens: int
    """Answer tokens of the train split, at most: what the target generates if every answer is longest."""
    token_bytes: int
    sample_bytes: int
    largest_sample_bytes: int
    log_bytes: int
    epoch_bytes: int = 0
    """Hidden states that the trainer reads in one epoch."""
    in_flight_samples: int
    """Typical samples that fit into the byte budget of the store."""
    in_flight_bytes: int = 0
    retention: Literal["all", "window"] = "all"
    draft_parameters: int
    trained_parameters: int
    weights_bytes: Figure = Figure()
    """Of the target."""
    steps: int
    """Optimizer steps, at most."""
    processes: tuple[PlannedProcess, ...]
    nodes: tuple[PlannedNode, ...] = ()
    disk: tuple[PlannedDisk, ...]
    ports: dict[str, str]
    stages: tuple[PlannedStage, ...]
    overlap: tuple[tuple[str, str], ...] = ()
    """What and when of training beside the capture; empty without `stream.overlap`."""
    peak_memory_bytes: int
    """Host memory of one machine that does everything."""
    expected_minutes: float | None
    """The profile's own words."""
    seconds: Figure = Figure()
    """The whole run."""
    flow: Flow = Flow()
    timeline: tuple[Period, ...] = ()
    cost: Cost = Cost()
    reuse: tuple[Reuse, ...] = ()
    reuse_of: str | None = None
    """Run that `reuse` is about."""
    risks: tuple[Risk, ...] = ()
    comparison: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def disk_bytes(self) -> int:
        return sum(item.bytes for item in self.disk)

    @property
    def refused(self) -> tuple[Risk, ...]:
        """Why this plan cannot work."""
        return tuple(risk for risk in self.risks if risk.severity == "refused")
