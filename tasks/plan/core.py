"""Plan: sizes, processes, disk and minutes of a run, from the profile and the target's config alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.address import join_address
from profiles.schema import DOMAINS, Profile
from profiles.streaming import in_flight_bytes
from tasks.errors import RetrainError
from tasks.plan.log_space import refuse_planned_log
from tasks.plan.models import Plan, PlannedDisk, PlannedStage
from tasks.plan.numbers import shape_of_draft
from tasks.plan.overlap import planned_log, planned_overlap
from tasks.plan.parameters import checkpoint_bytes, export_bytes, training_bytes
from tasks.plan.processes import memory_peak, planned_processes
from tasks.plan.render import plan_text
from tasks.plan.segment_space import refuse_samples_beyond_a_segment
from tasks.plan.sizes import SampleSizes, sample_sizes, typical_prompt_tokens
from tasks.prompts.bad_row import Skipped
from tasks.prompts.counts import PromptCounts
from tasks.prompts.load import load_prompts
from tasks.serve.target_config import TargetConfig, read_target_config
from tasks.serve.target_folder import converted_folder, resolve_target
from tasks.train.size import DraftParameters, DraftShape, draft_parameters

REPORT_BYTES = 40 * 10**6
"""Report, logs, MLflow database and metrics of a run of the laptop's size."""


SHOWN_ROWS = 5


@dataclass(frozen=True)
class Work:
    """Counts that the rest of a plan follows from."""

    train_prompts: int
    """Held-out ones included."""
    evaluate_prompts: int
    prompts: PromptCounts
    skipped: tuple[Skipped, ...] = ()

    @property
    def samples(self) -> int:
        return self.train_prompts + self.evaluate_prompts

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a typical prompt, estimated from the mean of the characters."""
        return typical_prompt_tokens(self.prompts)


def build_plan(profile: Profile) -> Plan:
    """What a run of this profile would do. Nothing is started and nothing is converted.

    Raises:
        UsageError: Prompts or target folder are unusable, or samples fit neither disk nor store.
    """
    notes: list[str] = []
    target = planned_target(profile, notes)
    work = planned_work(profile)
    sizes = sample_sizes(profile, target, work.prompt_tokens)
    refuse_planned_log(profile, work.samples, work.evaluate_prompts, sizes)
    refuse_samples_beyond_a_segment(profile, target.hidden_size)
    shape = shape_of_draft(profile, target)
    counts = draft_parameters(shape)
    trainable = work.train_prompts - work.prompts.held_out
    steps = planned_steps(profile, trainable * sizes.typical_tokens)
    train_bytes = training_bytes(
        counts, profile.train.batch_tokens, profile.train.anchors, profile.train.draft.block_size, shape
    )
    processes = planned_processes(profile, target, train_bytes)
    return Plan(
        profile=profile.name,
        target=target.architecture,
        samples=work.samples,
        prompts=work.prompts,
        trainable_tokens=trainable * profile.stream.max_new_tokens,
        token_bytes=sizes.token_bytes,
        sample_bytes=sizes.typical_bytes,
        largest_sample_bytes=sizes.largest_bytes,
        log_bytes=work.samples * sizes.typical_bytes,
        in_flight_samples=in_flight_bytes(profile.stream, profile.store) // sizes.typical_bytes,
        draft_parameters=counts.total,
        trained_parameters=counts.trained,
        steps=steps,
        processes=processes,
        disk=planned_disk(profile, work, sizes, shape, counts),
        ports=planned_ports(profile),
        stages=planned_stages(profile, work, steps, sum(one.name.startswith("arm-") for one in processes)),
        overlap=planned_overlap(profile, work.samples, processes),
        peak_memory_bytes=memory_peak(processes, overlaps=profile.stream.overlaps),
        expected_minutes=profile.expected_minutes,
        notes=tuple(notes + size_notes(profile, work, sizes) + skipped_notes(work.skipped)),
    )


def plan_lines(profile: Profile) -> list[str]:
    """The plan as lines of text."""
    return plan_text(build_plan(profile)).splitlines()


def planned_target(profile: Profile, notes: list[str]) -> TargetConfig:
    """The target's sizes; a target that is still inside its wheel is not converted for a plan."""
    if profile.target.source.kind == "gguf_wheel":
        folder = converted_folder(profile)
        if folder.is_dir():
            return read_target_config(folder)
        raise RetrainError(
            "the target has not been converted yet, so its sizes are not known",
            where=str(folder),
            hint="run `make setup`, or start a run: the conversion takes about 20 s once",
        )
    return read_target_config(resolve_target(profile))


