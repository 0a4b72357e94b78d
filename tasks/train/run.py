"""The trainer's process: `python -m tasks.train.run <config.json>`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from tasks.errors import EXIT_RESUMABLE, RetrainError
from tasks.processes.child import ProgressFile, child_main
from tasks.stage import write_atomic
from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.export import ExportedFor, export_draft
from tasks.train.learner import Learner
from tasks.train.loop import Loop
from tasks.train.model import make_draft
from tasks.train.models import DraftCheckpoint
from tasks.train.ranks import Ranks, join, local_rank
from tasks.train.round_trip import digest_of
from tasks.train.settings import TrainSettings
from tasks.train.size import serving_parameters, trained_parameters
from tasks.train.sources import STATES, complete_data, growing_data
from tasks.train.stopping import Report, StopFlag, Stopped, choose_device
from tasks.train.team import Team, follow
from tasks.train.vocabulary import DraftVocabulary

RESULT = "result.json"


def train_draft(settings: TrainSettings, report: Report, stop: StopFlag) -> DraftCheckpoint | None:
    """Train, export and describe a draft; the whole stage without processes.

    Returns:
        The draft; None on a rank that follows another one.

    Raises:
        StageInputError: The captures do not fit or hold nothing to learn from.
        Stopped: A signal came; the checkpoint allows to continue.
    """
    train = settings.train
    device = choose_device(train.device, local_rank())
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    ranks = join(train.scale, device)
    try:
        if not ranks.leads:
            _follow(settings, ranks, device, stop)
            return None
        return _lead(settings, ranks, device, report, stop)
    finally:
        ranks.leave()


def _lead(
    settings: TrainSettings, ranks: Ranks, device: torch.device, report: Report, stop: StopFlag
) -> DraftCheckpoint:
    """The part of rank 0. What it cannot go on from, it tells the others, so that they end too."""
    begun = False
    try:
        data = (growing_data if settings.overlap else complete_data)(settings, device, report, stop)
        built = make_draft(settings, data.vocabulary)  # what it refuses, no other rank need build
        print(f"draft: {built.parameters}", flush=True)
        ranks.tell(("begin", data.vocabulary))
        begun = True
        learner = Learner(built.model, settings.at_rates(), ranks, device)
        loop = Loop(
            team=Team(learner, _checkpoints(settings, ranks), settings.path, stop),
            settings=settings.at_rates(),
            batches=data.batches,
            held_out=data.held_out,
            folder=settings.path,
            identity=settings.identity(),
            report=report,
            stop=stop,
        )
        with closing(data.batches):
            loop.run()
    except (RetrainError, Stopped):
        ranks.tell(("end",) if begun else ("begin", None))
        raise
    ranks.tell(("end",))
    said = (*built.notes, data.vocabulary.note, data.unchecked, loop.early_end())
    notes = [note for note in said if note]
    if data.held_out.measure() is None:
        notes.append("no sample is held out: the last weights are exported, not the best")
    return _finish(settings, loop, data.vocabulary, notes)


def _follow(settings: TrainSettings, ranks: Ranks, device: torch.device, stop: StopFlag) -> None:
    _, vocabulary = ranks.hear()
    if vocabulary is not None:
        model = make_draft(
            settings, vocabulary
        ).model  # all ranks read the earlier draft, and check its digest
        learner = Learner(model, settings.at_rates(), ranks, device)
        follow(learner, _checkpoints(settings, ranks), settings.path, stop)


def _checkpoints(settings: TrainSettings, ranks: Ranks) -> Checkpoints:
    return Checkpoints(
        settings.path, settings.train.keep_checkpoints, settings.deciding(), ranks.saving, ranks.leads
    )


def _finish(
    settings: TrainSettings, loop: Loop, vocabulary: DraftVocabulary, notes: list[str]
) -> DraftCheckpoint:
    best = loop.team.checkpoints.best()
    assert best is not None, "the loop keeps weights before its first step"
    position, weights = best
    shape = adapter.draft_shape(loop.team.model)
    files = export_draft(
        loop.team.model.cpu(),
        weights,
        settings.path / "draft",
        ExportedFor(settings.target_name, settings.target_revision, Path(settings.target_dir)),
        STATES[settings.train.autocast],
    )
    done = loop.position
    if done.skipped_steps:
        notes.append(f"{done.skipped_steps} steps were skipped because their loss was not finite")
    begun_as = "untrained" if settings.initial is None else "initial"
    if note := without_gain(position, done.step, begun_as):
        notes.append(note)
    metrics = dict(position.best_metrics)
    metrics |= {"train_seconds": done.train_seconds, "train_tokens": float(done.tokens)}
    metrics["skipped_steps"] = float(done.skipped_steps)
    return DraftCheckpoint(
        path="draft",
        files=files,
        step=position.step,
        steps=done.step,
        epochs=done.epoch,
        parameters=serving_parameters(shape),
        trained_parameters=trained_parameters(shape),
        draft_vocab_size=vocabulary.size,
        block_size=settings.train.draft.block_size,
        held_out_eal=position.best_eal,
        metrics=metrics,
        config=settings.public(),
        notes=tuple(notes),
        round_trip=digest_of(settings.path / "draft"),
    )


def without_gain(best: Position, steps: int, begun_as: str = "untrained") -> str:
    """What to say where training did not raise held-out acceptance; empty where it did.

    Args:
        begun_as: What the draft was before the first step.
    """
    if (
        steps == 0
        or best.best_eal is None
        or best.untrained_eal is None
        or best.best_eal > best.untrained_eal
    ):
        return ""
    exported = f"the {begun_as} draft is exported" if best.step == 0 else f"step {best.step} is exported"
    return f"training never beat the {begun_as} draft's acceptance ({best.untrained_eal:.3f}); {exported}"


def work(config: dict[str, Any]) -> None:
    """Entry of the child process."""
    settings = TrainSettings.model_validate(config)
    progress = ProgressFile(settings.progress_file)
    unit = "steps" if settings.train.packs_per_step == 1 else "packs"
    unit = "samples" if settings.overlap else unit

    def report(done: float, total: float, metrics: Mapping[str, float], note: str) -> None:
        progress.write(done, total, unit, dict(metrics), note)

    stop = StopFlag()
    stop.install()
    leads = os.environ.get("RANK", "0") == "0"
    if leads:
        report(0, 1, {}, "reading captures and building the draft")
    try:
        result = train_draft(settings, report, stop)
    except Stopped:
        sys.exit(EXIT_RESUMABLE)
    if result is not None:
        write_atomic(settings.path / RESULT, result.model_dump_json(indent=2))


if __name__ == "__main__":
    child_main(work)
