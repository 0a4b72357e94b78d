"""The only module that touches `speculators`: builds, runs and saves its DSpark draft.

Upstream's defaults have moved between releases, so every option is written out here, and a contract test
compares upstream's signature and configuration with what this module expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from profiles.schema import Draft
from tasks.errors import StageInputError
from tasks.train.attention import NAME as ATTENTION
from tasks.train.attention import BlockLayout, LayoutMasks, packed_document_attention
from tasks.train.data import Batch
from tasks.train.loss import BlockGrid, BlockOutcome, LossWeights, TargetPositions, block_loss
from tasks.train.size import DraftShape
from tasks.train.vocabulary import DraftVocabulary

SPECULATORS = "0.9.0"
LOSS_IMPLEMENTATION = "eager"
FROZEN = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight")


def target_text_config(target_dir: Path, own_code: bool = False) -> Any:
    """The target's text configuration as a transformers object.

    Args:
        own_code: Code in the target's folder may run (`tasks.serve.target_code` looked at it).
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(target_dir, trust_remote_code=own_code)
    return getattr(config, "text_config", config)


def decoder_config(target_dir: Path, draft: Draft, own_code: bool = False) -> Any:
    """Qwen3 decoder configuration of the draft: the target's geometry where the draft's is left open."""
    from transformers import Qwen3Config

    target = target_text_config(target_dir, own_code)
    heads = target.num_attention_heads
    head_dim = getattr(target, "head_dim", None) or target.hidden_size // heads
    kinds = ["full_attention" if draft.sliding_window is None else "sliding_attention"] * draft.num_layers
    for layer in draft.full_attention_layers:
        kinds[layer] = "full_attention"
    rope = dict(getattr(target, "rope_parameters", None) or {})
    if "rope_theta" not in rope:
        rope = dict(rope.get("full_attention") or {"rope_type": "default", "rope_theta": 10000.0})
    rope.pop("partial_rotary_factor", None)
    if draft.rope_theta is not None:
        rope = {"rope_type": "default", "rope_theta": draft.rope_theta}
    config = Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=draft.intermediate_size or target.intermediate_size,
        num_hidden_layers=draft.num_layers,
        num_attention_heads=draft.num_attention_heads or heads,
        num_key_value_heads=draft.kv_heads or getattr(target, "num_key_value_heads", None) or heads,
        head_dim=draft.head_dim or head_dim,
        hidden_act="silu",
        max_position_embeddings=target.max_position_embeddings,
        initializer_range=getattr(target, "initializer_range", 0.02),
        rms_norm_eps=draft.rms_norm_eps or getattr(target, "rms_norm_eps", 1e-6),
        tie_word_embeddings=False,
        attention_bias=False,
        attention_dropout=0.0,
        sliding_window=draft.sliding_window,
        use_sliding_window=draft.sliding_window is not None,
        max_window_layers=0,
        layer_types=kinds,
        bos_token_id=getattr(target, "bos_token_id", None),
        eos_token_id=getattr(target, "eos_token_id", None),
        pad_token_id=None,
    )
    config.rope_parameters = rope
    return config


def mask_token_id(target_dir: Path, vocab_size: int, own_code: bool = False) -> int:
    """Token whose embedding fills the slots behind the anchor: mask token, unused row, pad, eos, unk."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_dir, trust_remote_code=own_code)
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    if len(tokenizer) < vocab_size:
        return len(tokenizer)
    for name in ("pad_token_id", "eos_token_id", "unk_token_id"):
        if getattr(tokenizer, name, None) is not None:
            return int(getattr(tokenizer, name))
    raise StageInputError(
        "the target's tokenizer has no mask, pad, eos or unk token and no unused row",
        where=str(target_dir),
        hint="add a mask token to the tokenizer",
    )


def training_options(
    target_dir: Path,
    draft: Draft,
    aux_layer_ids: tuple[int, ...],
    vocabulary: DraftVocabulary,
    mask: int,
    own_code: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of upstream's `from_training_args`, none left to a default."""
    return {
        "verifier_name_or_path": str(target_dir),
        "trust_remote_code": own_code,
        "target_layer_ids": list(aux_layer_ids),
        "draft_vocab_size": vocabulary.size,
        "block_size": draft.block_size,
        "mask_token_id": mask,
        "draft_attn_impl": ATTENTION,
        "sliding_window_non_causal": False,
        "sample_from_anchor": draft.sample_from_anchor,
        "markov_rank": draft.markov_rank,
        "markov_head_type": draft.markov_head_type,
        "enable_confidence_head": draft.confidence_head,
        "confidence_head_with_markov": with_markov(draft),
    }


def with_markov(draft: Draft) -> bool:
    """Whether the draft's confidence head sees the Markov embedding."""
    return draft.confidence_head and draft.confidence_with_markov and draft.markov_rank > 0


