"""How answers and hidden states are captured."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from profiles.part import Count, Fraction, Part, Positive, Rate, Seconds
from profiles.store import Store

Answers = Literal["generate", "recorded", "served"]

USABLE_SEGMENT = 0.9
"""Share of the store's segment that samples may take: its allocator cannot use all of it at every moment."""


MARKER_S = 5.0
"""Longest wait for the space of an error marker, which follows a put that was given up, seconds."""
_PUT_SHARE = 0.9
_LEAST_PUT_TIMEOUT_S = 1.0


class Stream(Part):
    """How answers and hidden states are captured."""

    answers: Answers = "generate"
    """Whose answers the draft learns: `generate`: the target answers, and the hidden states of prompt and
    answer come with it. `recorded`: the answer in the prompt file is kept if this very target gave it, and
    the target only reads it. `served`: the server at `answer_url` answers, then the target only reads."""
    recorded_else: Literal["regenerate", "drop"] = "regenerate"
    """What happens with a prompt whose recorded answer is missing or another target's (`recorded` only)."""
    answer_url: str | None = None
    """Base URL of the server that answers, without hidden states (`served` only)."""
    answer_model: str | None = None
    """Model name in its requests; empty takes `serve.served_name`."""
    answer_api_key_env: str | None = None
    """Name of the environment variable that holds its key (`served` only)."""
    concurrency: Positive = 16
    """Requests in flight."""
    max_new_tokens: Positive = 96
    """Longest answer, tokens."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature of training answers; 0 is greedy. Evaluation answers are always greedy."""
    top_p: Rate = 1.0
    """Nucleus sampling bound of training answers."""
    seed: Count = 0
    """Seed of sampled answers."""
    in_flight_bytes: Annotated[int, Field(ge=2**20)] | None = None
    """Bytes of hidden states that may wait in the store; empty takes 90 % of `store.segment_bytes`, which is
    also the most that it may be."""
    max_attempts: Positive = 3
    """Requests for one prompt before its sample counts as lost."""
    max_lost: Fraction = 0.0
    """Share of samples that may be lost before the stage fails."""
    read_timeout_s: Seconds = 60.0
    """Longest wait for one sample after its answer arrived, seconds. The writer gives up before: see
    `put_timeout_s`."""
    sample_timeout_s: Seconds | None = None
    """Longest life of one request, seconds: its answer, the arrival of its states, and their read; empty
    takes `serve.progress_timeout_s` and `read_timeout_s` together."""
    server_wait_s: Seconds = 120.0
    """Longest wait for a target or store master that went away, seconds; requests lost to it do not count as
    attempts."""
    canary_every: Positive = 256
    """Samples between two runs of the canary: greedy probes whose hidden states must explain the answers."""
    overlap: bool = False
    """Train while the captures come in: the trainer starts with the first samples. Target and trainer then
    need memory at the same time."""
    retention: Literal["all", "window"] = "all"
    """`all` keeps every capture in the hidden-state log. `window` keeps the log within `window_bytes`: a
    training sample is deleted when a checkpoint has consumed it. It implies `overlap` and one epoch."""
    window_bytes: Positive | None = None
    """Bytes that the hidden-state log may take on disk, held-out and evaluation samples included (`window`
    only)."""

    @model_validator(mode="before")
    @classmethod
    def _mode_is_answers(cls, values: Any) -> Any:
        """`answers` was called `mode`; profiles that say so stay valid."""
        if isinstance(values, dict) and "mode" in values:
            if "answers" in values:
                raise ValueError("`mode` is the old name of `answers`: give only one of them")
            values = {("answers" if name == "mode" else name): value for name, value in values.items()}
        return values

    @model_validator(mode="after")
    def _answers_agree(self) -> Stream:
        if self.answers == "served" and not self.answer_url:
            raise ValueError(
                "stream.answers is served, so stream.answer_url must name the server that answers"
            )
        if self.answers != "served" and (self.answer_url or self.answer_model or self.answer_api_key_env):
            raise ValueError(
                f"stream.answer_url, answer_model and answer_api_key_env belong to stream.answers served, "
                f"not {self.answers}"
            )
        return self

    @property
    def overlaps(self) -> bool:
        """Whether training runs beside the capture."""
        return self.overlap or self.retention == "window"

    @property
    def known_temperature(self) -> float | None:
        """Of training answers; None where a log's answers are learnt, however they were sampled."""
        return None if self.answers == "recorded" else self.temperature


def put_timeout_s(stream: Stream) -> float:
    """Longest wait of one put, seconds: then there is still time for an error marker and its reader."""
    return _PUT_SHARE * (stream.read_timeout_s - MARKER_S)


def require_time_to_put(stream: Stream) -> None:
    """Refuse a deadline of the reader that leaves a writer no time to wait.

    Raises:
        ValueError: With the field, its value and the least that it may be.
    """
    if put_timeout_s(stream) < _LEAST_PUT_TIMEOUT_S:
        least = MARKER_S + _LEAST_PUT_TIMEOUT_S / _PUT_SHARE
        raise ValueError(
            f"stream.read_timeout_s is {stream.read_timeout_s:g}: a writer that finds the store full gives "
            f"up {MARKER_S:g} s before it, so that its error marker is in time, and cannot wait; "
            f"raise it to {least:.1f} or more"
        )


def in_flight_bytes(stream: Stream, store: Store) -> int:
    """Bytes of samples that may wait in the store: what the profile says, else 90 % of the segment."""
    return stream.in_flight_bytes or most_in_flight_bytes(store)


def most_in_flight_bytes(store: Store) -> int:
    """What the segment holds at any moment."""
    return int(USABLE_SEGMENT * store.segment_bytes)
