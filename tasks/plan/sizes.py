"""Bytes of hidden states: per token, per sample, in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from profiles.schema import Profile
from tasks.plan.parameters import DTYPE_BYTES
from tasks.prompts.counts import CHARS_PER_TOKEN, PromptCounts

TYPICAL_PROMPT_TOKENS = 60
"""Prompt with chat template; the mean of the project's own prompts, where prompts were not read."""
TEMPLATE_TOKENS = 20
"""What chat templates add to a prompt, about."""
_FILE_OVERHEAD_BYTES = 512
"""safetensors header, and the checksum behind each object."""
_TOKEN_ID_BYTES = 8


class TargetSizes(Protocol):
    """What sizing needs of a target."""

    @property
    def hidden_size(self) -> int: ...


@dataclass(frozen=True)
class SampleSizes:
    """Bytes of one captured sample.

    Args:
        token_bytes: One token: every captured layer's state and the token id.
    """

    token_bytes: int
    typical_tokens: int
    typical_bytes: int
    largest_tokens: int
    largest_bytes: int


def bytes_per_token(hidden_size: int, aux_layers: int, dtype: str) -> int:
    """Bytes of one token's capture: `(auxiliary layers + last) x hidden x dtype`, and its id."""
    return (aux_layers + 1) * hidden_size * DTYPE_BYTES[dtype] + _TOKEN_ID_BYTES


def typical_prompt_tokens(counts: PromptCounts) -> int:
    """Tokens of a typical prompt with its chat template, estimated from the mean of the characters read."""
    sides = (counts.train, counts.evaluate)
    chars = sum(side.chars.mean * side.prompts for side in sides)
    return TEMPLATE_TOKENS + chars // (CHARS_PER_TOKEN * max(1, sum(side.prompts for side in sides)))


def sample_sizes(
    profile: Profile, target: TargetSizes, prompt_tokens: int = TYPICAL_PROMPT_TOKENS
) -> SampleSizes:
    """Typical and largest sample of a run. A sample holds prompt and answer but its last token.

    Args:
        prompt_tokens: A typical prompt with its chat template.
    """
    token = bytes_per_token(target.hidden_size, len(profile.target.aux_layer_ids), profile.target.dtype)
    largest = profile.target.max_model_len - 1
    typical = min(prompt_tokens + profile.stream.max_new_tokens - 1, largest)
    return SampleSizes(
        token_bytes=token,
        typical_tokens=typical,
        typical_bytes=typical * token + _FILE_OVERHEAD_BYTES,
        largest_tokens=largest,
        largest_bytes=largest * token + _FILE_OVERHEAD_BYTES,
    )
