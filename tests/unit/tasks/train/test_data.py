"""Packing: nothing split, padded, lost or mixed; the order depends on seed and epoch only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.log import HiddenStateLog, LogWriter
from tasks.train.data import (
    CaptureReader,
    TrainBatches,
    choose_anchors,
    make_batch,
    pack,
    spaced_anchors,
    with_prompts,
)
from tests.unit.tasks.train.conftest import HIDDEN, TinyWorld


def reader(world: TinyWorld, layers: int = 3, cache_bytes: int = 0) -> CaptureReader:
    return CaptureReader(HiddenStateLog(world.log), layers, HIDDEN, torch.float32, cache_bytes)


def test_each_document_is_packed_once_and_batches_are_full() -> None:
    lengths = [20 + (7 * k) % 60 for k in range(200)]
    batches = pack(lengths, 256, seed=3, epoch=0)
    assert sorted(k for members in batches for k in members) == list(range(200))
    sizes = [sum(lengths[k] for k in members) for members in batches]
    assert max(sizes) <= 256
    assert sum(sizes) / (256 * len(batches)) > 0.93


def test_order_changes_with_epoch_and_seed_only() -> None:
    lengths = list(range(10, 60))
    assert pack(lengths, 128, 1, 0) == pack(lengths, 128, 1, 0)
    assert pack(lengths, 128, 1, 0) != pack(lengths, 128, 1, 1)
    assert pack(lengths, 128, 1, 0) != pack(lengths, 128, 2, 0)


def test_document_longer_than_a_batch_stands_alone() -> None:
    batches = pack([10, 300, 12], 100, seed=0, epoch=0)
    assert [1] in batches


def test_batch_holds_documents_side_by_side(world: TinyWorld) -> None:
    log = HiddenStateLog(world.log)
    entries = log.entries("train")[:3]
    batch = make_batch(reader(world), entries)
    start = 0
    for number, entry in enumerate(entries):
        states, ids = log.load(entry)
        place = slice(start, start + entry.tokens)
        assert torch.equal(batch.token_ids[place], ids)
        assert torch.equal(batch.aux_states[place], states[:, :-1].flatten(1))
        assert torch.equal(batch.last_states[place], states[:, -1])
        assert batch.position_ids[place].tolist() == list(range(entry.tokens))
        assert set(batch.document_ids[place].tolist()) == {number}
        mask = [False] * entry.prompt_tokens + [True] * entry.trainable_tokens
        assert batch.loss_mask[place].tolist() == mask
        start += entry.tokens
    assert batch.tokens == start


def test_spans_assign_every_block_to_its_document(world: TinyWorld) -> None:
    batch = make_batch(reader(world), HiddenStateLog(world.log).entries("train")[:4])
    anchors = choose_anchors(batch, 11, torch.Generator().manual_seed(5))
    covered = []
    for start, end, first, last in batch.block_spans(anchors):
        assert all(start <= position < end for position in anchors[first:last].tolist())
        covered += list(range(first, last))
    assert covered == list(range(11))


def test_anchors_lie_on_answers_without_repetition(world: TinyWorld) -> None:
    batch = make_batch(reader(world), HiddenStateLog(world.log).entries("train")[:4])
    anchors = choose_anchors(batch, 20, torch.Generator().manual_seed(5))
    assert anchors.tolist() == sorted(set(anchors.tolist()))
    assert bool(batch.loss_mask[anchors].all())
    assert len(choose_anchors(batch, 10_000, torch.Generator())) == int(batch.loss_mask.sum())
    assert torch.equal(spaced_anchors(batch, 2), batch.anchor_positions()[::2])


def test_epochs_cover_all_samples(world: TinyWorld) -> None:
    entries = HiddenStateLog(world.log).entries("train")
    batches = TrainBatches(reader(world, cache_bytes=1 << 20), entries, 64, 0, 2)
    for epoch in range(2):
        tokens = sum(batches.batch(epoch, step).tokens for step in range(batches.steps(epoch)))
        assert tokens == sum(entry.tokens for entry in entries)
    assert batches.total_steps == batches.steps(0) + batches.steps(1)


def test_captures_of_other_layers_are_refused(world: TinyWorld) -> None:
    entry = HiddenStateLog(world.log).entries("train")[0]
    with pytest.raises(StageInputError, match="the draft needs"):
        reader(world, layers=6).load(entry)


def test_prompts_can_be_learned_but_not_their_shared_opening(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    for i, prompt in enumerate(([7, 8, 1, 2], [7, 8, 3], [7, 8, 1, 4, 5])):
        ids = torch.tensor([*prompt, 9, 9])
        writer.append(
            i=i, prompt_id=str(i), domain="qa", split="train", prompt_tokens=len(prompt),
            answer_ids=(9, 9, 9), finish_reason="length",
            hidden_states=torch.zeros(len(ids), 3, HIDDEN), token_ids=ids,
        )  # fmt: skip
    writer.close()
    log = HiddenStateLog(tmp_path)
    source = CaptureReader(log, 3, HIDDEN, torch.float32, 0)
    entries = with_prompts(source, log.entries("train"))
    masks = [make_batch(source, [entry]).loss_mask.int().tolist() for entry in entries]
    assert masks == [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]]


def test_prompts_are_learned_in_the_first_epochs_only(world: TinyWorld) -> None:
    entries = HiddenStateLog(world.log).entries("train")
    source = reader(world, cache_bytes=1 << 20)
    batches = TrainBatches(source, entries, 64, 0, 3, prompt_epochs=1)
    plain = TrainBatches(source, entries, 64, 0, 3)
    learned = [
        sum(int(batches.batch(epoch, step).loss_mask.sum()) for step in range(batches.steps(epoch)))
        for epoch in range(3)
    ]
    answers = sum(entry.trainable_tokens for entry in entries)
    assert learned[0] > answers
    assert learned[1:] == [answers, answers]
    assert torch.equal(batches.batch(0, 0).token_ids, plain.batch(0, 0).token_ids)
