"""Why a canary's states do not explain its answer: other rows, layers and requests are tried."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.stream.head import OutputHead
from tasks.stream.probe import Probed

_UNKNOWN = (
    "is target.model the model that the server serves? Is the last captured layer num_hidden_layers? Was "
    "the server started with --generation-config vllm, so that no penalty changes answers? Does the engine "
    "support hidden states of this model?"
)


def cause_of(head: OutputHead, number: int, probed: Sequence[Probed]) -> str:
    """What is wrong with probe `number` if that can be told, else what to look at."""
    one = probed[number]
    last = one.states[:, -1]
    for place in range(one.states.shape[1] - 1):
        if _explains(head, one.states[:, place], one):
            return f"place {place} of the captured layers is the last layer: the order of the layers is wrong"
    for shift, words in ((-1, "before"), (1, "after")):
        if _explains(head, last, one, shift):
            return f"the states stand one row {words} their tokens: the engine's extraction is off by one"
    for other, another in enumerate(probed):
        if other != number and _explains(head, last, another):
            return f"the states of probe {number} are those of probe {other}: the engine mixes up requests"
    return _UNKNOWN


def _explains(head: OutputHead, last: Tensor, one: Probed, shift: int = 0) -> bool:
    """Whether rows `[T, H]`, `shift` places further on, explain the answer of `one` as far as they reach."""
    tokens = torch.tensor(one.answer.answer_ids)
    places = one.prompt_tokens - 1 + shift + torch.arange(len(tokens))
    inside = (places >= 0) & (places < len(last))
    if int(inside.sum()) < max(1, len(tokens) // 2):
        return False
    return bool(head.judge(last[places[inside]], tokens[inside]).greedy.all())
