"""What the flow's process tells the capture client, as one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from profiles.streaming import Answers
from tasks.stream.models import Split

API_KEY_ENV = "VLLM_API_KEY"
"""The key travels by environment only; it is in no file."""
ANSWER_KEY_ENV = "RETRAIN_DSPARK_ANSWER_KEY"
"""The same for the key of the server at `stream.answer_url`."""
CLIENT_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Added to the capture client's environment."""


class SamplingSettings(BaseModel):
    """How answers of one split are generated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


class AnswerSettings(BaseModel):
    """Where answers come from, and which recorded ones are the target's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    answers: Answers = "generate"
    recorded_else: Literal["regenerate", "drop"] = "regenerate"
    target_names: tuple[str, ...] = ()
    """Names under which logs may know the target."""
    target_revision: str | None = None
    template_digest: str = ""
    answer_url: str | None = None
    answer_model: str = ""


class CaptureSettings(BaseModel):
    """Configuration of `python -m tasks.stream.capture`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    url: str
    served_name: str
    tokenizer: str
    trust_remote_code: bool
    thinking: bool
    max_model_len: int
    max_bad_rows: float
    layers: int
    layer_ids: tuple[int, ...] = ()
    """Captured layers, for a server that announces its own."""
    tap_point: str | None = None
    """Where the states of a target with Attention Residuals must have been taken."""
    hidden_size: int
    dtype: str
    sampling: dict[Split, SamplingSettings]
    store_master: str
    store_host: str
    store_protocol: str
    store_device: str
    store_local_buffer_bytes: int
    store_gid_index: int | None = None
    store_interface: str = ""
    concurrency: int
    in_flight_bytes: int
    max_attempts: int
    max_lost: float = 0.0
    """Share of prompts that may be lost; the log is complete without them."""
    read_timeout_s: float
    answer_timeout_s: float
    sample_timeout_s: float | None = None
    """Longest life of one attempt; None takes the two timeouts above together."""
    server_wait_s: float = 120.0
    back_off_s: float = 0.5
    """Longest pause before the second attempt at a prompt; doubled with each further one."""
    sweep_limit_s: float = 60.0
    """Longest wait at the end for given-up requests; longer than the connector waits for space."""
    sweep_quiet_s: float = 2.0
    answers: AnswerSettings = AnswerSettings()
    window_bytes: int | None = None
    """Most bytes that the log may take; None keeps every sample."""
    claims: str = ""
    """Folder of the claims of all captures of this node; empty takes one beside the stage folder."""
    canary_every: int = 0
    """Samples between two runs of the canary's probes; 0 switches the canary off, which no profile can."""
    folder: str
    """The stage folder; everything below is in it."""
    progress_file: str

    @property
    def life_s(self) -> float:
        """Longest life of one attempt, seconds."""
        return self.sample_timeout_s or self.answer_timeout_s + self.read_timeout_s


class CaptureFiles:
    """Names of the files in a stream stage's folder.

    What holds prompts or addresses is in `work/`, which is not copied to the tracked run.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "log"
        self.counters = folder / "counters.json"
        self.lost = folder / "lost.jsonl"
        self.dropped = folder / "dropped.jsonl"
        self.canary = folder / "canary.json"
        self.set_aside = folder / "set_aside.jsonl"
        self.token_counts = folder / "token_counts.json"
        self.summary = folder / "captured.json"
        self.work = folder / "work"
        self.prompts = self.work / "prompts.jsonl"
        self.requests = self.work / "requests.jsonl"
        self.settings = self.work / "capture.json"
        self.origin = self.work / "origin.json"
