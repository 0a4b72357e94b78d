"""What became of the rows: figures for the plan and the reports, without any text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tasks.prompts.prompt import Prompt

CHARS_PER_TOKEN = 4
"""A rough figure for English; only the target's tokenizer knows, and a plan does not load it."""


@dataclass(frozen=True)
class Spread:
    """Mean, median, 90th percentile and largest of a figure; zeros for none."""

    mean: int = 0
    p50: int = 0
    p90: int = 0
    max: int = 0


@dataclass(frozen=True)
class SideCounts:
    """Rows of the training or of the evaluation sources."""

    rows: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)
    """Unusable rows by kind."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Usable prompts that were left out, by reason."""
    unanswered: Mapping[str, int] = field(default_factory=dict)
    """Logged requests without an answer that can be used, by reason; they are prompts all the same."""
    conversations: int = 0
    prompts: int = 0
    chars: Spread = Spread()
    """Characters of a prompt, all turns."""
    turns: Spread = Spread()
    """Turns of a prompt, the system's included."""


@dataclass(frozen=True)
class PromptCounts:
    """What `load_prompts` read, dropped and kept."""

    train: SideCounts = SideCounts()
    evaluate: SideCounts = SideCounts()
    held_out: int = 0
    """Prompts in the held-out split."""
    leaks: int = 0
    """Pairs of held-out and training texts more alike than `prompts.max_similarity`: always 0."""
    recorded: int = 0
    """Training prompts (held-out ones included) with a recorded answer."""
    recorded_tokens: int = 0
    """Tokens of those answers that are in the train split: logged, or estimated from their characters."""
    recorded_tokens_estimated: bool = False
    """Some of them were not logged."""


def spread_of(values: Sequence[int]) -> Spread:
    """The mean, rounded; median, 90th percentile and largest, each one of the values."""
    if not values:
        return Spread()
    p50, p90 = np.percentile(np.array(values), (50, 90), method="higher")
    return Spread(round(sum(values) / len(values)), int(p50), int(p90), max(values))


def chars_of(prompt: Prompt) -> int:
    """Characters of all turns."""
    return sum(len(message.content) for message in prompt.messages)


def answer_tokens(prompts: Sequence[Prompt]) -> tuple[int, bool]:
    """Tokens of the recorded answers, and whether some had to be estimated."""
    total, estimated = 0, False
    for prompt in prompts:
        answer = prompt.recorded
        if answer is None:
            continue
        known = answer.completion_tokens or len(answer.token_ids or ())
        estimated |= not known
        total += known or max(1, len(answer.text + (answer.reasoning or "")) // CHARS_PER_TOKEN)
    return total, estimated


def side_counts(
    rows: int,
    bad: Mapping[str, int],
    dropped: Mapping[str, int],
    unanswered: Mapping[str, int],
    conversations: int,
    prompts: Sequence[Prompt],
) -> SideCounts:
    """Figures of one side from what was read and what is left."""
    return SideCounts(
        rows=rows,
        bad=dict(Counter(bad).most_common()),
        dropped=dict(Counter(dropped).most_common()),
        unanswered=dict(Counter(unanswered).most_common()),
        conversations=conversations,
        prompts=len(prompts),
        chars=spread_of([chars_of(prompt) for prompt in prompts]),
        turns=spread_of([len(prompt.messages) for prompt in prompts]),
    )
