"""Held-out evaluation: fixed batches and fixed anchors, so that epochs compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tasks.stream.log import IndexEntry
from tasks.train import adapter
from tasks.train.data import CaptureReader, make_batch, pack, spaced_anchors
from tasks.train.loss import LossWeights, MetricSums, outcome_sums


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
        """Metrics over all fixed anchors; names are upstream's (`eal`, `accept_len`, ...).

        The three loss terms are means over batches, as upstream averages them.
        """
        model.eval()
        sums = MetricSums()
        for group in self._groups:
            batch = make_batch(self._reader, group).to(self._device)
            anchors = spaced_anchors(batch, self._stride)
            if len(anchors):
                sums.add(outcome_sums(adapter.run_blocks(model, batch, anchors, weights)))
        return sums.means()
