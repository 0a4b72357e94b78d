"""Weights and KV cache that a draft adds to its target, from its configuration and the engine's settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.evaluate.worth.models import DraftMemory
from tasks.train.size import draft_parameters, shape_of_config

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CACHE_BYTES = {**DTYPE_BYTES, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
"""Bytes of one number in the KV cache. vLLM's other types store scales beside the numbers; no size is given
for them, since it would be a guess."""
AUTO = "auto"
_FLAG = "--kv-cache-dtype"
_SPECULATIVE = "--speculative-config"


@dataclass(frozen=True)
class CacheType:
    """Type of the draft's KV cache as the engine was told, and where that was said."""

    name: str = AUTO
    source: str = "the engine's default"


def cache_type(argv: Sequence[str]) -> CacheType:
    """The KV cache type of a draft by the command line of its server.

    The draft's own setting comes first (`kv_cache_dtype` of vLLM's speculative config), then the server's
    `--kv-cache-dtype`, which the draft inherits, then the engine's default `auto`.

    Args:
        argv: Words of the command, or the arguments that the profile's options become.
    """
    words = [word for item in argv for word in (item.split("=", 1) if item.startswith("--") else [item])]
    given = dict(itertools.pairwise(words))
    try:
        own = json.loads(given.get(_SPECULATIVE, "{}")).get("kv_cache_dtype")
    except (ValueError, AttributeError):
        own = None
    if own:
        return CacheType(str(own), f"kv_cache_dtype of {_SPECULATIVE}")
    return CacheType(given[_FLAG], _FLAG) if _FLAG in given else CacheType()


def draft_memory(
    config: Mapping[str, Any], dtype: str, context_tokens: int, cache: CacheType | None = None
) -> DraftMemory:
    """Memory of a draft in serving.

    The engine gives the draft the target's embedding, and its head unless the draft has a smaller vocabulary.
    Keys and values take `2 x layers x key-value heads x head size` numbers a token.

    Args:
        config: `config.json` of a draft in Speculators format.
        dtype: Type in which the arms are served.
        context_tokens: Longest prompt plus answer.
        cache: Type of the KV cache; `auto` is `dtype`, as vLLM takes it unless the target's own quantization
            names another. A type of unknown size leaves the cache's figures empty.

    Raises:
        KeyError: A size is missing, or `dtype` is not known.
    """
    shape = shape_of_config(config)
    layer = config["transformer_layer_config"]
    counts = draft_parameters(shape)
    whole_vocabulary = shape.draft_vocab_size == shape.vocab_size
    shared = counts.embedding + (counts.lm_head if whole_vocabulary else 0)
    cache = cache or CacheType()
    name = dtype if cache.name == AUTO else cache.name
    numbers = 2 * shape.num_layers * shape.num_key_value_heads * shape.head_dim
    per_token = numbers * CACHE_BYTES[name] if name in CACHE_BYTES else None
    window = _window(layer, shape.num_layers)
    kept = context_tokens if window is None else min(window, context_tokens)
    return DraftMemory(
        own_weights_bytes=(counts.total - shared) * DTYPE_BYTES[dtype],
        shared_weights_bytes=shared * DTYPE_BYTES[dtype],
        kv_bytes_per_token=per_token,
        kv_window_tokens=window,
        context_tokens=context_tokens,
        kv_bytes_per_request=per_token * kept if per_token is not None else None,
        dtype=dtype,
        cache_dtype=name,
        cache_asked=cache.name,
        cache_source=cache.source,
    )


def _window(layer: Mapping[str, Any], layers: int) -> int | None:
    """Sliding window, if every layer has it; one layer of full attention keeps the whole context."""
    window = layer.get("sliding_window")
    types = layer.get("layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    sliding = window and all(kind == "sliding_attention" for kind in types)
    return int(window) if sliding and window else None
