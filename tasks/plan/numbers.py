"""Numbers of a plan that the validate stage compares with what it observed. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from profiles.schema import Profile
from profiles.streaming import in_flight_bytes
from tasks.plan.parameters import checkpoint_bytes, export_bytes, training_bytes
from tasks.plan.sizes import SampleSizes, sample_sizes, typical_prompt_tokens
from tasks.prompts.counts import PromptCounts
from tasks.train.size import DraftShape, draft_parameters


class ShapeSource(Protocol):
    """What the plan needs of a target: `TargetConfig`, or `hardware.target` of the profile."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int | None: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class PlanNumbers:
    """Bytes and rates of a run.

    Args:
        transfers: Samples that one client moves at once: writer threads or concurrent reads.
        in_flight_bytes: The run's own budget of samples in the store.
        flow_bytes: Planned rate times the time that a sample stays in the store; None without a rate.
        required_gb_per_s: Margin included; None without a planned rate.
        trainer_bytes: Memory of one training rank.
        log_bytes: Hidden states of all samples, what each epoch reads; None where the prompts were not read.
        log_disk_bytes: What of them is on disk at once: all, or at most the window; None as `log_bytes`.
        kept_bytes: Checkpoints, exported and published draft.
    """

    sizes: SampleSizes
    transfers: int
    local_buffer_bytes: int
    segment_bytes: int
    in_flight_bytes: int
    flow_bytes: float | None
    required_gb_per_s: float | None
    draft_parameters: int
    trained_parameters: int
    trainer_bytes: int
    log_bytes: int | None
    log_disk_bytes: int | None
    kept_bytes: int


def plan_numbers(profile: Profile, target: ShapeSource, prompts: PromptCounts | None = None) -> PlanNumbers:
    """Derive the numbers.

    Args:
        prompts: What was read, training and evaluation; None where nothing was: then no number depends on how
            long a typical prompt is.
    """
    if prompts is None:
        sizes, log = sample_sizes(profile, target), None
    else:
        sizes = sample_sizes(profile, target, typical_prompt_tokens(prompts))
        log = (prompts.train.prompts + prompts.evaluate.prompts) * sizes.typical_bytes
    window = profile.stream.window_bytes if profile.stream.retention == "window" else None
    transfer, train = profile.hardware.transfer, profile.train
    rate = None if transfer.tokens_per_s is None else transfer.tokens_per_s * sizes.token_bytes
    shape = shape_of_draft(profile, target)
    counts = draft_parameters(shape)
    export = export_bytes(counts, shape.draft_vocab_size < shape.vocab_size)
    return PlanNumbers(
        sizes=sizes,
        transfers=max(profile.store.writer_threads, transfer.readers),
        local_buffer_bytes=profile.store.local_buffer_bytes,
        segment_bytes=profile.store.segment_bytes,
        in_flight_bytes=in_flight_bytes(profile.stream, profile.store),
        flow_bytes=None if rate is None else rate * transfer.latency_s,
        required_gb_per_s=None if rate is None else rate * transfer.margin / 1e9,
        draft_parameters=counts.total,
        trained_parameters=counts.trained,
        trainer_bytes=training_bytes(
            counts, train.batch_tokens, train.anchors, train.draft.block_size, shape
        ),
        log_bytes=log,
        log_disk_bytes=log if log is None or window is None else min(log, window),
        kept_bytes=(train.keep_checkpoints + 1) * checkpoint_bytes(counts) + 2 * export,
    )


def shape_of_draft(profile: Profile, target: ShapeSource) -> DraftShape:
    """Shape of the draft: its own settings, the target's elsewhere."""
    draft = profile.train.draft
    return DraftShape(
        hidden_size=target.hidden_size,
        intermediate_size=draft.intermediate_size or target.intermediate_size or 4 * target.hidden_size,
        num_layers=draft.num_layers,
        num_attention_heads=draft.num_attention_heads or target.num_attention_heads,
        num_key_value_heads=draft.kv_heads or target.num_key_value_heads,
        head_dim=draft.head_dim or target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(draft.vocab_size or target.vocab_size, target.vocab_size),
        aux_layers=len(profile.target.aux_layer_ids),
        markov_rank=draft.markov_rank,
        markov_head_type=draft.markov_head_type,
        confidence_head=draft.confidence_head,
        confidence_with_markov=draft.confidence_with_markov,
    )
