"""Weights and KV cache that a draft adds to its target, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.evaluate.worth.models import DraftMemory
from tasks.train.size import draft_parameters, shape_of_config

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def draft_memory(
    config: Mapping[str, Any], dtype: str, context_tokens: int, cache_dtype: str = "auto"
) -> DraftMemory:
    """Memory of a draft in serving.

    The engine gives the draft the target's embedding, and its head unless the draft has a smaller vocabulary.
    Keys and values take `2 x layers x key-value heads x head size` numbers a token.

    Args:
        config: `config.json` of a draft in Speculators format.
        dtype: Type in which the arms are served.
        context_tokens: Longest prompt plus answer.
        cache_dtype: `--kv-cache-dtype` of the server; `auto` is `dtype`.

    Raises:
        KeyError: A size is missing, or the type is not known.
    """
    shape = shape_of_config(config)
    layer = config["transformer_layer_config"]
    counts = draft_parameters(shape)
    whole_vocabulary = shape.draft_vocab_size == shape.vocab_size
    shared = counts.embedding + (counts.lm_head if whole_vocabulary else 0)
    cache = dtype if cache_dtype == "auto" else cache_dtype
    per_token = 2 * shape.num_layers * shape.num_key_value_heads * shape.head_dim * DTYPE_BYTES[cache]
    window = _window(layer, shape.num_layers)
    kept = context_tokens if window is None else min(window, context_tokens)
    return DraftMemory(
        own_weights_bytes=(counts.total - shared) * DTYPE_BYTES[dtype],
        shared_weights_bytes=shared * DTYPE_BYTES[dtype],
        kv_bytes_per_token=per_token,
        kv_window_tokens=window,
        context_tokens=context_tokens,
        kv_bytes_per_request=per_token * kept,
        dtype=dtype,
        cache_dtype=cache,
    )


def _window(layer: Mapping[str, Any], layers: int) -> int | None:
    """Sliding window, if every layer has it; one layer of full attention keeps the whole context."""
    window = layer.get("sliding_window")
    types = layer.get("layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    sliding = window and all(kind == "sliding_attention" for kind in types)
    return int(window) if sliding and window else None
