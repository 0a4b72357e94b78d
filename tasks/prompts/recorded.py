"""An answer that a request + response log holds for a prompt, and what the log says about who gave it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordedAnswer:
    """One logged answer. What the log does not say is None, and counts as different from the target's."""

    text: str
    """What the user saw: the answer without its reasoning."""
    reasoning: str | None = None
    """The reasoning that came before it; empty or None where the log holds none."""
    model: str | None = None
    """Model name, as in the request."""
    revision: str | None = None
    """Revision of the weights; None also for a target that has none."""
    template_digest: str | None = None
    """`TargetIdentity.template_digest` of the server that answered."""
    thinking: bool | None = None
    """Whether the request asked for the template's thinking mode."""
    finish_reason: str | None = None
    """`stop` (the answer is whole) or `length` (it was cut)."""
