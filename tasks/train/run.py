"""The trainer's process: `python -m tasks.train.run <config.json>`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tasks.errors import EXIT_RESUMABLE, StageInputError
from tasks.processes.child import ProgressFile, child_main
from tasks.stage import write_atomic
from tasks.stream.log import HiddenStateLog, IndexEntry
from tasks.train import adapter
from tasks.train.checkpoint import Position
from tasks.train.data import CaptureReader, TrainBatches
from tasks.train.explained import check_explained
from tasks.train.export import export_draft
from tasks.train.heldout import HeldOut
from tasks.train.loop import Loop, Report, StopFlag, Stopped, choose_device
from tasks.train.models import DraftCheckpoint
from tasks.train.settings import TrainSettings
from tasks.train.size import serving_parameters, trained_parameters
from tasks.train.vocabulary import DraftVocabulary, answer_counts, choose_vocabulary

RESULT = "result.json"
_HELD_OUT_ANCHORS = 1536
_STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
    log = HiddenStateLog(Path(settings.log_dir))
    entries = _trainable(log)
    unchecked = check_explained(settings, log, entries)
    vocabulary, model, notes = _draft(settings, entries)
    notes += [unchecked] if unchecked else []
    reader = CaptureReader(
        log,
        len(settings.aux_layer_ids) + 1,
        settings.hidden_size,
        _STATES[train.autocast],
        settings.cache_bytes,
    )
    held = [entry for entry in log.entries("held_out") if entry.trainable_tokens > 0]
    if not held:
        notes.append("no sample is held out: the last weights are exported, not the best")
    loop = Loop(
        model=model,
        settings=train,
        batches=TrainBatches(
            reader, entries, train.batch_tokens, train.seed, train.epochs, train.prompt_epochs
        ),
        held_out=HeldOut(reader, held, train.batch_tokens, _HELD_OUT_ANCHORS, device) if held else None,
        folder=settings.path,
        identity=settings.identity(),
        report=report,
        stop=stop,
        device=device,
    )
    loop.run()
    return _finish(settings, loop, vocabulary, notes)


def _trainable(log: HiddenStateLog) -> list[IndexEntry]:
    entries = [entry for entry in log.entries("train") if entry.trainable_tokens > 0]
    if not entries:
        raise StageInputError(
            f"the captures hold no answer token to learn from ({len(log.entries('train'))} train samples)",
            where=str(log.folder),
            hint="check that the target answers, raise stream.max_new_tokens or add prompts",
        )
    return entries


def _draft(
    settings: TrainSettings, entries: list[IndexEntry]
) -> tuple[DraftVocabulary, torch.nn.Module, list[str]]:
    """The draft vocabulary, the initial model and notes on what was adjusted."""
    train, target = settings.train, Path(settings.target_dir)
    size = adapter.target_text_config(target).vocab_size
    vocabulary = choose_vocabulary(answer_counts(entries), train.draft.vocab_size, size)
    model = adapter.build_draft(target, train.draft, settings.aux_layer_ids, vocabulary, train.seed)
    return vocabulary, model, [vocabulary.note] if vocabulary.note else []


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
        settings.target_name,
        _STATES[settings.train.autocast],
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
        progress.write(done, total, "steps", dict(metrics), note)

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
