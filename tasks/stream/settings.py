"""What the flow's process tells the capture client, as one JSON file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.prompts.load import Prompt
from tasks.prompts.rows import Message
from tasks.stream.models import Split

API_KEY_ENV = "VLLM_API_KEY"
"""The key travels by environment only; it is in no file."""


class SamplingSettings(BaseModel):
    """How answers of one split are generated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


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
    hidden_size: int
    dtype: str
    sampling: dict[Split, SamplingSettings]
    store_master: str
    store_host: str
    store_protocol: str
    store_device: str
    store_local_buffer_bytes: int
    concurrency: int
    in_flight_bytes: int
    max_attempts: int
    read_timeout_s: float
    answer_timeout_s: float
    canary_every: int = 0
    """Samples between two runs of the canary's probes; 0 switches the canary off, which no profile can."""
    folder: str
    """The stage folder; everything below is in it."""
    progress_file: str


class PromptRow(BaseModel):
    """One line of `prompts.jsonl`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    domain: str
    split: Split
    messages: list[dict[str, str]]

    @classmethod
    def of(cls, prompt: Prompt) -> PromptRow:
        return cls(id=prompt.id, domain=prompt.domain, split=prompt.split, messages=prompt.turns())

    def prompt(self) -> Prompt:
        messages = tuple(Message(turn["role"], turn["content"]) for turn in self.messages)
        return Prompt(self.id, self.domain, self.split, messages)


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
        self.work = folder / "work"
        self.prompts = self.work / "prompts.jsonl"
        self.settings = self.work / "capture.json"
        self.origin = self.work / "origin.json"
