"""Export of a trained draft in Speculators format, as vLLM loads it, and the check that it is whole."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from tasks.errors import JobError
from tasks.stage import sha256_file
from tasks.train import adapter, round_trip
from tasks.train.checkpoint import sync_folder
from tasks.train.probe import Probe
from tasks.train.size import (
    DraftShape,
    confidence_inputs,
    serving_parameters,
    shape_of_config,
    trained_parameters,
)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


CONFIG_FIELDS = (
    "architectures",
    "aux_hidden_state_layer_ids",
    "block_size",
    "confidence_head_with_markov",
    "draft_vocab_size",
    "enable_confidence_head",
    "markov_head_type",
    "markov_rank",
    "mask_token_id",
    "sample_from_anchor",
    "sliding_window_non_causal",
    "speculators_config",
    "speculators_model_type",
    "tie_word_embeddings",
    "transformer_layer_config",
)
"""Fields that are never left to a reader's default: engines differ in what they take for a missing one."""


@dataclass(frozen=True)
class ExportedFor:
    """The target that an exported draft belongs to.

    Args:
        name: What `verifier.name_or_path` says; a name, not a path of this machine.
        revision: Pinned revision of the target, if the profile names one.
        folder: Where its weights lie, to load the export back.
    """

    name: str
    revision: str | None
    folder: Path


def export_draft(
    model: nn.Module, weights: Mapping[str, Tensor], folder: Path, target: ExportedFor, dtype: torch.dtype
) -> dict[str, str]:
    """Write the draft with `weights` to `folder`, complete or not at all, and load it back.

    Args:
        model: On the CPU; afterwards it holds the exported weights in `dtype`.
        weights: Name -> tensor of the trained parameters.
        dtype: Type of the stored weights.

    Returns:
        File name -> SHA-256.

    Raises:
        JobError: What was written does not hold what a draft needs, computes something else, or is read by
            upstream's configuration class as something else.
    """
    parameters = adapter.trained_state(model)
    for name, value in parameters.items():
        value.data.copy_(weights[name])
    for value in (*parameters.values(), *adapter.stored_frozen(model).values()):
        value.data.copy_(value.data.to(dtype))  # rounded as the file will have it, still computed in float32
    shape, probe = adapter.draft_shape(model), Probe.of(model)
    logits = probe.logits(model)
    model.to(dtype)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    adapter.save_draft(model, temporary)
    _clean(temporary, target)
    check_export(temporary, shape)
    _require_round_trip(temporary)
    probe.check(temporary, target.folder, logits)
    sync_folder(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir())}


def _clean(folder: Path, target: ExportedFor) -> None:
    """Keep configuration and weights only; no code, no path of this machine."""
    for path in folder.iterdir():
        if path.name != CONFIG and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            path.unlink()
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config.pop("auto_map", None)
    config.pop("_name_or_path", None)
    config["transformer_layer_config"].pop("_name_or_path", None)
    verifier = config["speculators_config"]["verifier"]
    verifier["name_or_path"] = target.name
    if target.revision is not None:
        verifier["revision"] = target.revision
    missing = [name for name in CONFIG_FIELDS if name not in config]
    if missing:
        raise JobError(
            f"the exported configuration does not say {', '.join(missing)}",
            where=str(folder / CONFIG),
            hint="this version of speculators is not supported",
        )
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _require_round_trip(folder: Path) -> None:
    if changed := round_trip.differences(folder):
        raise _broken(folder, f"speculators reads its configuration differently: {'; '.join(changed)}")


def expected_tensors(shape: DraftShape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that an export must hold."""
    d, r = shape.hidden_size, shape.markov_rank
    heads = shape.num_attention_heads * shape.head_dim
    kv_heads = shape.num_key_value_heads * shape.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, shape.aux_layers * d),
        "hidden_norm.weight": (d,),
        "norm.weight": (d,),
    }
    for index in range(shape.num_layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
            "self_attn.q_proj": (heads, d),
            "self_attn.k_proj": (kv_heads, d),
            "self_attn.v_proj": (kv_heads, d),
            "self_attn.o_proj": (d, heads),
            "self_attn.q_norm": (shape.head_dim,),
            "self_attn.k_norm": (shape.head_dim,),
            "mlp.gate_proj": (shape.intermediate_size, d),
            "mlp.up_proj": (shape.intermediate_size, d),
            "mlp.down_proj": (d, shape.intermediate_size),
        }
        tensors |= {f"layers.{index}.{name}.weight": size for name, size in layer.items()}
    if r:
        tensors |= {
            "markov_head.markov_w1.weight": (shape.vocab_size, r),
            "markov_head.markov_w2.weight": (shape.draft_vocab_size, r),
        }
    if r and shape.markov_head_type == "gated":
        tensors |= {"markov_head.gate_proj.weight": (r, d + r), "markov_head.gate_proj.bias": (r,)}
    if r and shape.markov_head_type == "rnn":
        tensors |= {
            "markov_head.joint_proj.weight": (3 * r, 2 * r + d),
            "markov_head.joint_proj.bias": (3 * r,),
        }
    if shape.confidence_head:
        inputs = confidence_inputs(shape)
        tensors |= {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}
    if shape.draft_vocab_size != shape.vocab_size:
        tensors |= {
            "lm_head.weight": (shape.draft_vocab_size, d),
            "d2t": (shape.draft_vocab_size,),
            "t2d": (shape.vocab_size,),
        }
    return tensors


def check_export(folder: Path, shape: DraftShape) -> int:
    """Read the export back: every tensor there, of its shape, finite, as many parameters as planned.

    Returns:
        Parameters that the draft needs in serving, the target's embedding included.

    Raises:
        JobError: Naming the tensor that is missing, unexpected, misshapen or not finite.
    """
    wanted = expected_tensors(shape)
    found: dict[str, tuple[int, ...]] = {}
    for name, value in _tensors(folder):
        found[name] = tuple(value.shape)
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise _broken(folder, f"tensor {name} holds values that are not finite")
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            raise _broken(folder, f"tensor {name} is {found.get(name)}, expected {wanted.get(name)}")
    trained = sum(
        math.prod(size) for name, size in wanted.items() if name not in ("lm_head.weight", "d2t", "t2d")
    )
    if trained != trained_parameters(shape):
        raise _broken(folder, f"{trained:,} trained parameters, expected {trained_parameters(shape):,}")
    return serving_parameters(shape)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                yield name, tensors.get_tensor(name)


def _broken(folder: Path, what: str) -> JobError:
    return JobError(
        f"the exported draft is not whole: {what}",
        where=str(folder),
        hint="train again with resume --from train; if it repeats, the versions of the trainer do not fit",
    )


def read_shape(folder: Path) -> DraftShape:
    """Sizes of an exported draft from its configuration."""
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return shape_of_config(config)
