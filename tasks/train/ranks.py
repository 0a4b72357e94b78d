"""The processes that train together: who they are, and what they say and send to each other.

Rank 0 leads: it alone reads captures, measures, writes `metrics.jsonl` and decides. The others follow its
words (`tell`, `hear`), which travel beside the gradients, over gloo, so that they need no GPU.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from profiles.training import Scale
from tasks.errors import StageInputError
from tasks.train.data import Batch

_untyped: Any = dist
"""Functions of torch.distributed that have no types."""
_PATIENCE = timedelta(days=7)
"""Followers wait as long as the leader waits for captures; who stalls is ended by the flow's watchdog."""
_GRADIENTS = timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Args:
        rank: Number of this process, from 0.
        size: How many there are.
        words: Group over which they talk; None for one process.
        saving: Group of the threads that write checkpoints; None for one process.
    """

    rank: int = 0
    size: int = 1
    words: Any = None
    saving: Any = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def tell(self, word: Sequence[Any]) -> None:
        """Say something to all followers; only the leader does."""
        if self.size > 1:
            dist.broadcast_object_list([tuple(word)], src=0, group=self.words)

    def hear(self) -> tuple[Any, ...]:
        """Wait for the leader's next word."""
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self.words)
        word: tuple[Any, ...] = heard[0]
        return word

    def sums(self, *values: float) -> list[float]:
        """Each value, summed over the ranks."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        _untyped.all_reduce(total, group=self.words)
        return [float(value) for value in total]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value on the leader, in order of rank; nothing on the others."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(value, found, dst=0, group=self.words)
        return found or []

    def send_batch(self, batch: Batch, rank: int) -> None:
        """Hand a batch to a follower, which calls `receive_batch`; its tensors lie on this rank's device."""
        tensors, rest = _parts(batch)
        shapes = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
        head = torch.frombuffer(bytearray(pickle.dumps((shapes, rest))), dtype=torch.uint8)
        dist.send(torch.tensor([len(head)]), rank, group=self.words)
        dist.send(head, rank, group=self.words)
        for value in tensors.values():
            if value.numel():
                dist.send(value.contiguous().view(-1).view(torch.uint8), rank)

    def receive_batch(self, device: torch.device) -> Batch:
        """A batch that the leader sends."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, 0, group=self.words)
        head = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(head, 0, group=self.words)
        shapes, rest = pickle.loads(head.numpy().tobytes())
        tensors = {
            name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()
        }
        for value in tensors.values():
            if value.numel():
                dist.recv(value.view(-1).view(torch.uint8), 0)
        return Batch(**tensors, **rest)

    def leave(self) -> None:
        """Close all groups; the other ranks must be about to do the same."""
        if self.size > 1:
            dist.destroy_process_group()


def _parts(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in values.items() if name not in tensors}


def local_rank() -> int:
    """Number of this process on its node, as torchrun says; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join(scale: Scale, device: torch.device) -> Ranks:
    """Meet the other ranks that torchrun started; a process without torchrun trains alone.

    Raises:
        StageInputError: There are more or fewer processes than the profile says.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != scale.world:
        raise StageInputError(
            f"{started} processes were started for {scale.world} ranks "
            f"(train.scale.ranks {scale.ranks} x train.scale.nodes {scale.nodes})",
            where="train.scale",
            hint="start as many with torchrun, or none without it; the pipeline does that by itself",
        )
    if started == 1:
        return Ranks()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=_GRADIENTS)
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    words = _untyped.new_group(backend="gloo", timeout=_PATIENCE)
    saving = _untyped.new_group(backend="gloo", timeout=_PATIENCE)
    return replace(ranks, words=words, saving=saving)
