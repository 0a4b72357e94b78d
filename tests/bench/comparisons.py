"""The comparisons of `make bench`, on a synthetic target and draft with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rows import Row, Size, in_turns, machine, row
from torch import Tensor

from profiles.schema import Draft
from tasks.evaluate.draft_model import draft_blocks
from tasks.evaluate.replay_attention import NAME as ATTENTION
from tasks.train import adapter
from tasks.train.data import Batch
from tasks.train.loss import LossWeights
from tasks.train.vocabulary import choose_vocabulary

AUX_LAYERS = (1, 2)


@dataclass(frozen=True)
class World:
    """A draft and one batch of answers."""

    size: Size
    model: Any
    batch: Batch
    anchors: Tensor
    """`[N]`, blocks that end inside the batch: upstream takes no others."""


def make_world(size: Size, folder: Path) -> World:
    """Build the target's folder, the draft and the batch."""
    torch.manual_seed(0)
    _save_target(size, folder)
    shape = Draft(num_layers=2, block_size=size.block, vocab_size=size.draft_vocab)
    counts = dict.fromkeys(range(size.vocab), 1)
    vocabulary = choose_vocabulary(counts, size.draft_vocab, size.vocab)
    model = adapter.build_draft(folder, shape, AUX_LAYERS, vocabulary, seed=0)
    batch = _make_batch(size)
    places = batch.anchor_positions()
    places = places[places < batch.tokens - size.block]
    chosen = places[torch.randperm(len(places))[: size.anchors]].sort().values
    return World(size, model, batch, chosen)


def _save_target(size: Size, folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=3,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)


def _make_batch(size: Size) -> Batch:
    length = size.prompt_tokens + size.answer_tokens
    total = size.documents * length
    positions = torch.arange(length).repeat(size.documents)
    return Batch(
        token_ids=torch.randint(1, size.draft_vocab, (total,)),
        aux_states=torch.randn(total, len(AUX_LAYERS) * size.hidden),
        last_states=torch.randn(total, size.hidden),
        loss_mask=positions >= size.prompt_tokens,
        position_ids=positions,
        document_ids=torch.arange(size.documents).repeat_interleave(length),
    )


def train(world: World) -> Row:
    """Forward and backward pass of one batch: ours against upstream's own forward, same loss."""
    weights = LossWeights(0.1, 0.9, 1.0, 4.0)

    def ours() -> Tensor:
        world.model.zero_grad()
        loss = adapter.run_blocks(world.model, world.batch, world.anchors, weights).loss
        loss.backward()
        return loss.detach()

    def upstream() -> Tensor:
        world.model.zero_grad()
        loss = _upstream_loss(world)
        loss.backward()
        return loss.detach()

    torch.testing.assert_close(ours(), upstream(), rtol=1e-4, atol=1e-5)
    seconds = in_turns(ours, upstream, world.size.repetitions)
    conditions = (
        f"{world.batch.tokens} tokens, {len(world.anchors)} blocks of {world.size.block}; {machine()}"
    )
    name = "step against upstream's forward"
    return row("train", name, world.batch.tokens, seconds, 1.0, conditions)


def _upstream_loss(world: World) -> Tensor:
    """Upstream's forward with its sdpa attention, made to take our anchors."""
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import core

    model, batch, anchors = world.model, world.batch, world.anchors
    layer = model.config.transformer_layer_config
    kept, attention = core.select_anchors, layer._attn_implementation
    core.select_anchors = lambda *_: (anchors, torch.ones(len(anchors), dtype=torch.bool))
    layer._attn_implementation = "sdpa"
    try:
        return model(
            hidden_states=batch.aux_states[None],
            input_ids=batch.token_ids[None],
            loss_mask=batch.loss_mask[None],
            verifier_last_hidden_states=batch.last_states[None],
            document_ids=batch.document_ids[None],
            position_ids=batch.position_ids[None],
            loss_config=resolve_loss_config('{"ce": 0.1, "tv": 0.9}', "eager"),
            tv_loss_fn=resolve_loss_config("tv", "eager")["tv"][0],
            gamma=4.0,
            max_anchors=len(anchors),
            confidence_head_alpha=1.0,
            per_position_loss_weight="fixed-exp-decay",
        )[1]
    finally:
        core.select_anchors, layer._attn_implementation = kept, attention


def evaluate(world: World) -> Row:
    """Drafts at every token of an answer: one pass for all against one pass for each anchor."""
    size, model = world.size, world.model.eval()
    layer = model.config.transformer_layer_config
    attention, layer._attn_implementation = layer._attn_implementation, ATTENTION
    rows = size.prompt_tokens + size.answer_tokens
    ids, states = world.batch.token_ids[:rows], world.batch.aux_states[:rows]
    anchors = torch.arange(size.prompt_tokens, rows - 1)

    def at_once() -> Tensor:
        return draft_blocks(model, states, ids, anchors)

    def one_by_one() -> Tensor:
        return torch.cat([draft_blocks(model, states[:a], ids[: a + 1], a[None]) for a in anchors])

    try:
        same = float((at_once() == one_by_one()).float().mean())
        if same < 0.99:  # sums in another order may turn a near tie, no more
            raise AssertionError(f"only {same:.1%} of the drafted tokens are equal")
        seconds = in_turns(at_once, one_by_one, size.repetitions)
    finally:
        layer._attn_implementation = attention
    conditions = f"an answer of {size.answer_tokens} tokens, blocks of {size.block}; {machine()}"
    return row("evaluate", "replay against anchor by anchor", len(anchors), seconds, 1.0, conditions)


COMPARISONS: dict[str, Callable[[World], Row]] = {"train": train, "evaluate": evaluate}
