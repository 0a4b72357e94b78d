"""Faults of a draft that its stored tensors show: a stale vocabulary map, another target's head, no numbers.

A pruned draft carries `d2t` (target id minus draft id), `t2d` (which target ids it has) and the rows of the
target's head for them. Each was made from the others; where they disagree, drafted tokens are other tokens
than the weights mean, and nothing is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from tasks.errors import StageInputError
from tasks.evaluate.replay_target import head_rows

SAMPLED_ROWS = 64
MAPS = ("d2t", "t2d", "lm_head.weight")


def check_weights(draft_dir: Path, target_dir: Path) -> list[str]:
    """Refuse a draft whose tensors contradict one another or the target's head.

    Returns:
        What is unusual and allowed, in words.

    Raises:
        StageInputError: Naming the tensors and both values.
    """
    kept: dict[str, Tensor] = {}
    for name, value in stored(draft_dir):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise _wrong(draft_dir, f"its tensor {name} holds values that are not finite")
        if name in MAPS:
            kept[name] = value
    if "d2t" not in kept and "t2d" not in kept:
        return []
    for name in MAPS:
        if name not in kept:
            raise _wrong(draft_dir, f"its vocabulary is pruned, but it lacks {name}")
    ids = checked_ids(draft_dir, kept["d2t"].long(), kept["t2d"].bool(), len(kept["lm_head.weight"]))
    return check_rows(draft_dir, kept["lm_head.weight"], ids, head_rows(target_dir)[0])


def stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every stored tensor."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                yield name, tensors.get_tensor(name)


def checked_ids(folder: Path, d2t: Tensor, t2d: Tensor, rows: int) -> Tensor:
    """`[D]` target id of each draft id, after both maps and the head were compared.

    Raises:
        StageInputError: They disagree.
    """
    ids = d2t + torch.arange(len(d2t))
    if len(ids) != rows:
        raise _stale(folder, f"d2t has {len(ids)} entries, lm_head.weight {rows} rows")
    if int(ids.min()) < 0 or int(ids.max()) >= len(t2d):
        outside = int(ids.max()) if int(ids.max()) >= len(t2d) else int(ids.min())
        raise _stale(folder, f"d2t names token {outside}, t2d has {len(t2d)} tokens")
    if len(ids.unique()) != len(ids):
        raise _stale(folder, f"d2t names {len(ids)} tokens, only {len(ids.unique())} of them different")
    named = torch.zeros_like(t2d)
    named[ids] = True
    differ = (named != t2d).nonzero().flatten()
    if len(differ):
        token = int(differ[0])
        raise _stale(
            folder,
            f"d2t names {len(ids)} tokens, t2d {int(t2d.sum())}, and they differ in {len(differ)}: "
            f"token {token} is in {'d2t' if bool(named[token]) else 't2d'} only",
        )
    return ids


def check_rows(folder: Path, head: Tensor, ids: Tensor, target: Tensor) -> list[str]:
    """Compare the draft's head `[D, H]` with the target's rows of the same tokens.

    Rounding is allowed for. A head that was trained on has other rows that still are nearest to their own
    tokens; one whose map is stale has the rows of other tokens.
    """
    if head.shape[1] != target.shape[1] or int(ids.max()) >= len(target):
        raise _stale(
            folder,
            f"its head has rows of {head.shape[1]} for tokens up to {int(ids.max())}, the target's head "
            f"{len(target)} rows of {target.shape[1]}",
        )
    wanted = target[ids]
    off = (head.float() - wanted.float()).abs().amax(dim=1) > _tolerance(head, wanted)
    wrong = off.nonzero().flatten()
    if not len(wrong):
        return []
    picked = wrong[:: max(1, len(wrong) // SAMPLED_ROWS)][:SAMPLED_ROWS]
    nearest = _nearest(head[picked], target)
    own = nearest == ids[picked]
    if float(own.float().mean()) > 0.5:
        return [
            f"{len(wrong):,} of {len(ids):,} rows of the draft's head differ from the target's: trained on"
        ]
    row, place = int(picked[~own][0]), int((~own).nonzero()[0])
    raise _stale(
        folder,
        f"{len(wrong):,} of {len(ids):,} rows of lm_head.weight are not the target's rows for d2t: draft id "
        f"{row} stands for token {int(ids[row])}, its row is nearest to that of token {int(nearest[place])}",
    )


def _tolerance(head: Tensor, wanted: Tensor) -> Tensor:
    """`[D]`: a step of the coarser type at the row's largest value."""
    step = max(torch.finfo(head.dtype).eps, torch.finfo(wanted.dtype).eps)
    return wanted.float().abs().amax(dim=1).clamp(min=1e-12) * step


def _nearest(rows: Tensor, target: Tensor) -> Tensor:
    """`[R]` token whose row of the target points most in each row's direction."""
    wanted = torch.nn.functional.normalize(rows.float(), dim=1)
    best = torch.full((len(rows),), -2.0)
    token = torch.zeros(len(rows), dtype=torch.long)
    for start in range(0, len(target), 1 << 14):
        part = torch.nn.functional.normalize(target[start : start + (1 << 14)].float(), dim=1)
        value, place = (wanted @ part.T).max(dim=1)
        better = value > best
        best, token = best.where(~better, value), token.where(~better, place + start)
    return token


def _stale(folder: Path, what: str) -> StageInputError:
    return _wrong(folder, f"its vocabulary map is stale: {what}")


def _wrong(folder: Path, what: str) -> StageInputError:
    return StageInputError(
        f"the draft cannot be right for this target: {what}",
        where=str(folder),
        hint="export or download the draft again, or measure it with the target that it was trained for",
    )
