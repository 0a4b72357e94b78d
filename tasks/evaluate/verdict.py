"""Are the answers with a draft the answers without one? Token for token, at temperature 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.evaluate.live import Answer
from tasks.evaluate.models import Lossless, PromptComparison

TIE_LOGPROB = {"float32": 0.0, "bfloat16": 0.25, "float16": 0.03125}
"""Largest difference of two log-probabilities that rounding explains.

Logits of 16 to 32 have steps of 0.125 in bfloat16 and 0.0156 in float16; the two runs may each be one
step off. float32 has no ties, so there every difference counts.
"""
REPEATED_TOKENS = 32
"""An answer that ends in so many tokens of one short cycle has degenerated."""
LONGEST_CYCLE = 4


def compare(plain: Answer, draft: Answer, dtype: str) -> PromptComparison:
    """Compare two answers to one prompt; at the first difference the plain arm says tie or violation."""
    left, right = plain.token_ids, draft.token_ids
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    if first is None and len(left) != len(right):
        first = min(len(left), len(right))
    return PromptComparison(
        prompt_id=plain.prompt_id,
        equal=first is None,
        tokens=len(left),
        first_difference=first,
        tie=None if first is None else _is_tie(plain, draft, first, dtype),
    )


def _is_tie(plain: Answer, draft: Answer, first: int, dtype: str) -> bool:
    tolerance = TIE_LOGPROB.get(dtype, 0.0)
    if tolerance == 0.0 or first >= min(len(plain.token_ids), len(draft.token_ids), len(plain.top_logprobs)):
        return False
    step = plain.top_logprobs[first]
    ours, theirs = step.get(plain.token_ids[first]), step.get(draft.token_ids[first])
    return ours is not None and theirs is not None and abs(ours - theirs) <= tolerance


def judge(comparisons: Sequence[PromptComparison]) -> Lossless:
    """`identical` if all are equal, `within_noise` if every difference is a tie, else `different`.

    Nothing compared is `different`: losslessness was not shown.
    """
    if not comparisons or any(not one.equal and not one.tie for one in comparisons):
        return "different"
    return "identical" if all(one.equal for one in comparisons) else "within_noise"


def degenerated(tokens: Sequence[int]) -> bool:
    """Whether an answer ends in the same few tokens over and over."""
    tail = list(tokens[-REPEATED_TOKENS:])
    if len(tail) < REPEATED_TOKENS:
        return False
    return any(tail[cycle:] == tail[:-cycle] for cycle in range(1, LONGEST_CYCLE + 1))


def newly_degenerated(plain: Mapping[str, Answer], draft: Mapping[str, Answer]) -> list[str]:
    """Prompts whose answer degenerates with the draft and does not without."""
    return [
        name
        for name, answer in draft.items()
        if degenerated(answer.token_ids) and name in plain and not degenerated(plain[name].token_ids)
    ]
