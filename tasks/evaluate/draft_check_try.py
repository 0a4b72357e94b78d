"""Faults of a draft that only a measurement shows: it accepts far less than it did in training.

Shapes do not tell a shifted anchor, layers in another order or a layer further, nor other rotary settings. So
the plausible corrections are tried on a few prompts, and one that restores the acceptance is named. None is
applied: what is measured is what an engine would serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.evaluate.draft_check import TrainingRecord, rope_difference
from tasks.evaluate.draft_check_chance import Suspicion, suspicion
from tasks.evaluate.draft_check_variants import ROTARY, corrected_models, other_layers, other_orders
from tasks.evaluate.draft_model import most_tokens
from tasks.evaluate.replay_pass import Blocks, Document, replay_document
from tasks.evaluate.walk import walk
from tasks.measure.acceptance import pool, tau
from tasks.measure.shares import share_of
from tasks.serve.target_config import read_target_config

TRIED_ANCHORS = 32
"""Answer tokens of a prompt that corrections are tried on."""
MIN_GAIN = 0.05
"""Tokens per round that a correction must add, and half of what was accepted before."""
STANDARD_ERRORS = 3.5
"""By chance once in 4,000 times, and up to 17 corrections are tried."""


@dataclass(frozen=True)
class Score:
    """What one variant of the draft accepts on the tried prompts."""

    tau: float
    hits: tuple[bool, ...]
    """Whether the first draft token is right, at the same places for every variant."""

    @property
    def first(self) -> float:
        """Share of first draft tokens that are right."""
        return sum(self.hits) / len(self.hits) if self.hits else 0.0

    def restores(self, before: Score) -> bool:
        """Whether this is so much better that chance is no explanation.

        Only places where one of the two is right and the other is not tell them apart (McNemar's test): what
        is easy or hard for both is no noise.
        """
        won = sum(new and not old for new, old in zip(self.hits, before.hits, strict=True))
        lost = sum(old and not new for new, old in zip(self.hits, before.hits, strict=True))
        gained = self.tau - before.tau
        return (
            gained > max(MIN_GAIN, (before.tau - 1) / 2)
            and won - lost > STANDARD_ERRORS * max(won + lost, 1) ** 0.5
        )


class Diagnoser:
    """Watches a replay and, if the draft accepts suspiciously little, looks for the reason.

    Args:
        model: The loaded draft.
        config: Configuration of the replay (`replay.work`).
    """

    def __init__(self, model: Any, config: dict[str, Any]):
        self._model = model
        self._options: dict[str, Any] = config["options"]
        self._target = Path(config["target_dir"])
        record = config.get("record")
        self._record = None if record is None else TrainingRecord.model_validate(record)
        self._first: list[tuple[int, int]] = []
        self._tokens: set[int] = set()
        self._documents: list[Document] = []

    def add(self, document: Document, blocks: Blocks) -> None:
        """Count a replayed document, and keep the first ones."""
        self._first.append((int(blocks.right[:, 0].sum()), int(blocks.known[:, 0].sum())))
        if len(self._tokens) < 2:
            self._tokens.update(blocks.tokens.unique().tolist())
        if len(self._documents) < self._options["check_prompts"]:
            self._documents.append(replace(document, starts=min(document.starts, TRIED_ANCHORS)))

    def verdict(self) -> dict[str, Any]:
        """The fields of `DraftVerdict`, and `notes`: what is no alarm, in sentences."""
        seen = share_of(self._first)
        found: dict[str, Any] = {
            "first": None,
            "expected": None,
            "trials": [],
            "diagnosis": None,
            "notes": [],
        }
        if seen is None:
            return {**found, "diagnosis": "nothing was drafted: every answer ends before a second token"}
        doubt = suspicion(seen, self._record, self._options, most_tokens(self._model))
        found |= {"first": seen.value, "expected": doubt.expected}
        if doubt.is_measured and not doubt.is_low:
            return found
        before = self._score(self._model, self._documents)
        trials = [(what, blame, self._score(*variant)) for what, blame, variant in self._variants()]
        rows = [{"what": what, "tau": score.tau, "first": score.first} for what, _, score in trials]
        said = {**found, "trials": rows, **self._said(doubt, before, trials)}
        return {**said, "notes": [*said["notes"], *self._rotary_notes(said["diagnosis"], before, trials)]}

    def _said(
        self, doubt: Suspicion, before: Score, trials: Sequence[tuple[str, str, Score]]
    ) -> dict[str, Any]:
        """`diagnosis` or `notes` of a draft whose corrections were tried."""
        best = max(trials, key=lambda trial: trial[2].tau, default=None)
        if best is not None and best[2].restores(before):
            what, blame, score = best
            named = (
                f"with {what} the same draft reaches {score.tau:.2f} instead of {before.tau:.2f} tokens per "
                f"round on {len(self._documents)} prompts: {blame}; {doubt.words}"
            )
            return {"diagnosis": named}
        if doubt.is_low and (len(self._tokens) == 1 or doubt.is_certain):
            return {"diagnosis": f"{doubt.words}; {self._unexplained(len(trials))}"}
        return {"notes": [doubt.note] if doubt.is_low else []}

    def _rotary_notes(
        self, diagnosis: str | None, before: Score, trials: Sequence[tuple[str, str, Score]]
    ) -> Iterator[str]:
        """Other rotary settings than the target's, which may be meant, and cost short contexts little."""
        rope = rope_difference(self._model.config.to_dict(), read_target_config(self._target))
        if rope is None or (diagnosis and ROTARY in diagnosis):
            return
        for what, _, score in trials:
            if what.startswith(ROTARY):
                yield (
                    f"its rotary settings are {rope[0]}, the target's {rope[1]}: right only if trained "
                    f"so; with the target's it reaches {score.tau:.2f} instead of {before.tau:.2f} tokens "
                    f"per round on {len(self._documents)} prompts"
                )

    def _unexplained(self, tried: int) -> str:
        if len(self._tokens) == 1:
            return f"it proposes token {next(iter(self._tokens))} everywhere: its weights say nothing"
        return (
            f"none of {tried} corrections (anchor, layers, order, rotary settings) changes that: it is "
            "untrained, or was trained for another target or for other prompts: compare its weights with "
            "those that were exported, and measure it on prompts like those that it was trained on"
        )

    def _variants(self) -> Iterator[tuple[str, str, tuple[Any, Sequence[Document]]]]:
        """What is changed, what is then wrong, and the model and the documents with that change."""
        for what, blame, changed in corrected_models(self._model, self._target):
            with changed:
                yield what, blame, (self._model, self._documents)
        for what, blame, documents in self._other_documents():
            yield what, blame, (self._model, documents)

    def _other_documents(self) -> Iterable[tuple[str, str, Sequence[Document]]]:
        yield from other_orders(self._model, self._documents)
        yield from other_layers(self._model, self._documents, self._target)

    def _score(self, model: Any, documents: Sequence[Document]) -> Score:
        limit = self._options["max_bytes"]
        done = [replay_document(model, one, None, limit) for one in documents]
        walks = [
            walk(blocks.tokens.tolist(), one.answer[: one.starts + 1].tolist())
            for blocks, one in zip(done, documents, strict=True)
        ]
        counts = pool(one.counts for one in walks)
        hits = tuple(hit for blocks in done for hit in blocks.right[:, 0][blocks.known[:, 0]].tolist())
        return Score(tau(counts.rounds, counts.accepted) or 1.0, hits)
