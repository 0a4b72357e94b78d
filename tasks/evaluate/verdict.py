"""Are the answers with a draft the answers without one? Token for token, at temperature 0.

Two servers may round differently, so where two tokens are equally likely either may be chosen. At the first
difference the target itself is asked for the log-probabilities of both tokens after the same prefix: within
one step of the logit's type it is a *tie*, beyond it a *violation*; what follows is not compared, since the
two answers go on from different texts. How often the target differs from itself that way is measured too
(A/A).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.evaluate.arm_models import Verdict
from tasks.evaluate.arm_record import Answer
from tasks.evaluate.measured import Lossless, PromptComparison
from tasks.evaluate.verdict_ties import Ruling, question

TIE_STEP = {"float32": 2.0**-19, "bfloat16": 2.0**-3, "float16": 2.0**-6}
"""One step of a logit between 16 and 32, where the largest logits of trained models lie."""
_ROUNDING = 1e-6
"""Log-probabilities are logits less one common number, computed and printed in float32."""
REPEATED_TOKENS = 32
"""An answer that ends in so many tokens of one short cycle has degenerated."""
LONGEST_CYCLE = 4


@dataclass(frozen=True)
class Noise:
    """How often the target alone differs from itself (A/A)."""

    compared: int = 0
    violations: int = 0

    @property
    def rate(self) -> float:
        """Violations as a share of the prompts compared; 0 if there was no A/A."""
        return self.violations / self.compared if self.compared else 0.0


def compare(
    number: int, plain: Answer, other: Answer, dtype: str, rulings: Mapping[str, Ruling], steps: int = 1
) -> PromptComparison:
    """Compare two answers to one prompt, up to the first difference.

    Args:
        number: Place of the prompt among those asked, from 1.
        rulings: What the target said about differences, by `Question.key`.
        steps: Steps of the logit's type that count as a tie.
    """
    asked = question(plain, other)
    if asked is None:
        return PromptComparison(
            prompt_id=plain.prompt_id, equal=True, tokens=len(plain.token_ids), prompt_number=number
        )
    ruling = rulings.get(asked.key)
    ours = ruling.plain_logprob if ruling else None
    theirs = ruling.other_logprob if ruling else None
    tie = None
    if asked.plain_token is None or asked.other_token is None:
        tie = False  # one answer ended without an end token where the other goes on: rounding cannot do that
    elif ours is not None and theirs is not None:
        tie = abs(ours - theirs) <= steps * TIE_STEP.get(dtype, 0.0) + _ROUNDING
    return PromptComparison(
        prompt_id=plain.prompt_id,
        equal=False,
        tokens=len(plain.token_ids),
        first_difference=asked.position,
        tie=tie,
        prompt_number=number,
        plain_token=asked.plain_token,
        arm_token=asked.other_token,
        plain_logprob=ours,
        arm_logprob=theirs,
    )


def compare_all(
    plain: Mapping[str, Answer],
    other: Mapping[str, Answer],
    dtype: str,
    rulings: Mapping[str, Ruling],
    steps: int = 1,
) -> list[PromptComparison]:
    """Token for token, for every prompt that both answered."""
    return [
        compare(number, answer, other[name], dtype, rulings, steps)
        for number, (name, answer) in enumerate(plain.items(), start=1)
        if name in other and not answer.error and not other[name].error
    ]


def violations(comparisons: Sequence[PromptComparison]) -> int:
    """Differences that are not shown to be ties."""
    return sum(not one.equal and not one.tie for one in comparisons)


def judge(comparisons: Sequence[PromptComparison], noise: Noise | None = None) -> Lossless:
    """`identical` if all are equal; `different` if violations are more frequent than in A/A.

    Nothing compared is `different`: losslessness was not shown.
    """
    allowed = (noise or Noise()).rate
    if not comparisons or violations(comparisons) > allowed * len(comparisons):
        return "different"
    return "identical" if all(one.equal for one in comparisons) else "within_noise"


def verdict(
    plain: Mapping[str, Answer],
    other: Mapping[str, Answer],
    comparisons: Sequence[PromptComparison],
    noise: Noise,
) -> Verdict:
    """The lossless verdict; an arm that decays into repetition is `different` whatever else holds."""
    decayed = newly_degenerated(plain, other)
    found = violations(comparisons)
    exact = sum(one.equal for one in comparisons)
    return Verdict(
        lossless="different" if decayed else judge(comparisons, noise),
        compared=len(comparisons),
        exact=exact,
        ties=len(comparisons) - exact - found,
        violations=found,
        allowed=noise.rate,
        differing=tuple(one for one in comparisons if not one.equal),
        decayed=tuple(decayed),
    )


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
