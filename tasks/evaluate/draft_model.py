"""The exported draft, loaded as a server would load it, and its blocks for many anchors at once.

Shapes: T rows of hidden states, A anchors, B slots of a block, K drafted tokens, L auxiliary layers, H hidden
size, V draft vocabulary. Everything is float32: replay must not depend on how a machine rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from speculators.models.dspark import DSparkDraftModel
from torch import Tensor

from tasks.errors import StageInputError
from tasks.evaluate.replay_attention import NAME as ATTENTION
from tasks.evaluate.replay_attention import Layout, Piece, read_context


def load_draft(draft_dir: Path, target_dir: Path) -> Any:
    """Load a draft in Speculators format; embedding and full LM head come from the target's folder.

    Raises:
        StageInputError: The folder does not hold a complete DSpark draft.
    """
    from speculators.models.dspark import DSparkSpeculatorConfig

    try:
        config = DSparkSpeculatorConfig.from_pretrained(str(draft_dir), local_files_only=True)
        config.transformer_layer_config._attn_implementation = ATTENTION
        config.speculators_config.verifier.name_or_path = str(target_dir)
        model = DSparkDraftModel.from_pretrained(
            str(draft_dir), config=config, local_files_only=True, dtype=torch.float32
        )
        model.load_verifier_weights()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise StageInputError(
            f"the draft cannot be loaded: {error}",
            where=str(draft_dir),
            hint="the folder must hold config.json and model.safetensors of a DSpark draft for this target",
        ) from error
    missing = sorted(set(model.state_dict()) - _stored(draft_dir) - _from_target(model))
    if missing:
        raise StageInputError(
            f"the draft lacks {len(missing)} tensors: {', '.join(missing[:5])}",
            where=str(draft_dir),
            hint="the folder is damaged or incomplete; export or download the draft again",
        )
    return model.eval()


def _stored(draft_dir: Path) -> set[str]:
    names: set[str] = set()
    for path in draft_dir.glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            names.update(tensors.keys())
    return names


def _from_target(model: Any) -> set[str]:
    """Tensors that a draft need not hold, since the target has them."""
    names = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    return names if model.use_draft_vocab else names | {"lm_head.weight", "d2t", "t2d"}


def first_slot(model: Any) -> int:
    """Slot that drafts the first token: the anchor's own, or the one behind it."""
    return 0 if model.config.sample_from_anchor else 1


def most_tokens(model: Any) -> int:
    """K: draft tokens of a whole block."""
    return int(model.block_size) - first_slot(model)


def block_states(model: Any, pieces: Sequence[Piece], tokens: Tensor, width: int) -> Tensor:
    """Run the parallel backbone for the blocks of `pieces`.

    A block sees the hidden states strictly before its anchor, and itself.

    Args:
        tokens: `[A]` the tokens at the anchors of all pieces, one after another.
        width: B, slots of a block: `block_size`, or fewer as an engine runs that is asked for fewer tokens.

    Returns:
        Normed hidden states `[A, B, H]`.
    """
    anchors = torch.cat([piece.anchors for piece in pieces])
    positions = (anchors[:, None] + torch.arange(width, device=anchors.device)).reshape(1, -1)
    ids = torch.full((len(anchors), width), model.mask_token_id, device=anchors.device)
    ids[:, 0] = tokens
    states = model.embed_tokens(ids.reshape(1, -1))
    nothing = states[:, :0]  # the context's keys and values are in the layout
    rotary = model.rotary_emb(states, positions)
    full = Layout(pieces, width, None, causal=False)
    sliding = Layout(pieces, width, model.sliding_window, causal=not model.sliding_window_non_causal)
    for index, layer in enumerate(model.layers):
        states = layer(
            hidden_states=states,
            target_hidden=nothing,
            attention_mask=sliding if index in model.sliding_window_indices else full,
            position_ids=positions,
            use_cache=False,
            position_embeddings=rotary,
        )
    out: Tensor = model.norm(states).view(len(anchors), width, -1)
    return out


def backbone(model: Any, hidden: Tensor, token_ids: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Whole blocks at `anchors` in one pass.

    Args:
        hidden: `[T, L * H]`, auxiliary layers of the target.
        token_ids: `[T]`; only the tokens at the anchors are read.
        anchors: `[A]`, rising; each needs `hidden` up to the row before it.

    Returns:
        Normed hidden states `[A, B, H]` and base logits `[A, B, V]`, before the Markov bias.
    """
    piece = Piece(read_context(model, hidden), anchors)
    out = block_states(model, [piece], token_ids[anchors], model.block_size)
    return out, model.lm_head(out)


def markov_bias(model: Any, hidden: Tensor, previous: Tensor) -> Tensor | None:
    """Bias `[A, V]` of the slot after `previous`; None without a Markov head.

    Args:
        hidden: `[A, K, H]`, states of the slots that draft.
        previous: `[A, k+1]`, target ids: the anchor and the k tokens before the slot.
    """
    head = model.markov_head
    if head is None:
        return None
    if head.head_type == "vanilla":
        bias: Tensor = head.block_bias(prev_token_ids=previous[:, -1:], hidden_states=hidden[:, :1])
    else:
        bias = head.block_bias(prev_token_ids=previous, hidden_states=hidden[:, : previous.shape[1]])
    return bias[:, -1]


def step_logits(model: Any, hidden: Tensor, base: Tensor, previous: Tensor) -> Tensor:
    """Logits `[A, V]` of the slot after `previous`, Markov bias included.

    Args:
        hidden: `[A, K, H]` and
        base: `[A, K, V]` from `backbone`.
        previous: `[A, k+1]`, target ids: the anchor and the k tokens chosen so far.
    """
    logits = base[:, previous.shape[1] - 1]
    bias = markov_bias(model, hidden, previous)
    return logits if bias is None else logits + bias


def target_ids(model: Any, chosen: Tensor) -> Tensor:
    """Target ids of draft ids."""
    return chosen + model.d2t[chosen] if model.use_draft_vocab else chosen


@torch.inference_mode()
def draft_blocks(model: Any, hidden: Tensor, token_ids: Tensor, anchors: Tensor) -> Tensor:
    """Greedy drafts `[A, K]` in target ids, each token fed into the next one's Markov bias.

    Arguments as for `backbone`.
    """
    states, base = backbone(model, hidden, token_ids, anchors)
    first = first_slot(model)
    states, base = states[:, first:], base[:, first:]
    tokens = token_ids[anchors][:, None]
    for _ in range(base.shape[1]):
        chosen = step_logits(model, states, base, tokens).argmax(dim=-1)
        tokens = torch.cat([tokens, target_ids(model, chosen)[:, None]], dim=1)
    return tokens[:, 1:]
