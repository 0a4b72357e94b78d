"""What the target is asked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from profiles.part import Fraction, Part, Positive


class Prompts(Part):
    """The prompts: what the target is asked in training and in evaluation."""

    train: Annotated[tuple[str, ...], Field(min_length=1)] = ("package:prompts/train",)
    """JSONL files or folders of them; `package:` means beside this project's profiles."""
    evaluate: Annotated[tuple[str, ...], Field(min_length=1)] = ("package:prompts/evaluate",)
    """JSONL files or folders for evaluation, in the same form."""
    train_per_domain: Positive | None = None
    """Take the first so many training prompts of each domain; empty takes all."""
    evaluate_per_domain: Positive | None = None
    """Take the first so many evaluation prompts of each domain; empty takes all."""
    max_similarity: Fraction = 0.5
    """Largest Jaccard similarity of word 5-grams between an evaluation and a training prompt."""
    max_bad_rows: Fraction = 0.05
    """Share of unusable rows that is skipped with a reason; above it the run stops."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.08
    """Share of training conversations kept from training, chosen by a hash of the conversation."""
    thinking: bool = False
    """Ask chat templates that know it for their thinking mode; the same everywhere in a run."""
