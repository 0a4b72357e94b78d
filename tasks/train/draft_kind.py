"""What kind of attention a draft has, from its `config.json`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ARCHITECTURES = frozenset({"K3DSparkModel"})
"""Drafts that vLLM 0.32 builds with latent attention (`vllm/models/kimi_k3/nvidia/dspark_mla.py`)."""
_MODEL_TYPES = frozenset({"k3_dspark"})


def latent_attention(config: Mapping[str, Any]) -> str:
    """How a draft's configuration says that its layers have multi-head latent attention (MLA).

    Such a draft is served and measured like any other; it is not trained here.

    Returns:
        In words; empty for a draft with ordinary attention.
    """
    layer = config.get("transformer_layer_config")
    for part in (config, layer if isinstance(layer, Mapping) else {}):
        if part.get("kv_lora_rank"):
            return f"its layers have multi-head latent attention (kv_lora_rank {part['kv_lora_rank']})"
    named = [name for name in config.get("architectures") or () if name in _ARCHITECTURES]
    kinds = [*named, *([config["model_type"]] if config.get("model_type") in _MODEL_TYPES else [])]
    return f"its layers have multi-head latent attention ({kinds[0]})" if kinds else ""