def planned_work(profile: Profile) -> Work:
    prompts = load_prompts(profile)
    evaluate = len(prompts.split("evaluate"))
    return Work(
        train_prompts=len(prompts.prompts) - evaluate,
        evaluate_prompts=evaluate,
        prompts=prompts.counts,
        skipped=prompts.skipped,
    )


def planned_steps(profile: Profile, tokens: int) -> int:
    """Optimizer steps of all epochs, or the limit that the profile sets."""
    steps = profile.train.epochs * math.ceil(tokens / profile.train.batch_tokens)
    limit = profile.train.max_steps
    return steps if limit is None else min(steps, limit)


def planned_disk(
    profile: Profile, work: Work, sizes: SampleSizes, shape: DraftShape, counts: DraftParameters
) -> tuple[PlannedDisk, ...]:
    """What the run leaves on disk: an estimate, with every sample as long as a typical one."""
    export = export_bytes(counts, shape.draft_vocab_size < shape.vocab_size)
    checkpoints = profile.train.keep_checkpoints + 1
    return (
        planned_log(profile, work.samples, sizes.typical_bytes),
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


def planned_stages(profile: Profile, work: Work, steps: int, arms: int) -> tuple[PlannedStage, ...]:
    """What each stage does. Minutes are the profile's own, split by `SHARES`."""
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
    minutes = profile.expected_minutes
    return tuple(
        PlannedStage(
            name=name, work=text, minutes=None if minutes is None else round(minutes * SHARES[name], 1)
        )
        for name, text in texts.items()
    )


SHARES = {"validate": 0.01, "serve": 0.03, "stream": 0.26, "train": 0.29, "evaluate": 0.4, "publish": 0.01}
"""Share of a run's time by stage, from one run of the laptop profile on two busy cores; a rough guide."""


def size_notes(profile: Profile, work: Work, sizes: SampleSizes) -> list[str]:
    """What a reader should look at before starting."""
    tokens = f"{work.prompt_tokens} prompt tokens (estimated from the characters)"
    notes = [
        f"a typical sample is taken as {tokens} and the longest answer",
        "memory, disk and minutes are estimates",
    ]
    if profile.expected_minutes is not None:
        notes.append("the minutes in all are the profile's; by stage they are split as in a run on a laptop")
    in_flight = in_flight_bytes(profile.stream, profile.store)
    if sizes.largest_bytes > in_flight:
        notes.append(
            f"the largest sample ({sizes.largest_bytes / 1e6:,.0f} MB) exceeds stream.in_flight_bytes "
            f"({in_flight / 1e6:,.0f} MB): raise it, or lower target.max_model_len"
        )
    needed = planned_log(profile, work.samples, sizes.typical_bytes).bytes / 2**30
    if needed > profile.hardware.min_disk_gib:
        notes.append(
            f"the hidden-state log may need {needed:.1f} GiB, hardware.min_disk_gib asks for "
            f"{profile.hardware.min_disk_gib:g}"
        )
    return notes


def skipped_notes(skipped: Sequence[Skipped]) -> list[str]:
    """The first rows that cannot be used: file, line and reason, none of their text."""
    notes = [f"skipped {row}" for row in skipped[:SHOWN_ROWS]]
    more = len(skipped) - len(notes)
    return [*notes, f"and {more} more rows"] if more else notes
