"""The trainer's process: `python -m tasks.train.run <config.json>`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tasks.errors import EXIT_RESUMABLE
from tasks.processes.child import ProgressFile, child_main
from tasks.stage import write_atomic
from tasks.train import adapter
from tasks.train.checkpoint import Position
from tasks.train.export import ExportedFor, export_draft
from tasks.train.loop import Loop, Report, StopFlag, Stopped, choose_device
from tasks.train.model import make_draft
from tasks.train.models import DraftCheckpoint
from tasks.train.settings import TrainSettings
from tasks.train.size import serving_parameters, trained_parameters
from tasks.train.sources import STATES, complete_data, growing_data
from tasks.train.vocabulary import DraftVocabulary

RESULT = "result.json"


def train_draft(settings: TrainSettings, report: Report, stop: StopFlag) -> DraftCheckpoint:
    """Train, export and describe a draft; the whole stage without processes.

    Raises:
        StageInputError: The captures do not fit or hold nothing to learn from.
        Stopped: A signal came; the checkpoint allows to continue.
    """
    train = settings.train
    device = choose_device(train.device)
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    data = (growing_data if settings.overlap else complete_data)(settings, device, report, stop)
    built = make_draft(settings, data.vocabulary)
    print(f"draft: {built.parameters}", flush=True)
    notes = [note for note in (*built.notes, data.vocabulary.note, data.unchecked) if note]
    loop = Loop(
        model=built.model,
        settings=train,
        batches=data.batches,
        held_out=data.held_out,
        folder=settings.path,
        identity=settings.identity(),
        report=report,
        stop=stop,
        device=device,
    )
    loop.run()
    if data.held_out.measure() is None:
        notes.append("no sample is held out: the last weights are exported, not the best")
    return _finish(settings, loop, data.vocabulary, notes)


def _finish(
    settings: TrainSettings, loop: Loop, vocabulary: DraftVocabulary, notes: list[str]
) -> DraftCheckpoint:
    best = loop.checkpoints.best()
    assert best is not None, "the loop keeps weights before its first step"
    position, weights = best
    shape = adapter.draft_shape(loop.model)
    files = export_draft(
        loop.model.cpu(),
        weights,
        settings.path / "draft",
        ExportedFor(settings.target_name, settings.target_revision, Path(settings.target_dir)),
        STATES[settings.train.autocast],
    )
    done = loop.position
    if done.skipped_steps:
        notes.append(f"{done.skipped_steps} steps were skipped because their loss was not finite")
    if note := without_gain(position, done.step):
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
    )


def without_gain(best: Position, steps: int) -> str:
    """What to say where training did not raise held-out acceptance; empty where it did."""
    if (
        steps == 0
        or best.best_eal is None
        or best.untrained_eal is None
        or best.best_eal > best.untrained_eal
    ):
        return ""
    exported = "the untrained draft is exported" if best.step == 0 else f"step {best.step} is exported"
    return f"training never beat the untrained draft's acceptance ({best.untrained_eal:.3f}); {exported}"


def work(config: dict[str, Any]) -> None:
    """Entry of the child process."""
    settings = TrainSettings.model_validate(config)
    progress = ProgressFile(settings.progress_file)

    def report(done: float, total: float, metrics: Mapping[str, float], note: str) -> None:
        progress.write(done, total, "samples" if settings.overlap else "steps", dict(metrics), note)

    stop = StopFlag()
    stop.install()
    report(0, 1, {}, "reading captures and building the draft")
    try:
        result = train_draft(settings, report, stop)
    except Stopped:
        sys.exit(EXIT_RESUMABLE)
    write_atomic(settings.path / RESULT, result.model_dump_json(indent=2))


if __name__ == "__main__":
    child_main(work)
