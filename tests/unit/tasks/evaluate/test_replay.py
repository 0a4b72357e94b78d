"""Replay is what serial decoding with the draft does, and its slots are what the heads say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.evaluate.draft_model import draft_blocks, load_draft
from tasks.evaluate.replay import document_of, slots_file, walks_of
from tasks.evaluate.replay_pass import Document, replay_document
from tasks.evaluate.replay_target import target_head
from tasks.stream.log import HiddenStateLog
from tests.unit.tasks.evaluate.replay_world import ANSWER, PROMPTS, ReplayWorld

PLENTY = 2**28


def test_an_answer_may_be_longer_than_what_is_walked() -> None:
    """Only the anchors of the longest walk are drafted; the tokens behind it are known all the same"""
    walks, longest = walks_of([[2, 3], [9, 9], [4, 5]], [], [1, 2, 3, 4, 5, 6, 7, 8], [4])
    assert walks["4"]["rounds"] == 1 and walks["4"]["accepted"] == 2 and longest.anchors == (0,)


def documents(world: ReplayWorld, model: Any) -> list[Document]:
    log = HiddenStateLog(world.log)
    return [document_of(model, *log.load(entry), entry, ANSWER) for entry in log.entries("evaluate")]


def serial(model: Any, document: Document, length: int) -> tuple[int, int]:
    """Rounds and accepted tokens of decoding one round after another, with no row that is not there yet."""
    answer, anchor, rounds, accepted = document.answer.tolist(), 0, 0, 0
    while anchor + 1 < min(length, len(answer)):
        place = document.prompt_tokens + anchor
        hidden = document.aux[:place].float().flatten(1)
        block = draft_blocks(model, hidden, document.ids[: place + 1], torch.tensor([place]))[0].tolist()
        count = 0
        while count < len(block) and anchor + 1 + count < len(answer):
            if block[count] != answer[anchor + 1 + count]:
                break
            count += 1
        rounds, accepted, anchor = rounds + 1, accepted + count, anchor + count + 1
    return rounds, accepted


def test_replay_is_serial_decoding_for_every_length_and_number_of_tokens(
    replayed: ReplayWorld, tmp_path: Path
) -> None:
    rows, verdict, _ = replayed.replay(tmp_path, replayed.draft, own_blocks=True)
    model = load_draft(replayed.draft, replayed.target)
    assert len(rows) == PROMPTS and verdict["diagnosis"] is None
    for row, document in zip(rows, documents(replayed, model), strict=True):
        for length in (6, ANSWER):
            walk = row["walks"][str(length)]
            assert (walk["rounds"], walk["accepted"]) == serial(model, document, length)
            for tokens, counted in enumerate(walk["by_tokens"], start=1):
                model.block_size = tokens  # as an engine that is asked for so many
                assert (counted["rounds"], counted["accepted"]) == serial(model, document, length)
            model.block_size = 4
    accepted = sum(row["walks"]["16"]["accepted"] for row in rows)
    assert accepted > sum(row["walks"]["16"]["rounds"] for row in rows), "the draft has learned nothing"


def test_answers_longer_than_what_is_walked(replayed: ReplayWorld, tmp_path: Path) -> None:
    """Captured answers may be longer than `evaluate.replay_max_new_tokens`; nothing is drafted beyond it."""
    rows, _, _ = replayed.replay(tmp_path, replayed.draft, lengths=(6,))
    assert max(len(row["answer_ids"]) for row in rows) > 7
    (tmp_path / "whole").mkdir()
    whole, _, _ = replayed.replay(tmp_path / "whole", replayed.draft)
    assert [row["walks"]["6"] for row in rows] == [row["walks"]["6"] for row in whole]


def test_cut_blocks_take_the_first_columns(replayed: ReplayWorld, tmp_path: Path) -> None:
    rows, _, _ = replayed.replay(tmp_path, replayed.draft)
    for row in rows:
        for walk in row["walks"].values():
            counts = walk["by_tokens"]
            assert len(counts) == 4 and counts[-1]["rounds"] == walk["rounds"]
            assert [len(one["per_position"]) for one in counts] == [1, 2, 3, 4]
            assert counts[0]["rounds"] >= counts[1]["rounds"] >= counts[3]["rounds"]


def test_passes_of_one_anchor_say_the_same(replayed: ReplayWorld) -> None:
    model = load_draft(replayed.draft, replayed.target)
    head = target_head(model, replayed.target)
    for document in documents(replayed, model)[:3]:
        whole = replay_document(model, document, head, PLENTY)
        cut = replay_document(model, document, head, 1)
        assert whole.tokens.tolist() == cut.tokens.tolist()
        torch.testing.assert_close(whole.overlap, cut.overlap)
        torch.testing.assert_close(whole.confidence, cut.confidence)


def test_overlap_is_the_share_that_rejection_sampling_accepts(replayed: ReplayWorld) -> None:
    """Against the target's own forward pass and the draft's logits behind the answer's tokens."""
    from tasks.evaluate.draft_model import backbone, step_logits

    model = load_draft(replayed.draft, replayed.target)
    document = documents(replayed, model)[1]
    blocks = replay_document(model, document, target_head(model, replayed.target), PLENTY)
    assert blocks.overlap is not None
    with torch.inference_mode():
        states, base = backbone(model, document.aux.float().flatten(1), document.ids, document.anchors)
        target = replayed.model(document.ids[None]).logits[0].softmax(-1)
        for anchor, slot in [(0, 0), (3, 1), (7, 3), (ANSWER - 2, 0)]:
            place = document.prompt_tokens + anchor
            before = document.ids[place : place + slot + 1][None]
            logits = step_logits(model, states[[anchor]], base[[anchor]], before)[0]
            spread = torch.zeros(target.shape[1])
            spread[torch.arange(len(model.d2t)) + model.d2t] = logits.softmax(-1)
            apart = (spread - target[place + slot]).abs().sum() / 2
            assert float(blocks.overlap[anchor, slot]) == pytest.approx(1 - float(apart), abs=1e-4)
    assert blocks.overlap[ANSWER - 2].tolist()[1:] == [0.0] * 3, "nothing is known there"


