"""Which evaluation prompts are states of one conversation: resamples draw conversations, not prompts.

A log holds a conversation once for each of its requests. A later request's tokens begin with all tokens of an
earlier one, up to where the answer began: so the prompts themselves say what belongs together.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.evaluate.assemble import ReplayRow, by_domain
from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import by_conversation


def conversations(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Conversation of each prompt: the place of its shortest state.

    Args:
        prompts: Token ids of the prompts.
    """
    found = [0] * len(prompts)
    start = -1
    # In lexicographic order whatever begins with a prompt follows it without a gap.
    for place in sorted(range(len(prompts)), key=lambda place: tuple(prompts[place])):
        first = prompts[start] if start >= 0 else ()
        if start < 0 or tuple(prompts[place][: len(first)]) != tuple(first):
            start = place
        found[place] = start
    return found


def drawn_together(rows: Sequence[ReplayRow], length: int) -> dict[str, list[PromptCounts]]:
    """Counts of walks of `length` answer tokens by domain, pooled over the prompts of each conversation."""
    domains = by_domain(rows, length)
    prompts: dict[str, list[tuple[int, ...]]] = {}
    for row in rows:
        prompts.setdefault(row.domain, []).append(row.prompt_ids)
    return {name: by_conversation(counts, conversations(prompts[name])) for name, counts in domains.items()}
