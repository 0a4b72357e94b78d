"""Held-out evaluation: fixed batches and fixed anchors, so that epochs compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from tasks.measure.shares import share_of
from tasks.stream.log import IndexEntry
from tasks.train import adapter
from tasks.train.checkpoint import Position
from tasks.train.data import CaptureReader, make_batch, pack, spaced_anchors
from tasks.train.loss import BlockOutcome, LossWeights, MetricSums, outcome_sums
from tasks.train.validation import finished, validation_sums


class HeldOut:
    """Measures a draft on the held-out split.

    Args:
        entries: Samples of the held-out split.
        batch_tokens: Packed tokens in a batch at most.
        max_anchors: Anchors over all batches at most, spread evenly.
    """

    def __init__(
        self,
        reader: CaptureReader,
        entries: Sequence[IndexEntry],
        batch_tokens: int,
        max_anchors: int,
        device: torch.device,
    ):
        self._reader = reader
        self._device = device
        plan = pack([entry.tokens for entry in entries], batch_tokens, seed=0, epoch=0)
        self._groups = [[entries[k] for k in members] for members in plan]
        trainable = sum(entry.trainable_tokens for entry in entries)
        self._stride = max(1, -(-trainable // max_anchors))

    def measure(self, model: Any, weights: LossWeights) -> dict[str, float]:
        """Metrics over all fixed anchors; names are upstream's (`eal`, `accept_len`, ...) where it has them.

        The others stand in `validation`. The loss terms are means over batches, as upstream averages them.
        Beside them how sure `conditional_1_acc` is: `held_out_blocks`, `held_out_conversations`, and its
        standard error over conversations, `conditional_1_se`.
        """
        model.eval()
        sums = MetricSums()
        first: list[tuple[int, int]] = []
        for group in self._groups:
            batch = make_batch(self._reader, group).to(self._device)
            anchors = spaced_anchors(batch, self._stride)
            if len(anchors):
                outcome = adapter.run_blocks(model, batch, anchors, weights)
                sums.add(outcome_sums(outcome) | validation_sums(outcome))
                first += first_tokens(outcome, batch.document_ids[anchors])
        return finished(sums.means()) | certainty(first)


def first_tokens(outcome: BlockOutcome, documents: torch.Tensor) -> list[tuple[int, int]]:
    """Right and all first draft tokens of each document.

    Args:
        documents: `[N]`, the document of each block.
    """
    valid = outcome.valid[:, outcome.first_slot]
    right = outcome.correct[:, outcome.first_slot][valid].tolist()
    hits, places = Counter[int](), Counter[int]()
    for document, hit in zip(documents[valid].tolist(), right, strict=True):
        hits[document] += int(hit)
        places[document] += 1
    return [(hits[document], count) for document, count in places.items()]


def certainty(first: Sequence[tuple[int, int]]) -> dict[str, float]:
    """How sure the share of right first tokens is; empty where nothing was drafted."""
    share = share_of(first)
    if share is None:
        return {}
    found = {"held_out_blocks": float(share.places), "held_out_conversations": float(share.conversations)}
    return found if share.error is None else {**found, "conditional_1_se": share.error}


class HeldOutSet(Protocol):
    """The held-out samples, which may still be coming in."""

    def is_complete(self, place: Position) -> bool:
        """Whether they are all there: until then nothing is measured, so that all measurements compare."""

    def measure(self) -> HeldOut | None:
        """Their measurement; None if there are none."""


class CompleteSet:
    """The held-out samples of a complete log."""

    def __init__(self, held_out: HeldOut | None):
        self._held_out = held_out

    def is_complete(self, place: Position) -> bool:
        return True

    def measure(self) -> HeldOut | None:
        return self._held_out


class ArrivingSet:
    """The held-out samples of a growing log.

    Whether they are complete depends on the order of capture and on the place in it, not on the moment, so
    that a resumed run measures at the same steps.

    Args:
        complete: Whether all were captured before the place that training has reached.
        entries: Those that are there.
        make: Makes their measurement.
    """

    def __init__(
        self,
        complete: Callable[[Position], bool],
        entries: Callable[[], Sequence[IndexEntry]],
        make: Callable[[Sequence[IndexEntry]], HeldOut],
    ):
        self._complete = complete
        self._entries = entries
        self._make = make
        self._made: HeldOut | None = None

    def is_complete(self, place: Position) -> bool:
        return self._complete(place)

    def measure(self) -> HeldOut | None:
        entries = sorted(self._entries(), key=lambda entry: entry.i)
        if self._made is None and entries:
            self._made = self._make(entries)
        return self._made