def test_slots_hold_what_a_calibration_needs(replayed: ReplayWorld, tmp_path: Path) -> None:
    rows, _, out = replayed.replay(tmp_path, replayed.draft)
    slots = load_file(slots_file(out))
    count = PROMPTS * (ANSWER - 1)
    wide = {name: tuple(slots[name].shape) for name in ("confidence", "overlap", "right", "known")}
    assert set(wide.values()) == {(count, 4)}
    assert slots["confidence"].dtype == slots["overlap"].dtype == torch.float32
    assert slots["prompt"].dtype == torch.int64 and slots["round"].dtype == torch.uint8
    assert int(slots["round"].sum()) == sum(row["walks"][str(ANSWER)]["rounds"] for row in rows)
    chosen = slots["prompt"] == 2
    assert slots["anchor"][chosen].tolist() == list(range(ANSWER - 1))
    assert slots["known"][chosen][-1].tolist() == [1, 0, 0, 0]
    started = slots["anchor"][chosen & (slots["round"] == 1)].tolist()
    assert started == rows[2]["rounds"][0]
    runs = slots["right"][chosen][started].cumprod(dim=1).sum(dim=1).tolist()
    assert runs == rows[2]["rounds"][1], "accepted prefixes are the runs of right tokens"
    assert not list(tmp_path.glob(".*")), "no part is left"


def test_confidence_is_the_logit_of_the_trained_head(replayed: ReplayWorld) -> None:
    """The trainer's own forward gives the same where the chain so far is the answer."""
    from tasks.train import adapter
    from tasks.train.data import Batch

    model = load_draft(replayed.draft, replayed.target)
    document = documents(replayed, model)[0]
    blocks = replay_document(model, document, None, PLENTY)
    assert blocks.confidence is not None and blocks.overlap is None
    trained = adapter.load_draft(replayed.draft, replayed.target, torch.float32)
    rows = len(document.aux)
    batch = Batch(
        token_ids=document.ids[:rows],
        aux_states=document.aux.flatten(1),
        last_states=document.last[:rows],
        loss_mask=torch.ones(rows, dtype=torch.bool),
        position_ids=torch.arange(rows),
        document_ids=torch.zeros(rows, dtype=torch.long),
    )
    anchors = document.anchors[: rows - document.prompt_tokens - 4]
    _, confidence = adapter.block_logits(trained, batch, anchors)
    assert confidence is not None
    same = (
        torch.cat([torch.ones(len(anchors), 1, dtype=torch.bool), blocks.right[: len(anchors), :3]], dim=1)
        .cumprod(1)
        .bool()
    )
    assert int(same.sum()) > 2 * len(anchors)
    torch.testing.assert_close(
        blocks.confidence[: len(anchors)][same], confidence[same], rtol=1e-3, atol=1e-3
    )


def test_a_draft_without_head_leaves_no_confidence(replayed: ReplayWorld, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    draft = replayed.copy_draft(tmp_path / "draft", enable_confidence_head=False)
    tensors = load_file(draft / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith("confidence")}
    save_file(kept, draft / "model.safetensors", metadata={"format": "pt"})
    rows, _, out = replayed.replay(tmp_path, draft, overlap=False)
    slots = load_file(slots_file(out))
    assert set(slots) == {"right", "known", "prompt", "anchor", "round"}
    assert all(row["overlap"] is None for row in rows)


def test_a_draft_that_only_slides_needs_no_older_rows(
    tmp_path: Path, target_dir: Path, make_draft: Any
) -> None:
    sliding = {
        "sliding_window": 4,
        "use_sliding_window": True,
        "max_window_layers": 0,
        "layer_types": ["sliding_attention"] * 2,
    }
    model = load_draft(make_draft(tmp_path / "draft", layers=sliding), target_dir)
    torch.manual_seed(5)
    ids, prompt = torch.randint(1, 64, (30,)), 12
    hidden = torch.randn(29, 2, 16)
    document = Document(hidden[:25], hidden[:, -1], ids, prompt, 14)
    expected = draft_blocks(model, hidden[:25].flatten(1), ids, document.anchors)
    assert replay_document(model, document, None, PLENTY).tokens.tolist() == expected.tolist()
    changed = hidden[:25].clone()
    changed[: prompt - 4] = float("nan")
    document = Document(changed, hidden[:, -1], ids, prompt, 14)
    assert replay_document(model, document, None, PLENTY).tokens.tolist() == expected.tolist()
