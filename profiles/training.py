"""How the draft is shaped and trained: the profile's `train` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from profiles.part import Count, Dtype, Part, Positive, Seconds


class Draft(Part):
    """Shape of the DSpark draft."""

    num_layers: Positive = 2
    """Decoder layers of the draft."""
    block_size: Annotated[int, Field(ge=2, le=64)] = 8
    """Tokens drafted in one block; also `num_speculative_tokens` in serving."""
    intermediate_size: Positive | None = None
    """Width of the draft's MLP; empty takes the target's."""
    num_attention_heads: Positive | None = None
    """Attention heads of each layer; empty takes the target's."""
    num_key_value_heads: Positive | None = None
    """Key and value heads of each layer; empty takes the target's, or as many as `num_attention_heads`."""
    head_dim: Positive | None = None
    """Width of one head; empty takes the target's."""
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    """Base of the rotary positions, without scaling; empty takes the target's rotary setting."""
    rms_norm_eps: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Added to the variance in each norm; empty takes the target's."""
    mask_token_id: Count | None = None
    """Token in the slots behind the anchor; empty takes the tokenizer's mask token, else an unused one."""
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

    @property
    def kv_heads(self) -> int | None:
        """Key and value heads that these settings ask for; None leaves them to the target."""
        return self.num_key_value_heads or self.num_attention_heads

    @model_validator(mode="after")
    def _heads_share(self) -> Draft:
        heads, kv = self.num_attention_heads, self.num_key_value_heads
        if kv is not None and heads is None:
            raise ValueError(
                f"num_key_value_heads is {kv}, so num_attention_heads, which share them, must be written out"
            )
        if heads is not None and kv is not None and heads % kv:
            raise ValueError(
                f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv})"
            )
        if self.head_dim is not None and self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even: rotary positions turn pairs")
        return self

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


class Scale(Part):
    """Over how many processes training is spread. The draft does not depend on it, but for rounding."""

    ranks: Positive = 1
    """Processes of the trainer on each node, one a GPU; 1 starts it without torchrun."""
    nodes: Positive = 1
    """Nodes that train; every one of them must see the run folder, and the draft of `init_from`."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp` keeps the whole draft on each rank; `fsdp` shards weights and optimizer state (FSDP2)."""
    rendezvous: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = None
    """HOST:PORT on the first node, where the ranks of several nodes meet."""

    @property
    def world(self) -> int:
        """Ranks on all nodes together."""
        return self.ranks * self.nodes

    @model_validator(mode="after")
    def _nodes_meet(self) -> Scale:
        if self.nodes > 1 and self.rendezvous is None:
            raise ValueError(
                f"train.scale.nodes is {self.nodes}, so train.scale.rendezvous must say where they meet "
                "(HOST:PORT on the first node)"
            )
        return self


class Train(Part):
    """How the draft is trained."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes a GPU if there is one."""
    draft: Draft = Draft()
    """Shape of the draft."""
    scale: Scale = Scale()
    """Processes and nodes."""
    init_from: Annotated[str, Field(min_length=1)] | None = None
    """Draft that training starts from: `incumbent` (the champion; a new draft where there is none), or a
    folder in Speculators format with a DSpark or DFlash draft; empty starts anew."""
    init_vocabulary: Literal["carry", "rebuild"] = "carry"
    """Draft vocabulary under `init_from`: `carry` keeps that draft's tokens, `rebuild` chooses them from the
    captures again and carries over what is known of those in both."""
    warm_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Factor on both peak learning rates under `init_from`: the whole rate costs an earlier draft more than a
    mix of captures gives back, a small one learns shifted prompts too slowly."""
    epochs: Count = 8
    """Passes over the captures."""
    max_steps: Count | None = None
    """Stop after so many optimizer steps; 0 exports the untrained draft; empty trains all epochs."""
    max_wall_s: Seconds | None = None
    """Longest wall-clock time of training, attempts added up, seconds; then the best draft is exported."""
    early_stopping: Positive | None = None
    """Stop after so many held-out measurements in a row without a higher `eal`; empty never does."""
    batch_tokens: Annotated[int, Field(ge=16)] = 1024
    """Tokens of one pack at most: documents side by side in one forward pass."""
    anchors: Positive = 128
    """Blocks trained in one pack."""
    packs_per_step: Positive = 1
    """Packs of one optimizer step, on all ranks together; more than the ranks are accumulated."""
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
    max_bad_steps: Positive = 10
    """Steps in a row without a finite loss or gradient at which training stops and keeps their batch."""
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
    compile: bool = False
    """Compile the layers' MLPs with torch.compile, which needs a C++ compiler on a CPU."""
    gradient_checkpointing: bool = False
    """Compute each layer a second time in the backward pass instead of keeping its activations."""
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
    stop_grace_s: Seconds = 60.0
    """Time that the trainer gets to write a checkpoint when it is asked to stop, seconds."""
    log_every_steps: Positive = 10
    """Optimizer steps in one row of `metrics.jsonl`; each row waits for the device."""
    stall_timeout_s: Seconds = 300.0
    """Longest time without a finished step, seconds."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Train:
        """Refuse combinations that cannot work, naming the fields to change."""
        if self.optimizer == "muon" and self.muon_lr is None:
            raise ValueError("train.optimizer is muon, so train.muon_lr must be written out")
        if self.packs_per_step % self.scale.world:
            raise ValueError(
                f"train.packs_per_step ({self.packs_per_step}) must be a multiple of the ranks "
                f"(train.scale.ranks x train.scale.nodes = {self.scale.world})"
            )
        return self


OF_THE_MACHINE = (
    "threads",
    "device",
    "scale",
    "compile",
    "gradient_checkpointing",
    "checkpoint_every_s",
    "keep_checkpoints",
    "stop_grace_s",
    "log_every_steps",
    "stall_timeout_s",
    "prefetch_bytes",
)
"""Fields of `train` that change where and how fast it runs, but no weight, rounding apart."""
