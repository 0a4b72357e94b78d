"""The exported draft, loaded as a server would load it, and its blocks for many anchors at once.

Shapes: T rows of hidden states, A anchors, K block size, L auxiliary layers, H hidden size, V draft
vocabulary. Everything is float32: replay must not depend on how a machine rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from speculators.models.dflash.attention import create_anchor_block_mask_mod
from speculators.models.dspark import DSparkDraftModel
from torch.nn.attention.flex_attention import create_mask

from tasks.errors import StageInputError


def load_draft(draft_dir: Path, target_dir: Path) -> Any:
    """Load a draft in Speculators format; embedding and full LM head come from the target's folder.

    Raises:
        StageInputError: The folder does not hold a complete DSpark draft.
    """
    from speculators.models.dspark import DSparkSpeculatorConfig

    try:
        config = DSparkSpeculatorConfig.from_pretrained(str(draft_dir), local_files_only=True)
        config.transformer_layer_config._attn_implementation = "sdpa"
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


def backbone(
    model: Any, hidden: torch.Tensor, token_ids: torch.Tensor, anchors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the parallel backbone for blocks at `anchors`.

    A block sees the hidden states strictly before its anchor, and itself.

    Args:
        hidden: `[T, L * H]`, auxiliary layers of the target.
        token_ids: `[T]`; only the tokens at the anchors are read.
        anchors: `[A]`, positions of the anchors; each needs `hidden` up to the row before it.

    Returns:
        Normed hidden states `[A, K, H]` and base logits `[A, K, V]`, before the Markov bias.
    """
    block, rows = model.block_size, hidden.shape[0]
    offsets = torch.arange(block)
    positions = torch.cat([torch.arange(rows), (anchors[:, None] + offsets).reshape(-1)])[None]
    ids = torch.full((len(anchors), block), model.mask_token_id, dtype=torch.long)
    ids[:, 0] = token_ids[anchors]
    states = model.embed_tokens(ids.reshape(1, -1))
    context = model.hidden_norm(model.fc(hidden[None]))
    rotary = model.rotary_emb(context, positions)
    masks = _masks(model, rows, anchors)
    for index, layer in enumerate(model.layers):
        states = layer(
            hidden_states=states,
            target_hidden=context,
            attention_mask=masks[index in model.sliding_window_indices],
            position_ids=positions,
            use_cache=False,
            position_embeddings=rotary,
        )
    out = model.norm(states)
    return out.view(len(anchors), block, -1), model.lm_head(out).view(len(anchors), block, -1)


def _masks(model: Any, rows: int, anchors: torch.Tensor) -> dict[bool, torch.Tensor]:
    """Attention masks by "this layer slides"."""
    masks: dict[bool, torch.Tensor] = {}
    for slides in {index in model.sliding_window_indices for index in range(len(model.layers))}:
        mask_mod, queries, keys = create_anchor_block_mask_mod(
            document_ids=torch.zeros(max(rows, int(anchors.max()) + 1), dtype=torch.long),
            total_seq_len=rows,
            anchor_positions=anchors,
            block_size=model.block_size,
            sliding_window=model.sliding_window if slides else None,
            sliding_window_non_causal=model.sliding_window_non_causal,
        )
        masks[slides] = create_mask(mask_mod, B=None, H=None, Q_LEN=queries, KV_LEN=keys, device="cpu")
    return masks


def step_logits(model: Any, hidden: torch.Tensor, base: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Logits of the slot after `previous`, Markov bias included.

    Args:
        hidden: `[A, K, H]` and
        base: `[A, K, V]` from `backbone`.
        previous: `[A, k+1]`, target ids: the anchor and the k tokens chosen so far.

    Returns:
        `[A, V]`, the logits of slot k.
    """
    slot = previous.shape[1] - 1
    if model.markov_head is None:
        return base[:, slot]
    if model.markov_head.head_type == "vanilla":
        bias = model.markov_head.block_bias(prev_token_ids=previous[:, -1:], hidden_states=hidden[:, :1])
    else:
        bias = model.markov_head.block_bias(prev_token_ids=previous, hidden_states=hidden[:, : slot + 1])
    return base[:, slot] + bias[:, -1]


@torch.inference_mode()
def draft_blocks(
    model: Any, hidden: torch.Tensor, token_ids: torch.Tensor, anchors: torch.Tensor
) -> torch.Tensor:
    """Greedy drafts `[A, K']` in target ids, each token fed into the next one's Markov bias.

    K' is the block size, or one less for drafts that do not sample from the anchor's slot.
    Arguments as for `backbone`.
    """
    states, base = backbone(model, hidden, token_ids, anchors)
    if not model.config.sample_from_anchor:
        states, base = states[:, 1:], base[:, 1:]
    tokens = token_ids[anchors][:, None]
    for _ in range(base.shape[1]):
        chosen = step_logits(model, states, base, tokens).argmax(dim=-1)
        if model.use_draft_vocab:
            chosen = chosen + model.d2t[chosen]
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
    return tokens[:, 1:]
