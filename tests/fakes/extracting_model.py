"""The tokens and hidden states of a target that is deterministic per prompt and has no weights to run.

Each position's next token and states follow from the tokens up to it, as in a causal model: an answer that
was generated and the same answer prefilled give the same states, and another context gives others.
With a model folder, the last layer's state of a position points at the next token's row of `lm_head`, so
that `lm_head(norm(state))` is highest for the token that was returned, as with a real target.

Letters: T tokens, L captured layers (the last one before the final norm), H hidden size, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

_PERIOD = 1009
_MODULUS = 2**31 - 1
_NOISE = 0.01


class ExtractingModel:
    """What the fake target computes.

    Args:
        layers: L.
        hidden: H; with `folder` its config's.
        vocab: V; with `folder` its config's.
        folder: A target in Hugging Face format with `lm_head.weight`; rows of equal length.
    """

    def __init__(self, layers: int, hidden: int, vocab: int, folder: Path | None = None):
        self.layers = layers
        self.eos: int | None = None
        head = None
        if folder is not None:
            from safetensors.torch import load_file

            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            hidden, vocab, self.eos = config["hidden_size"], config["vocab_size"], config.get("eos_token_id")
            head = load_file(folder / "model.safetensors")["lm_head.weight"].float()
        self.hidden, self.vocab = hidden, vocab
        generator = torch.Generator().manual_seed(0)
        self._table = torch.randn(_PERIOD, layers, hidden, generator=generator)
        self._head = head

    def answer(self, prompt: Sequence[int], most: int, ignore_eos: bool) -> tuple[list[int], str]:
        """Generated tokens and finish reason; only an answer's first token is never the end token."""
        ids: list[int] = []
        context = self._contexts(prompt)[-1] if prompt else 0
        while len(ids) < most:
            token = self._next(context)
            if token == self.eos and not ids:
                token = (token + 1) % self.vocab
            ids.append(token)
            if token == self.eos and not ignore_eos:
                return ids, "stop"
            context = self._step(context, token)
        return ids, "length"

    def states(self, ids: Sequence[int]) -> torch.Tensor:
        """`[T, L, H]`, float32."""
        contexts = torch.tensor(self._contexts(ids), dtype=torch.int64)
        states = self._table[contexts % _PERIOD] + (contexts / _MODULUS)[:, None, None]
        if self._head is not None and len(ids):
            following = torch.tensor([*ids[1:], self._next(int(contexts[-1]))])
            states[:, -1] = self._head[following] + _NOISE * states[:, -1]
        return states

    def _next(self, context: int) -> int:
        return (context // 7) % self.vocab

    @staticmethod
    def _step(context: int, token: int) -> int:
        return (context * 48_271 + token + 1) % _MODULUS

    def _contexts(self, ids: Sequence[int]) -> list[int]:
        """A number for the tokens up to each position."""
        found, context = [], 1
        for token in ids:
            context = self._step(context, token)
            found.append(context)
        return found