def _draft_class() -> Any:
    """Upstream's class, with our attention registered."""
    from loguru import logger
    from speculators.models.attention import ALL_ATTENTION_FUNCTIONS
    from speculators.models.dspark import DSparkDraftModel

    logger.disable("speculators")  # it logs the paths of this machine
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_document_attention)
    return DSparkDraftModel


def build_draft(
    target_dir: Path,
    draft: Draft,
    aux_layer_ids: tuple[int, ...],
    vocabulary: DraftVocabulary,
    seed: int,
    mask: int | None = None,
    own_code: bool = False,
) -> nn.Module:
    """A new draft in float32 with the target's frozen embedding, head and norm; same seed, same weights.

    Args:
        mask: Token of the slots behind the anchor; None takes the profile's, else the tokenizer's.
        own_code: Code in the target's folder may run.

    Raises:
        StageInputError: The profile's mask token is none of the target's.
    """
    config = decoder_config(target_dir, draft, own_code)
    mask = draft.mask_token_id if mask is None else mask
    if mask is None:
        mask = mask_token_id(target_dir, config.vocab_size, own_code)
    if mask >= config.vocab_size:
        raise StageInputError(
            f"mask token {mask} is none of the target's {config.vocab_size:,} tokens",
            where="train.draft.mask_token_id",
            hint=f"name a token from 0 to {config.vocab_size - 1} that no text holds",
        )
    draft_class = _draft_class()
    torch.manual_seed(seed)
    model: nn.Module = draft_class.from_training_args(
        config,
        t2d=vocabulary.t2d,
        d2t=vocabulary.d2t,
        **training_options(target_dir, draft, aux_layer_ids, vocabulary, mask, own_code),
    )
    model = model.float()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return model


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of every parameter that training changes (live, not copied)."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def stored_frozen(model: Any) -> dict[str, Tensor]:
    """Frozen weights that the format stores all the same: a pruned vocabulary's head, which vLLM needs."""
    return {"lm_head.weight": model.lm_head.weight} if model.use_draft_vocab else {}


def draft_shape(model: nn.Module) -> DraftShape:
    """Sizes of a built draft, for the parameter count."""
    config: Any = model.config
    layer = config.transformer_layer_config
    return DraftShape(
        vocab_size=layer.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        hidden_size=layer.hidden_size,
        aux_layers=len(config.aux_hidden_state_layer_ids),
        num_layers=layer.num_hidden_layers,
        num_attention_heads=layer.num_attention_heads,
        num_key_value_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        intermediate_size=layer.intermediate_size,
        markov_rank=config.markov_rank,
        markov_head_type=config.markov_head_type,
        confidence_head=config.enable_confidence_head,
        confidence_with_markov=config.confidence_head_with_markov,
    )


@dataclass(frozen=True)
class Slots:
    """Positions of the N x B slots of a batch and which of them have a loss."""

    positions: Tensor
    """`[N, B]` packed positions, clamped to the batch."""
    valid: Tensor
    """`[N, B]` bool."""


def block_slots(batch: Batch, anchors: Tensor, block_size: int, sample_from_anchor: bool) -> Slots:
    """Slots of the blocks at `anchors [N]`; a slot beyond its document or on a prompt has no loss."""
    offsets = torch.arange(block_size, device=anchors.device)
    wanted = anchors[:, None] + offsets[None, :]
    positions = wanted.clamp(max=batch.tokens - 1)
    same = batch.document_ids[positions] == batch.document_ids[anchors][:, None]
    valid = (wanted < batch.tokens) & same & batch.loss_mask[positions]
    if not sample_from_anchor:
        valid[:, 0] = False
    return Slots(positions, valid)


def draft_hidden(model: Any, batch: Batch, anchors: Tensor) -> Tensor:
    """Upstream's backbone on the blocks at `anchors [N]`: `[N, B, H]` before the head."""
    size = model.block_size
    device = batch.token_ids.device
    ids = torch.full((len(anchors), size), model.mask_token_id, dtype=torch.long, device=device)
    ids[:, 0] = batch.token_ids[anchors]
    noise = model.embed_tokens(ids.view(1, -1))
    context = model.hidden_norm(model.fc(batch.aux_states[None]))
    block_positions = (batch.position_ids[anchors][:, None] + torch.arange(size, device=device)).view(-1)
    position_ids = torch.cat([batch.position_ids, block_positions])[None]
    rotary = model.rotary_emb(context, position_ids)
    masks = _layer_masks(model, batch, anchors)
    for index, layer in enumerate(model.layers):
        noise = layer(
            hidden_states=noise,
            target_hidden=context,
            attention_mask=masks[index in model.sliding_window_indices],
            position_ids=position_ids,
            use_cache=False,
            position_embeddings=rotary,
        )
    return model.norm(noise).view(len(anchors), size, -1)


