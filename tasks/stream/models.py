"""What the stream stage returns, and the layout of the hidden-state log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.stream.canary_report import CanaryReport

Split = Literal["train", "held_out", "evaluate"]
Source = Literal["generated", "recorded", "served"]
"""Who gave an answer: the target while it was captured, a log, or the server at `stream.answer_url`."""


class CaptureCounters(BaseModel):
    """What happened while capturing. Every prompt ends as captured, set aside, dropped or lost.

    docs/streaming.md says of each what to do about it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: int = 0
    """Attempts, at all prompts together."""
    regenerated: int = 0
    """Attempts beyond a prompt's first."""
    lost: int = 0
    """Prompts whose attempts all failed; listed in `lost.jsonl`."""
    set_aside: int = 0
    """Prompts whose answer holds nothing to learn."""
    dropped: dict[str, int] = {}
    """Why a prompt was never asked -> how many; listed in `dropped.jsonl`."""
    rejected: dict[str, int] = {}
    """Why an attempt failed (`reasons.REASONS`) -> how often."""
    sources: dict[str, int] = {}
    """Who gave the answers -> captured samples."""
    recorded: dict[str, int] = {}
    """Verdict on the recorded answers (`kept`, or why not) -> how many."""
    target_prompt_tokens: int = 0
    target_generated_tokens: int = 0
    store_full_waits: int = 0
    """How often the target's writers waited for space in the store."""
    lease_retries: int = 0
    """Reads that outlasted their lease and were repeated at once."""
    server_outages: int = 0
    """Times that the target was down and came back."""
    store_outages: int = 0
    """Times that the store's master was down and came back."""
    outage_seconds: float = 0.0
    swept: int = 0
    """Objects removed from the store that nobody would have read any more."""
    swept_of_dead_runs: int = 0
    """Objects that a capture which died had left in the store."""
    peak_in_flight_bytes: int = 0
    """Most bytes that open requests could have left in the store at once."""
    seconds: float = 0.0


class CaptureSummary(BaseModel):
    """What the capture client hands to the flow when it is done: a few kilobytes, however many samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    samples: int
    tokens: int
    trainable_tokens: int
    distinct_tokens: int
    bytes: int
    splits: dict[str, int]
    prompts: int
    """Prompts that the client was given."""
    lost_shown: tuple[str, ...]
    """The first few lost prompts, each with its last reason."""
    consumed: bool
    """Every object was read, removed and looked for again: the target may end now."""
    counters: CaptureCounters


class CaptureManifest(BaseModel):
    """One finished hidden-state log."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: str
    """Folder of the log, relative to the stage folder."""
    digest: str
    """SHA-256 over the sorted index lines: the identity of the data set."""
    target: str
    """`model_digest` of the target that answered."""
    layer_ids: tuple[int, ...]
    tap_point: str | None = None
    """Where the states of a target with Attention Residuals were taken."""
    hidden_size: int
    dtype: str
    samples: int
    tokens: int
    trainable_tokens: int
    """Answer tokens in the train split, which are what the loss sees."""
    distinct_tokens: int
    bytes: int
    splits: dict[str, int]
    temperature: float | None = None
    """Sampling temperature of training answers; None where it is not known. Evaluation answers are greedy."""
    canary: CanaryReport = CanaryReport()
    """How it was proved that the states are those of the answers."""
    counters: CaptureCounters
