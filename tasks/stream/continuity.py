"""Whether the captured layers of a sample belong to the same tokens.

Each layer adds to the residual stream, so that neighbouring captured layers stay similar row by row, and
are not similar to those of other rows. On the laptop's target the mean over a sample's answer rows is at
least 0.23 for its own layers. Where one of the two layers is another sample's it is below 0.1, but for two
answers that are alike (0.17 seen): single samples may pass, many do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST_ROWS = 8
"""Rows below which the mean says little."""
_CLEAR = 0.3
_BROKEN = 0.15


def layer_links(states: Tensor) -> tuple[float, ...]:
    """Similarity of each captured layer to the next one, `L - 1` values in -1..1.

    Args:
        states: `[T, L, H]` of one sample. What all rows share is taken out, dimension by dimension.
    """
    rows = states.float().transpose(0, 1)
    rows = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True).clamp(min=1e-6)
    similar = torch.nn.functional.cosine_similarity(rows[:-1], rows[1:], dim=-1)
    return tuple(similar.mean(-1).tolist())


def broken_links(links: Sequence[float], usual: Sequence[float]) -> list[int]:
    """Places where `links` of a sample are at chance although they are `usual`ly clear.

    Args:
        usual: Links of samples that are known to be good; a target whose layers are not similar to begin
            with, or one without such a sample (empty), is not judged.
    """
    pairs = zip(links, usual, strict=False)
    return [place for place, (own, known) in enumerate(pairs) if known >= _CLEAR and own < _BROKEN]


def mean_links(samples: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Mean of each link over samples; empty without samples."""
    return tuple(sum(column) / len(column) for column in zip(*samples, strict=True))