def _layer_masks(model: Any, batch: Batch, anchors: Tensor) -> dict[bool, LayoutMasks]:
    """Masks for full (False) and sliding (True) layers, only the kinds that the draft has."""
    spans = batch.block_spans(anchors)
    masks = {}
    for sliding in {index in model.sliding_window_indices for index in range(len(model.layers))}:
        layout = BlockLayout(
            spans=spans,
            anchors=anchors,
            block_size=model.block_size,
            sliding_window=model.sliding_window if sliding else None,
            causal=sliding and not model.sliding_window_non_causal,
        )
        masks[sliding] = LayoutMasks(layout, batch.tokens)
    return masks


def target_positions(model: Any, batch: Batch, positions: Tensor) -> TargetPositions:
    """The target's distribution over the draft vocabulary at packed `positions [U]`, without gradient."""
    with torch.no_grad():
        scores = model.verifier_lm_head(model.verifier_norm(batch.last_states[positions]))
        scores = scores.float()
        return TargetPositions(scores.softmax(dim=-1), scores.max(dim=-1).indices)


def run_blocks(model: Any, batch: Batch, anchors: Tensor, weights: LossWeights) -> BlockOutcome:
    """One forward pass over the blocks at `anchors [N]`: loss and per-slot outcome."""
    config = model.config
    first = 0 if config.sample_from_anchor else 1
    slots = block_slots(batch, anchors, model.block_size, config.sample_from_anchor)
    predicted = slots.positions[slots.valid] - first
    positions, rows = predicted.unique(return_inverse=True)
    targets = target_positions(model, batch, positions)
    hidden = draft_hidden(model, batch, anchors)
    tokens = batch.token_ids[slots.positions]
    previous = tokens if first == 0 else torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
    kept = hidden[slots.valid]
    logits = model.lm_head(kept)
    embedded = None
    if model.markov_head is not None:
        embedded = model.markov_head.prev_embeddings(previous)
        logits = logits + _markov_bias(model, hidden, previous, embedded, slots.valid)
    confidence = _confidence(model, kept, None if embedded is None else embedded[slots.valid])
    return block_loss(logits, confidence, targets, BlockGrid(slots.valid, rows, first), weights)


def _markov_bias(model: Any, hidden: Tensor, previous: Tensor, embedded: Tensor, valid: Tensor) -> Tensor:
    """Bias of the valid slots `[M, D]`; only the recurrent head needs whole blocks."""
    head = model.markov_head
    if head.head_type == "rnn":
        return head.block_bias(prev_token_ids=previous, hidden_states=hidden, prev_emb=embedded)[valid]
    return head.block_bias(
        prev_token_ids=previous[valid][None],
        hidden_states=hidden[valid][None],
        prev_emb=embedded[valid][None],
    )[0]


def _confidence(model: Any, hidden: Tensor, embedded: Tensor | None) -> Tensor | None:
    if model.confidence_head is None:
        return None
    if model.config.confidence_head_with_markov and embedded is not None:
        hidden = torch.cat([hidden, embedded.to(hidden.dtype)], dim=-1)
    return model.confidence_head(hidden)


def save_draft(model: Any, folder: Path) -> None:
    """Write the draft in Speculators format: `config.json` and `model.safetensors`."""
    model.save_pretrained(folder, safe_serialization=True)


def load_draft(folder: Path, target_dir: Path, dtype: torch.dtype) -> Any:
    """A saved draft as upstream reads it, with the target's frozen weights; nothing is looked up elsewhere.

    Args:
        dtype: Type of all weights.
    """
    draft_class = _draft_class()
    config = draft_class.config_class.from_pretrained(str(folder), local_files_only=True)
    config.transformer_layer_config._attn_implementation = ATTENTION
    config.speculators_config.verifier.name_or_path = str(target_dir)
    model = draft_class.from_pretrained(str(folder), config=config, local_files_only=True, dtype=dtype)
    model.load_verifier_weights()
    return model.to(dtype)


@torch.no_grad()
def block_logits(model: Any, batch: Batch, anchors: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits `[N, B, D]` with Markov bias, and confidence logits `[N, B]`, of the blocks at `anchors [N]`."""
    slots = block_slots(batch, anchors, model.block_size, model.config.sample_from_anchor)
    hidden = draft_hidden(model, batch, anchors)
    tokens = batch.token_ids[slots.positions]
    previous = (
        tokens if model.config.sample_from_anchor else torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
    )
    logits = model.lm_head(hidden)
    embedded = None
    if model.markov_head is not None:
        embedded = model.markov_head.prev_embeddings(previous)
        bias = model.markov_head.block_bias(prev_token_ids=previous, hidden_states=hidden, prev_emb=embedded)
        logits = logits + bias
    return logits, _confidence(model, hidden, embedded)
