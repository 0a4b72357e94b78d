"""Do the texts with a draft decay? Repetition, emptiness and length, against two runs of the target alone.

A draft that is served well answers as one more run of the target would. Then it does not matter which of the
three answers to a prompt (draft, target, target again) is called the draft's: the labels are exchanged at
random within each prompt, and the share of exchanges that look at least as bad is the p-value. So what the
target does to itself (A/A) is allowed by construction, and no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from tasks.evaluate.arm_record import Answer, ArmRecord
from tasks.evaluate.verdict import degenerated

LEVEL = 0.01
"""A smaller p-value says that the texts differ. With three checks a good draft is held in 3 % at most."""
_EXCHANGES = 9999
Sign = Literal["more", "either"]
Floats = NDArray[np.float64]


class TextCheck(BaseModel):
    """One property of the answers, on the prompts that all runs answered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: Literal["repetition", "emptiness", "length"]
    prompts: int
    draft: float
    """Share of the draft's answers that repeat or are empty; their mean length in tokens."""
    target: float
    """The same of the target alone, over its runs."""
    p_value: float
    differs: bool


class TextChecks(BaseModel):
    """All of them, and against how many runs of the target alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: int
    """1, or 2 where the target answered again (A/A)."""
    checks: tuple[TextCheck, ...]


def text_checks(plain: ArmRecord, draft: ArmRecord, again: ArmRecord | None, seed: int) -> TextChecks | None:
    """Compare the answers of the arm that is decided about; None where no prompt was answered by both.

    Args:
        again: The target's second answers. It may have been asked fewer prompts: each is compared with the
            runs that answered it.
        seed: Seed of the exchanges.
    """
    runs = [plain, *([again] if again is not None else [])]
    table = [
        [answer, *others]
        for name, answer in draft.answers.items()
        if not answer.error and (others := _answers(name, runs))
    ]
    if not table:
        return None
    return TextChecks(
        runs=len(runs),
        checks=(
            _check("repetition", [[float(degenerated(a.token_ids)) for a in row] for row in table], seed),
            _check("emptiness", [[float(_is_empty(a)) for a in row] for row in table], seed),
            _check("length", [[float(len(a.token_ids)) for a in row] for row in table], seed),
        ),
    )


def _answers(name: str, runs: Sequence[ArmRecord]) -> list[Answer]:
    return [run.answers[name] for run in runs if name in run.answers and not run.answers[name].error]


def _is_empty(answer: Answer) -> bool:
    """Nothing, or the end token alone."""
    return len(answer.token_ids) <= (answer.finish_reason == "stop")


def _check(
    what: Literal["repetition", "emptiness", "length"], rows: Sequence[Sequence[float]], seed: int
) -> TextCheck:
    p_value = exchange_p(rows, "either" if what == "length" else "more", seed)
    target = [value for row in rows for value in row[1:]]
    return TextCheck(
        what=what,
        prompts=len(rows),
        draft=float(np.mean([row[0] for row in rows])),
        target=float(np.mean(target)),
        p_value=p_value,
        differs=p_value < LEVEL,
    )


def exchange_p(rows: Sequence[Sequence[float]], sign: Sign, seed: int) -> float:
    """Share of exchanges within each row whose sum of `first - mean of the others` is at least as large.

    Args:
        rows: One row for each prompt: the draft's value, then those of the target's runs.
        sign: `more`: only a draft with more counts; `either`: also one with less.
    """
    changing = [row for row in rows if len(set(row)) > 1]
    if not changing:
        return 1.0
    generator = np.random.default_rng([seed, len(changing)])
    observed, drawn = 0.0, np.zeros(_EXCHANGES)
    for row in changing:
        values = np.asarray(row)
        apart = (len(values) * values - values.sum()) / (len(values) - 1)
        observed += float(apart[0])
        drawn += generator.choice(apart, size=_EXCHANGES)
    tolerance = 1e-9 * max(1.0, float(np.abs(drawn).max()))  # sums in another order round differently
    worse = drawn >= observed - tolerance if sign == "more" else np.abs(drawn) >= abs(observed) - tolerance
    return (1 + int(worse.sum())) / (1 + _EXCHANGES)
