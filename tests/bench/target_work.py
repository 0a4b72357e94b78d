"""Rows `target_work` and `wall_time`: what three epochs cost the target and the clock, ours and upstream's.

Ours: one pass that answers and captures, then training from the log. Upstream's: one pass that answers, then
every epoch asks the target for the hidden states of the same tokens again, for validation too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rows import Row, compared, machine
from servers import TargetTokens, Workplace, extracting, target_tokens, workplace
from upstream import Steps, upstream_sequence
from upstream_shims import SHIMS

from tasks.processes.job import run_job
from tasks.prompts.load import load_prompts
from tasks.report.progress import SilentProgress
from tasks.stream.models import CaptureManifest
from tasks.stream.settings import CaptureFiles
from tasks.train.core import read_result, settings_for, trainer_spec
from tasks.train.models import DraftCheckpoint

WORK_GOAL = 1.05
WALL_GOAL = 0.6


@dataclass(frozen=True)
class WorkSize:
    """How much is captured and trained. The more prompts, the less the few held-out ones weigh."""

    per_domain: int = 28
    """Training prompts of each of the nine domains, four of them in all held out."""
    max_new_tokens: int = 64
    epochs: int = 3


@dataclass(frozen=True)
class OurSteps:
    """What our sequence cost."""

    target: TargetTokens
    """Since the server's start: readiness, canaries, held-out and evaluation prompts included."""
    step_tokens: int
    samples: int
    held_out: int
    vocab: int
    seconds: dict[str, float]


def rows(folder: Path, size: WorkSize | None = None) -> list[Row]:
    """Both rows, from one run of each sequence."""
    size = size or WorkSize()
    with workplace(folder, "bench-work", _overrides(folder, size)) as place:
        ours = our_sequence(place)
        prompts = [prompt for prompt in load_prompts(place.profile).prompts if prompt.split != "evaluate"]
        theirs = upstream_sequence(place, prompts, ours.held_out, ours.vocab)
    return [*work_rows(ours, theirs, size), wall_row(ours, theirs, size)]


def _overrides(folder: Path, size: WorkSize) -> dict[str, object]:
    """The laptop profile with as little beside the training prompts as it allows: four held out, one more."""
    one = folder / "qa.jsonl"
    one.write_text('{"id": "one", "domain": "qa", "prompt": "Say hello."}\n', encoding="utf-8")
    return {
        "prompts": {
            "train_per_domain": size.per_domain,
            "held_out": 1e-6,
            "evaluate": [str(one)],
            "evaluate_per_domain": None,
        },
        "stream": {"max_new_tokens": size.max_new_tokens},
        "evaluate": {"replay_max_new_tokens": 4},
        "train": {"epochs": size.epochs, "prompt_epochs": 0},
    }


def our_sequence(place: Workplace) -> OurSteps:
    """Capture, then train and export; the target ends before training, as in the pipeline."""
    with extracting(place) as target:
        started = time.monotonic()
        captures = target.capture(place.run.path / "stream")
        captured_s = time.monotonic() - started
        counted = target_tokens(target.server)
    started = time.monotonic()
    draft = _trained(place, captures)
    seconds = {"capture": captured_s, "train": time.monotonic() - started}
    steps = int(draft.metrics["train_tokens"])
    held_out = captures.splits.get("held_out", 0)
    return OurSteps(counted, steps, captures.samples, held_out, draft.draft_vocab_size, seconds)


def _trained(place: Workplace, captures: CaptureManifest) -> DraftCheckpoint:
    """Train and export a draft from a finished log, as the train stage does."""
    folder = place.run.path / "train"
    settings = settings_for(
        place.profile,
        place.run,
        folder,
        CaptureFiles(place.run.path / "stream"),
        place.target,
        captures.digest,
        captures.hidden_size,
        captures.dtype,
    )
    run_job(
        place.launcher,
        trainer_spec(settings),
        place.run,
        progress=SilentProgress(),
        progress_file=Path(settings.progress_file),
        stall_timeout_s=place.profile.train.stall_timeout_s,
    )
    return read_result(folder, captures.digest)


def work_rows(ours: OurSteps, theirs: Steps, size: WorkSize) -> list[Row]:
    """Target tokens over tokens that reached an optimizer step (each counted once), ours and upstream's."""
    conditions = (
        f"at most {WORK_GOAL}; value: prompt + generated tokens counted by vLLM; baseline: distinct tokens "
        f"that reached an optimizer step; {size.epochs} epochs, {ours.samples} samples of which "
        f"{ours.held_out} are held out; {machine()}"
    )
    beside = (
        f"no goal, for comparison: {theirs.answering.total:,} tokens in regenerate-responses, "
        f"{theirs.extracting.total:,} in {size.epochs} epochs of training with validation"
    )
    unit = "target tokens / trained tokens"
    return [
        compared(
            "target_work", ours.target.total, ours.step_tokens / size.epochs, WORK_GOAL, unit, conditions
        ),
        compared(
            "target_work of upstream",
            theirs.target_tokens,
            theirs.step_tokens / size.epochs,
            None,
            unit,
            beside,
        ),
    ]


def wall_row(ours: OurSteps, theirs: Steps, size: WorkSize) -> Row:
    """Seconds from capture to checkpoint of `epochs` epochs, ours over upstream's."""
    parts = ", ".join(
        f"{name} {value:.0f} s" for name, value in [*ours.seconds.items(), *theirs.seconds.items()]
    )
    conditions = (
        f"at most {WALL_GOAL}; {size.epochs} epochs, same prompts, draft, batches and optimizer; "
        f"servers already up on both sides; {parts}; upstream 0.9.0 with its CPU shims: {SHIMS}, a connector "
        f"without streams, --num-workers 0, sdpa, eager loss; {machine()}"
    )
    value, baseline = sum(ours.seconds.values()), sum(theirs.seconds.values())
    return compared("wall_time", value, baseline, WALL_GOAL, "s", conditions)
