"""What MLflow accepts as names, parameters and metrics."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_PARAM_CHARS = 500
MAX_NAME_CHARS = 250


def clean_name(name: str) -> str:
    """A name with only the characters that MLflow takes: letters, digits, `_ - . : /` and space."""
    cleaned = re.sub(r"[^\w\-.:/ ]", "_", name, flags=re.ASCII).strip("/. ") or "_"
    if len(cleaned) <= MAX_NAME_CHARS:
        return cleaned
    return f"{cleaned[: MAX_NAME_CHARS - 9]}-{_short_hash(name)}"


def clean_value(value: Any) -> str:
    """A parameter's text; one that is too long is cut and ends with a hash of the whole."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= MAX_PARAM_CHARS:
        return text
    return f"{text[: MAX_PARAM_CHARS - 40]}... sha256:{_short_hash(text)} ({len(text)} chars)"


def clean_params(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as flat, dotted parameters with clean names and lengths."""
    params: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            params.update(clean_params(value, f"{name}."))
        else:
            params[clean_name(name)] = clean_value(value)
    return params


def finite(metrics: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Metrics that can be sent, and the names of those that are NaN or infinite."""
    good = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return good, [name for name in metrics if name not in good]


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
