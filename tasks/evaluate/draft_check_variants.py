"""Plausible corrections of a draft that accepts nothing, each as a change that can be taken back.

All permutations of five layers are 120; mistakes are simpler: two neighbours swapped, the order reversed or
turned round by one, every layer one further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.evaluate.draft_check import rope_difference
from tasks.evaluate.replay_pass import Document
from tasks.serve.target_config import read_target_config

ROTARY = "the target's rotary settings"
MAX_TARGET_BYTES = 4 * 2**30
"""Size of a target that is loaded to see other layers than the captured ones."""


def orders(count: int) -> Iterator[tuple[str, list[int]]]:
    """Other orders of `count` layers that a mistake may leave, with what they are called."""
    plain = list(range(count))
    found = []
    for left in range(count - 1):
        swapped = plain.copy()
        swapped[left], swapped[left + 1] = swapped[left + 1], swapped[left]
        found.append((f"{left + 1} and {left + 2} swapped", swapped))
    found.append(("reversed", plain[::-1]))
    found.append(("turned round by one", plain[1:] + plain[:1]))
    found.append(("turned back by one", plain[-1:] + plain[:-1]))
    seen = [plain]
    for what, order in found:
        if order not in seen:
            seen.append(order)
            yield what, order


def corrected_models(model: Any, target_dir: Path) -> Iterator[tuple[str, str, AbstractContextManager[None]]]:
    """What is changed, what is wrong if that helps, and the change, which holds inside its `with` block."""
    turned = not model.config.sample_from_anchor
    if model.block_size > (0 if turned else 1):
        said = str(turned).lower()
        yield f"sample_from_anchor: {said}", "its config.json is wrong", _anchor(model, turned)
    rope = rope_difference(model.config.to_dict(), read_target_config(target_dir))
    if rope is not None:
        what = f"{ROTARY} {rope[1]}"
        yield what, f"its config.json says {rope[0]}", _rotary(model, rope[1])
    for what, order in orders(len(model.layers)):
        blame = "the layers of its weights are in another order"
        yield f"its own layers {what}", blame, _decoder_order(model, order)


@contextmanager
def _anchor(model: Any, value: bool) -> Iterator[None]:
    before = model.config.sample_from_anchor
    model.config.sample_from_anchor = value
    try:
        yield
    finally:
        model.config.sample_from_anchor = before


@contextmanager
def _rotary(model: Any, rope: dict[str, Any]) -> Iterator[None]:
    before = model.rotary_emb
    config = deepcopy(model.config.transformer_layer_config)
    config.rope_parameters = dict(rope)
    model.rotary_emb = type(before)(config)
    try:
        yield
    finally:
        model.rotary_emb = before


@contextmanager
def _decoder_order(model: Any, order: Sequence[int]) -> Iterator[None]:
    before = model.layers
    model.layers = torch.nn.ModuleList([before[index] for index in order])
    _number(model.layers)
    try:
        yield
    finally:
        model.layers = before
        _number(before)


def _number(layers: Any) -> None:
    """A layer's number says which keys of the context are its own."""
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index


def other_orders(model: Any, documents: Sequence[Document]) -> Iterator[tuple[str, str, list[Document]]]:
    """The captured layers handed to the draft in another order."""
    ids = list(model.target_layer_ids)
    for _, order in orders(len(ids)):
        shown = [ids[index] for index in order]
        changed = [replace(one, aux=one.aux[:, order]) for one in documents]
        yield f"layers in the order {shown}", "it was trained with that order of layers", changed


def other_layers(
    model: Any, documents: Sequence[Document], target_dir: Path
) -> Iterator[tuple[str, str, list[Document]]]:
    """Every layer one before or one behind, computed by the target itself where it is small enough."""
    size = sum(path.stat().st_size for path in target_dir.glob("*.safetensors"))
    if not documents or not 0 < size <= MAX_TARGET_BYTES:
        return
    from transformers import AutoModelForCausalLM

    ids = list(model.target_layer_ids)
    target = AutoModelForCausalLM.from_pretrained(
        target_dir, dtype=torch.float32, local_files_only=True
    ).eval()
    states = [_all_states(target, one) for one in documents]
    last = states[0].shape[1] - 1  # behind the final norm, which a draft does not read
    for shift in (-1, 1):
        shown = [index + shift for index in ids]
        if min(shown) < 0 or max(shown) >= last:
            continue
        changed = [replace(one, aux=found[:, shown]) for one, found in zip(documents, states, strict=True)]
        yield f"layers {shown}", f"its config.json names layers {ids}", changed


def _all_states(target: Any, document: Document) -> Tensor:
    """`[T, layers + 1, H]`: the input of every layer, as vLLM numbers them, and the normed output."""
    ids = document.ids[: document.prompt_tokens + document.starts]
    with torch.inference_mode():
        states = target(ids[None], output_hidden_states=True).hidden_states
    return torch.stack([state[0] for state in states], dim=1)
