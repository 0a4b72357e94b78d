"""What training reads: a complete log, or one that still grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.errors import StageInputError
from tasks.stage import canonical, sha256_text, write_atomic
from tasks.stream.log import HiddenStateLog, IndexEntry
from tasks.train import adapter
from tasks.train.data import Batches, CaptureReader, TrainBatches
from tasks.train.explained import ArrivingCheck, check_explained
from tasks.train.growing import GrowingLog, Patience
from tasks.train.growing_batches import GrowingBatches
from tasks.train.heldout import ArrivingSet, CompleteSet, HeldOut, HeldOutSet
from tasks.train.model import vocabulary_to_carry
from tasks.train.settings import Overlap, TrainSettings
from tasks.train.stopping import Report, StopFlag, Stopped
from tasks.train.vocabulary import (
    DraftVocabulary,
    answer_counts,
    choose_early,
    choose_vocabulary,
    vocabulary_of,
    with_coverage,
)

STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HELD_OUT_ANCHORS = 1536
_VOCABULARY = Path("work") / "vocabulary.json"
_FEWEST_SAMPLES = 32
_SHARE_OF_SAMPLES = 8


@dataclass(frozen=True)
class TrainData:
    """Everything that training takes from the log.

    Args:
        unchecked: What could not be checked of the states, in words; empty if everything was.
    """

    vocabulary: DraftVocabulary
    batches: Batches
    held_out: HeldOutSet
    unchecked: str


def complete_data(settings: TrainSettings, device: torch.device, report: Report, stop: StopFlag) -> TrainData:
    """Read a complete log.

    Raises:
        StageInputError: It holds nothing to learn from, or its states do not explain its answers.
    """
    train = settings.train
    log = HiddenStateLog(Path(settings.log_dir))
    entries = _trainable(log.folder, log.entries("train"))
    unchecked = check_explained(settings, log, entries)
    vocabulary = _vocabulary(settings, entries)
    reader = _reader(settings, log)
    held = [entry for entry in log.entries("held_out") if entry.trainable_tokens > 0]
    return TrainData(
        vocabulary,
        TrainBatches(
            reader,
            entries,
            train.batch_tokens,
            train.seed,
            train.epochs,
            train.prompt_epochs,
            train.prefetch_bytes,
        ),
        CompleteSet(_held_out(settings, reader, device)(held) if held else None),
        unchecked,
    )


def growing_data(settings: TrainSettings, device: torch.device, report: Report, stop: StopFlag) -> TrainData:
    """Follow a log that may still grow; returns when there are samples enough to build the draft.

    Raises:
        StageInputError: It ended and holds nothing to learn from, or its first states do not explain their
            answers; `batches` raises it for samples that come later.
        Stopped: A signal came while there was nothing to train on.
    """
    train, overlap = settings.train, settings.overlap
    assert overlap is not None, "the caller looked"
    log = GrowingLog(Path(settings.log_dir))
    readable = HiddenStateLog(log.folder)
    reader = _reader(settings, readable)

    def check() -> None:
        if stop.raised:
            raise Stopped

    batches = GrowingBatches(
        log,
        reader,
        overlap,
        Patience(check, lambda done, total, note: report(done, total, {}, note)),
        ArrivingCheck(settings, readable),
        batch_tokens=train.batch_tokens,
        seed=train.seed,
        epochs=train.epochs,
        prompt_epochs=train.prompt_epochs,
        prefetch_bytes=train.prefetch_bytes,
    )
    vocabulary = _early_vocabulary(settings, overlap, batches)
    unchecked = check_explained(settings, readable, batches.present())
    held_out = ArrivingSet(
        batches.all_held_out_before, lambda: log.held_out, _held_out(settings, reader, device)
    )
    return TrainData(vocabulary, batches, held_out, unchecked)


def _reader(settings: TrainSettings, log: HiddenStateLog) -> CaptureReader:
    # Samples that are read once need no memory: only the held-out ones come again.
    return CaptureReader(
        log,
        len(settings.aux_layer_ids) + 1,
        settings.hidden_size,
        STATES[settings.train.autocast],
        settings.cache_bytes if settings.train.epochs > 1 or settings.overlap is None else 0,
    )


def _trainable(folder: Path, found: Sequence[IndexEntry]) -> list[IndexEntry]:
    entries = [entry for entry in found if entry.trainable_tokens > 0]
    if not entries:
        raise StageInputError(
            f"the captures hold no answer token to learn from ({len(found)} train samples)",
            where=str(folder),
            hint="check that the target answers, raise stream.max_new_tokens or add prompts",
        )
    return entries


def _held_out(
    settings: TrainSettings, reader: CaptureReader, device: torch.device
) -> Callable[[Sequence[IndexEntry]], HeldOut]:
    return lambda entries: HeldOut(reader, entries, settings.train.batch_tokens, _HELD_OUT_ANCHORS, device)


def _target_vocab_size(settings: TrainSettings) -> int:
    return int(adapter.target_text_config(Path(settings.target_dir), settings.own_code).vocab_size)


def _vocabulary(settings: TrainSettings, entries: Sequence[IndexEntry]) -> DraftVocabulary:
    """The draft's vocabulary: the initial draft's, or the most frequent tokens of the captured answers."""
    counts = answer_counts(entries)
    carried = vocabulary_to_carry(settings)
    if carried is not None:
        return with_coverage(carried, counts)
    wanted = settings.train.draft.vocab_size
    return with_coverage(choose_vocabulary(counts, wanted, _target_vocab_size(settings)), counts)


def _early_vocabulary(settings: TrainSettings, overlap: Overlap, batches: GrowingBatches) -> DraftVocabulary:
    """The draft's vocabulary from the first samples; the same again after a restart."""
    carried = vocabulary_to_carry(settings)
    if carried is not None:
        _trainable(Path(settings.log_dir), batches.first(1))
        return carried
    wanted, size = settings.train.draft.vocab_size, _target_vocab_size(settings)
    pruned = wanted is not None and wanted < size
    share = -(-overlap.train_prompts // _SHARE_OF_SAMPLES)
    found = _trainable(Path(settings.log_dir), batches.first(max(_FEWEST_SAMPLES, share) if pruned else 1))
    if wanted is None or not pruned:
        return choose_vocabulary(Counter(), None, size)
    identity = sha256_text(canonical([settings.identity(), [entry.line() for entry in found]]))
    path = settings.path / _VOCABULARY
    if path.exists() and (stored := json.loads(path.read_text("utf-8")))["identity"] == identity:
        return vocabulary_of(stored["tokens"], size, stored["note"])
    prompts: Counter[int] = Counter()
    for entry in found:
        prompts.update(entry.prompt_ids())
    chosen = choose_early(answer_counts(found), prompts, wanted, size, len(found))
    path.parent.mkdir(exist_ok=True, mode=0o700)
    row = {"identity": identity, "tokens": chosen.target_ids().tolist(), "note": chosen.note}
    write_atomic(path, json.dumps(row))
    return chosen
