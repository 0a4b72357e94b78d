"""Plan: sizes, processes, disk, time, cost and risks of a run, from profile and config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiles.address import join_address
from profiles.schema import DOMAINS, Profile
from profiles.streaming import in_flight_bytes
from tasks.plan.compare import compared
from tasks.plan.cost import planned_cost
from tasks.plan.figures import Figure, estimated
from tasks.plan.models import Cost, Period, Plan, PlannedDisk, PlannedNode, PlannedProcess, PlannedStage
from tasks.plan.numbers import shape_of_draft
from tasks.plan.overlap import planned_log, planned_overlap
from tasks.plan.parameters import checkpoint_bytes, export_bytes, training_bytes
from tasks.plan.predict import Load, Prediction, predict
from tasks.plan.processes import Sizes, gpu_peak, memory_peak, planned_processes
from tasks.plan.rates import Rates
from tasks.plan.render import plan_text
from tasks.plan.reuse import last_run, planned_reuse
from tasks.plan.risks import Planned, found_risks, refuse
from tasks.plan.sizes import SampleSizes, sample_sizes
from tasks.plan.target import KnownTarget, known_target, weights_of
from tasks.plan.timeline import periods, phases, total_seconds
from tasks.plan.topology import Topology, gpu_bytes, nodes_of_server, planned_topology
from tasks.plan.work import Work, planned_steps, planned_work, sized, skipped_notes
from tasks.run_folder import RunFolder, run_root
from tasks.train.size import DraftParameters, DraftShape, draft_parameters

REPORT_BYTES = 40 * 10**6
"""Report, logs, MLflow database and metrics of a run of the laptop's size."""
SHARES = {"validate": 0.01, "serve": 0.03, "stream": 0.26, "train": 0.29, "evaluate": 0.4, "publish": 0.01}
"""Share of a run's time by stage, from one run of the laptop profile on two busy cores; a rough guide."""


def build_plan(profile: Profile) -> Plan:
    """What a run of this profile would do. Nothing is started and nothing is converted.

    Raises:
        UsageError: Prompts or target folder are unusable, or the plan cannot work.
    """
    plan = examine_plan(profile)
    refuse(plan.risks)
    return plan


