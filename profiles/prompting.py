"""What the target is asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from profiles.part import Count, Fraction, Part, Positive


class Prompts(Part):
    """The prompts: what the target is asked in training and in evaluation."""

    train: tuple[str, ...] = ("package:prompts/train",)
    """JSONL files, Parquet files, data sets, or folders of files; `package:` means beside our profiles. Empty
    where nothing is trained (`retrain-dspark evaluate`)."""
    evaluate: Annotated[tuple[str, ...], Field(min_length=1)] = ("package:prompts/evaluate",)
    """The same for evaluation, and public sets (`set:speed_bench`); a conversation gives its last prompt."""
    train_per_domain: Positive | None = None
    """Take so many training conversations of each domain; empty takes all."""
    evaluate_per_domain: Positive | None = None
    """Take so many evaluation prompts of each domain; empty takes all."""
    choose: Literal["first", "random"] = "first"
    """What a limit takes: the `first` in the files, or `random` ones by `seed`, whatever the files' order."""
    seed: Count = 0
    """Seed of the random choice and of the split."""
    min_chars: Count = 1
    """Shortest training prompt, characters of all its turns."""
    max_chars: Positive | None = None
    """Longest training prompt, characters of all its turns; empty is no limit. Tokens are checked later."""
    near_duplicate: Fraction = 0.8
    """Of training conversations more alike than this, one is kept; 1 drops exact duplicates only."""
    max_similarity: Fraction = 0.5
    """Largest similarity (Jaccard, word 5-grams) of training to evaluation, and across the held-out split."""
    contaminated: Literal["exclude", "refuse"] = "exclude"
    """Training conversations too much like an evaluation prompt: leave them out, or stop."""
    max_bad_rows: Fraction = 0.05
    """Share of unusable rows that is skipped with a reason; above it the run stops."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.08
    """Share of training conversations kept from training, chosen by a hash of the conversation."""
    thinking: bool = False
    """Ask chat templates that know it for their thinking mode; the same everywhere in a run."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Prompts:
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(
                f"prompts.max_chars ({self.max_chars}) is below prompts.min_chars ({self.min_chars}): "
                "no prompt is left; raise it or lower the other"
            )
        return self
