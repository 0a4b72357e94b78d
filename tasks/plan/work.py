"""How much a run has to do: prompts, tokens, steps. Read from the prompt files, or assumed for a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.schema import DOMAINS, Profile
from tasks.plan.sizes import SampleSizes, typical_prompt_tokens
from tasks.prompts.bad_row import Skipped
from tasks.prompts.counts import PromptCounts, SideCounts
from tasks.prompts.load import load_prompts

SHOWN_ROWS = 5


@dataclass(frozen=True)
class Work:
    """Counts that the rest of a plan follows from."""

    train_prompts: int
    """Held-out ones included."""
    evaluate_prompts: int
    prompts: PromptCounts
    skipped: tuple[Skipped, ...] = ()
    digest: str = ""
    """Of the prompts; empty where none were read."""
    assumed_tokens: int | None = None
    """Tokens of a sample, where a plan assumes them."""

    @property
    def samples(self) -> int:
        return self.train_prompts + self.evaluate_prompts

    @property
    def trained(self) -> int:
        """Samples that the draft learns from."""
        return self.train_prompts - self.prompts.held_out

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a typical prompt, estimated from the mean of the characters."""
        return typical_prompt_tokens(self.prompts)


def planned_work(profile: Profile) -> Work:
    """Read the prompts of a profile."""
    prompts = load_prompts(profile)
    evaluate = len(prompts.split("evaluate"))
    return Work(
        train_prompts=len(prompts.prompts) - evaluate,
        evaluate_prompts=evaluate,
        prompts=prompts.counts,
        skipped=prompts.skipped,
        digest=prompts.digest,
    )


def assumed_work(profile: Profile, samples: int, sample_tokens: int | None = None) -> Work:
    """Work of so many training samples whose prompts are not there yet.

    Args:
        samples: Training samples, held-out ones included; the profile's limit gives the evaluation prompts.
        sample_tokens: Tokens of each; None estimates them as for prompts that were read.
    """
    evaluate = len(DOMAINS) * (profile.prompts.evaluate_per_domain or 0)
    counts = PromptCounts(
        train=SideCounts(prompts=samples),
        evaluate=SideCounts(prompts=evaluate),
        held_out=round(samples * profile.prompts.held_out),
    )
    return Work(samples, evaluate, counts, assumed_tokens=sample_tokens)


def planned_steps(profile: Profile, tokens: float) -> int:
    """Optimizer steps of all epochs, or the limit that the profile sets.

    Args:
        tokens: Tokens of one epoch.
    """
    a_step = profile.train.batch_tokens * profile.train.packs_per_step
    steps = profile.train.epochs * math.ceil(tokens / a_step)
    limit = profile.train.max_steps
    return steps if limit is None else min(steps, limit)


def sized(sizes: SampleSizes, work: Work) -> SampleSizes:
    """The sizes with the tokens that a plan assumes for a typical sample."""
    if work.assumed_tokens is None:
        return sizes
    tokens = min(work.assumed_tokens, sizes.largest_tokens)
    head = sizes.typical_bytes - sizes.typical_tokens * sizes.token_bytes
    return SampleSizes(
        token_bytes=sizes.token_bytes,
        typical_tokens=tokens,
        typical_bytes=tokens * sizes.token_bytes + head,
        largest_tokens=sizes.largest_tokens,
        largest_bytes=sizes.largest_bytes,
    )


def skipped_notes(skipped: Sequence[Skipped]) -> list[str]:
    """The first rows that cannot be used: file, line and reason, none of their text."""
    notes = [f"skipped {row}" for row in skipped[:SHOWN_ROWS]]
    more = len(skipped) - len(notes)
    return [*notes, f"and {more} more rows"] if more else notes