def examine_plan(
    profile: Profile,
    *,
    work: Work | None = None,
    rates: Rates | None = None,
    run: RunFolder | None = None,
    sets: tuple[tuple[int, int], ...] = (),
) -> Plan:
    """The plan with everything that is wrong with it; `Plan.refused` says why it cannot work.

    Args:
        work: How much there is to do; None reads the prompts.
        rates: What the parts of a run take, for time and cost.
        run: Run whose stages a resume would reuse; None takes the newest of the profile.
        sets: Serving and training nodes to compare.

    Raises:
        UsageError: Prompts or target folder are unusable.
    """
    known = _known(profile, work)
    time = _time(profile, known, rates)
    log = planned_log(profile, known.work.samples, known.sizes.typical_bytes)
    risks = found_risks(
        Planned(
            profile, known.target, known.work, known.sizes, known.weights, known.nodes, log.bytes, known.peak,
            known.trainer_bytes, time.cost, time.seconds, rates.samples if rates and rates.runs else None,
        )
    )  # fmt: skip
    run = run or last_run(run_root(), profile.name)
    steps = time.found.steps or planned_steps(profile, known.work.trained * known.sizes.typical_tokens)
    return Plan(
        profile=profile.name,
        **_counted(profile, known),
        steps=steps,
        processes=known.processes,
        nodes=known.nodes,
        disk=(log, *planned_disk(profile, known.shape, known.counts)),
        ports=planned_ports(profile),
        stages=planned_stages(profile, known.work, steps, time.load.arms, time.found),
        overlap=planned_overlap(profile, known.work.samples, known.processes),
        peak_memory_bytes=known.peak,
        expected_minutes=profile.expected_minutes,
        seconds=time.seconds,
        flow=time.found.flow,
        timeline=time.timeline,
        cost=time.cost,
        reuse=planned_reuse(profile, run, known.work.digest) if run else (),
        reuse_of=run.run_id if run else None,
        risks=risks,
        comparison=compared(profile, time.load, rates, sets, known.server_nodes),
        notes=(
            *size_notes(profile, known.work, time.seconds), *time.found.notes,
            *skipped_notes(known.work.skipped),
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class _Known:
    """Sizes and places: what a plan knows without any rate."""

    target: KnownTarget
    topology: Topology
    work: Work
    sizes: SampleSizes
    weights: Figure
    shape: DraftShape
    counts: DraftParameters
    trainer_bytes: int
    processes: tuple[PlannedProcess, ...]
    nodes: tuple[PlannedNode, ...]
    peak: int
    server_nodes: int


@dataclass(frozen=True)
class _Time:
    """What the rates make of it."""

    load: Load
    found: Prediction
    timeline: tuple[Period, ...]
    seconds: Figure
    cost: Cost


def _known(profile: Profile, work: Work | None) -> _Known:
    target, topology = known_target(profile), planned_topology(profile)
    work = planned_work(profile) if work is None else work
    sizes = sized(sample_sizes(profile, target.config, work.prompt_tokens), work)
    weights, shape = weights_of(profile, target), shape_of_draft(profile, target.config)
    counts, train = draft_parameters(shape), profile.train
    trainer = training_bytes(counts, train.batch_tokens, train.anchors, train.draft.block_size, shape)
    processes = planned_processes(profile, target, topology, Sizes(weights.value, trainer, 2 * counts.total))
    return _Known(
        target, topology, work, sizes, weights, shape, counts, trainer, processes,
        nodes=planned_nodes(profile, topology, processes),
        peak=memory_peak(processes, overlaps=profile.stream.overlaps),
        server_nodes=nodes_of_server(profile, weights.value),
    )  # fmt: skip


def _time(profile: Profile, known: _Known, rates: Rates | None) -> _Time:
    load = planned_load(profile, known.work, known.sizes, known.processes, known.server_nodes)
    found = predict(profile, load, rates)
    rows = phases(profile, found)
    timeline = periods(rows, known.topology)
    seconds = total_seconds(rows, found.around)
    return _Time(
        load, found, timeline, seconds, planned_cost(profile, known.topology, seconds.value, timeline)
    )


def _counted(profile: Profile, known: _Known) -> dict[str, Any]:
    """Counts and bytes of a plan."""
    work, sizes = known.work, known.sizes
    in_flight = in_flight_bytes(profile.stream, profile.store)
    return {
        "target": known.target.name,
        "target_from": known.target.origin,
        "samples": work.samples,
        "prompts": work.prompts,
        "trainable_tokens": work.trained * profile.stream.max_new_tokens,
        "token_bytes": sizes.token_bytes,
        "sample_bytes": sizes.typical_bytes,
        "largest_sample_bytes": sizes.largest_bytes,
        "log_bytes": work.samples * sizes.typical_bytes,
        "epoch_bytes": work.trained * sizes.typical_bytes,
        "in_flight_samples": in_flight // sizes.typical_bytes,
        "in_flight_bytes": in_flight,
        "retention": profile.stream.retention,
        "draft_parameters": known.counts.total,
        "trained_parameters": known.counts.trained,
        "weights_bytes": known.weights,
    }


def plan_lines(profile: Profile) -> list[str]:
    """The plan as lines of text."""
    return plan_text(build_plan(profile)).splitlines()


def planned_load(
    profile: Profile, work: Work, sizes: SampleSizes, processes: tuple[PlannedProcess, ...], server_nodes: int
) -> Load:
    """What the rates are applied to."""
    arms = {one.command for one in processes if one.name.startswith("arm-") and "--headless" not in one.argv}
    return Load(
        samples=work.samples,
        trained=work.trained,
        held_out=work.prompts.held_out,
        answers=work.evaluate_prompts,
        sample_tokens=sizes.typical_tokens,
        token_bytes=sizes.token_bytes,
        arms=len(arms),
        servers=max(1, profile.hardware.roles.serve.nodes // server_nodes),
        train_ranks=profile.train.scale.world,
    )


def planned_nodes(
    profile: Profile, topology: Topology, processes: tuple[PlannedProcess, ...]
) -> tuple[PlannedNode, ...]:
    """Every machine with the most memory that its processes need at once."""
    overlaps, hardware = profile.stream.overlaps, profile.hardware
    nodes = []
    for place in topology.places:
        own = [one for one in processes if one.node == place.name]
        each = gpu_bytes(hardware.roles.serve if "serve" in place.roles else hardware.roles.train)
        nodes.append(
            PlannedNode(
                name=place.name,
                roles=place.roles,
                gpus=place.gpus,
                address=place.address,
                host_bytes=memory_peak(own, overlaps=overlaps),
                gpu_bytes=gpu_peak(own, overlaps=overlaps),
                gpu_usable_bytes=int(each * hardware.utilisation) if each and place.gpus != 0 else None,
            )
        )
    return tuple(nodes)


def planned_disk(profile: Profile, shape: DraftShape, counts: DraftParameters) -> tuple[PlannedDisk, ...]:
    """What the run leaves on disk besides its hidden-state log: an estimate."""
    export = export_bytes(counts, shape.draft_vocab_size < shape.vocab_size)
    checkpoints = profile.train.keep_checkpoints + 1
    return (
        PlannedDisk(what=f"{checkpoints} training checkpoints", bytes=checkpoints * checkpoint_bytes(counts)),
        PlannedDisk(what="exported draft", bytes=export),
        PlannedDisk(what="published draft", bytes=export),
        PlannedDisk(what="logs, report, tracking", bytes=REPORT_BYTES),
    )


def planned_ports(profile: Profile) -> dict[str, str]:
    """Address of every server; each binds only what the profile names."""

    def at(host: str, port: int) -> str:
        return join_address(host, port) if port else f"{host}, a free port"

    target = (
        profile.serve.url or ""
        if profile.serve.kind == "attach"
        else at(profile.serve.host, profile.serve.port)
    )
    return {
        "target": target,
        "store master": profile.store.master or at(profile.store.host, profile.store.rpc_port),
        "store master, admin": at(profile.store.host, 0),
        "arms": at(profile.serve.host, 0),
    }


def planned_stages(
    profile: Profile, work: Work, steps: int, arms: int, found: Prediction
) -> tuple[PlannedStage, ...]:
    """What each stage does and how long: by the rates, else the profile's minutes split by `SHARES`."""
    live = profile.evaluate.live
    asked = len(DOMAINS) * live.per_domain
    texts = {
        "validate": "checks, store round trip",
        "serve": "store master, target, one real generation",
        "stream": f"{work.samples} answers of up to {profile.stream.max_new_tokens} tokens, "
        f"{profile.stream.concurrency} at once",
        "train": f"up to {steps} steps in {profile.train.epochs} epochs",
        "evaluate": f"replay of {work.evaluate_prompts} answers; {asked} prompts on each of {arms} arms",
        "publish": "decision, card, verified folder",
    }
    stages = []
    for name, text in texts.items():
        seconds = _seconds_of(name, profile.expected_minutes, found.stages[name])
        minutes = None if seconds.value is None else round(seconds.value / 60, 1)
        stages.append(PlannedStage(name=name, work=text, minutes=minutes, seconds=seconds))
    return tuple(stages)


def _seconds_of(name: str, expected_minutes: float | None, found: Figure) -> Figure:
    if found.value is not None or expected_minutes is None:
        return found
    rule = "expected_minutes of the profile, split as in one run on a laptop"
    return estimated(60 * expected_minutes * SHARES[name], "s", rule)


def size_notes(profile: Profile, work: Work, seconds: Figure) -> list[str]:
    """What the numbers stand on."""
    if work.assumed_tokens is None:
        tokens = f"{work.prompt_tokens} prompt tokens (estimated from the characters)"
        notes = [f"a typical sample is taken as {tokens} and the longest answer"]
    else:
        notes = [f"a sample is taken as {work.assumed_tokens:,} tokens, as asked for; no prompts were read"]
    notes.append("memory, disk and minutes are estimates")
    if profile.expected_minutes is not None and seconds.value is None:
        notes.append("the minutes in all are the profile's; by stage they are split as in a run on a laptop")
    return notes
