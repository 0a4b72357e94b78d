"""Whether the states of one sample explain its own tokens.

A sample whose states belong to another one, to other rows or to another layer has the right shape, finite
values and the right token ids. It does not have states under which its tokens are likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.stream.head import OutputHead
from tasks.stream.reasons import NOT_EXPLAINED
from tasks.stream.sample import SampleRejected

MAX_ROWS = 16
"""Rows of one sample that are looked at, spread over its answer."""
# Mean surprise over 16 rows of the laptop's target: at most 1.7 nats where tokens were drawn from the states
# at temperatures 0 to 2, at least 3.9 with rows moved by one, 7.9 with another sample's. Few rows vary more.
_SURPRISE = 2.0
_SURPRISE_ONE_ROW = 6.0
# Rows that may miss the greedy token: a request that the engine had to compute twice rounds differently.
_MISSES = 0.1
_SKETCH_ROWS = 2048


@dataclass(frozen=True)
class Rows:
    """The rows of a sample that predicted answer tokens, and these tokens."""

    states: Tensor
    """`[N, H]` last layer."""
    tokens: Tensor
    """`[N]`, the token that came after each row."""


def answer_rows(states: Tensor, prompt_tokens: int, answer_ids: tuple[int, ...], most: int | None) -> Rows:
    """Rows of `states [T, L, H]` that predicted the answer; `most` of them, evenly spread (None: all).

    Row `prompt_tokens - 1 + k` predicted answer token k.
    """
    count = min(len(answer_ids), states.shape[0] - prompt_tokens + 1)
    wanted = count if most is None else min(most, count)
    places = torch.linspace(0, count - 1, wanted).round().long() if wanted > 0 else torch.zeros(0).long()
    return Rows(states[prompt_tokens - 1 + places, -1], torch.tensor(answer_ids)[places])


@dataclass(frozen=True)
class Explained:
    """How well one sample's last layer explains its answer."""

    rows: int
    misses: int
    """Rows whose largest logit is another token's, ties apart."""
    surprise: float
    """Mean over the rows, nats above what sampling gives."""
    greedy: bool

    @property
    def good(self) -> bool:
        """Whether the states can be those of the sample."""
        if self.rows == 0:
            return True
        if self.surprise > _SURPRISE + _SURPRISE_ONE_ROW / self.rows**0.5:
            return False
        return not self.greedy or self.misses <= max(1.0, _MISSES * self.rows)


def explain(head: OutputHead, samples: Sequence[Rows], temperature: float | None) -> list[Explained]:
    """Judge rows of samples with the whole head, which is read once for all of them.

    Args:
        temperature: Of the answers' sampling; None where it is not known, e.g. of recorded answers.
    """
    if not samples:
        return []
    states = torch.cat([rows.states for rows in samples])
    tokens = torch.cat([rows.tokens for rows in samples])
    judged = head.judge(states, tokens, 1.0 if temperature is None else temperature)
    counts = [len(rows.tokens) for rows in samples]
    parts = zip(judged.greedy.split(counts), judged.surprise.split(counts), strict=True)
    return [
        Explained(
            rows=len(greedy),
            misses=int((~greedy).sum()),
            surprise=float(surprise.mean()) if len(greedy) else 0.0,
            greedy=temperature == 0,
        )
        for greedy, surprise in parts
    ]


class QuickCheck:
    """A check that every captured sample can afford: against random rows of the head, not all of them.

    A greedy token's logit is the largest of all, so also the largest of any few; a drawn one's is as large as
    states of this kind make it. Costs `16 x 2,064 x H` multiplications a sample. Usable from several threads.

    Args:
        head: The target's head; its chosen rows are kept in memory, float32.
        seed: Chooses the rows.
    """

    def __init__(self, head: OutputHead, seed: int = 0):
        self._head = head
        count = min(_SKETCH_ROWS, head.vocab_size)
        chosen = torch.randperm(head.vocab_size, generator=torch.Generator().manual_seed(seed))[:count]
        self._rows = head.rows(chosen.sort().values)

    def __call__(
        self, states: Tensor, prompt_tokens: int, answer_ids: tuple[int, ...], temperature: float | None
    ) -> None:
        """Check `states [T, L, H]` of a sample.

        Raises:
            SampleRejected: They are not the states that made this answer.
        """
        rows = answer_rows(states, prompt_tokens, answer_ids, MAX_ROWS)
        count = len(rows.tokens)
        if count == 0:
            return
        x = self._head.normed(rows.states)
        others = self._head.logits(x @ self._rows.T)
        own = self._head.logits((x * self._head.rows(rows.tokens)).sum(-1))
        most = torch.maximum(others.amax(-1), own)
        heat = temperature or 1.0
        # Random rows mostly miss the likeliest tokens, so this is seldom above the mean over all rows.
        usual = ((others / heat).softmax(-1) * others).sum(-1)
        found = Explained(
            rows=count,
            misses=int((most - own > self._head.tie(most)).sum()),
            surprise=float(((usual - own) / heat).mean()),
            greedy=temperature == 0,
        )
        if not found.good:
            raise SampleRejected(
                NOT_EXPLAINED,
                f"another token is likelier at {found.misses} of {count} rows; the answer is "
                f"{found.surprise:.1f} nats off what these states make likely",
            )
