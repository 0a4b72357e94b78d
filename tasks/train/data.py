"""Captures as packed batches: documents side by side, none split, none padded, none mixed.

The order of documents depends on seed and epoch only, so that a resumed run continues where it stopped.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tasks.errors import StageInputError
from tasks.stream.log import HiddenStateLog, IndexEntry
from tasks.train.checkpoint import Position
from tasks.train.prefetch import Prefetch

# Packing looks at this many open batches before it starts another one.
_OPEN_BATCHES = 8


@dataclass(frozen=True)
class Batch:
    """Documents packed side by side.

    Args:
        token_ids: `[S]` int64.
        aux_states: `[S, L * H]` states of the auxiliary layers, layer after layer.
        last_states: `[S, H]` last layer's output before the final norm.
        loss_mask: `[S]` bool, True on answer tokens.
        position_ids: `[S]` int64, from 0 in each document.
        document_ids: `[S]` int64, rising.
    """

    token_ids: Tensor
    aux_states: Tensor
    last_states: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    document_ids: Tensor

    @property
    def tokens(self) -> int:
        return int(self.token_ids.shape[0])

    def to(self, device: torch.device) -> Batch:
        return replace(
            self, **{name: getattr(self, name).to(device, non_blocking=True) for name in self.__annotations__}
        )

    def block_spans(self, anchors: Tensor) -> tuple[tuple[int, int, int, int], ...]:
        """Per document `(first token, end token, first block, end block)` for rising `anchors [N]`."""
        sizes = torch.unique_consecutive(self.document_ids, return_counts=True)[1]
        ends = sizes.cumsum(0)
        last = torch.searchsorted(anchors, ends).tolist()
        ends_list = ends.tolist()
        return tuple(zip([0, *ends_list], ends_list, [0, *last], last, strict=False))

    def anchor_positions(self) -> Tensor:
        """Positions at which a block may start: every answer token."""
        return self.loss_mask.nonzero().squeeze(-1)


def pack(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of the documents of each batch, in an order that depends on seed and epoch only.

    A document longer than `batch_tokens` stands alone in its batch.
    """
    order = list(range(len(lengths)))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    done: list[list[int]] = []
    open_batches: list[tuple[int, list[int]]] = []
    for document in order:
        length = lengths[document]
        for place, (used, members) in enumerate(open_batches):
            if used + length <= batch_tokens:
                open_batches[place] = (used + length, [*members, document])
                break
        else:
            open_batches.append((length, [document]))
            if len(open_batches) > _OPEN_BATCHES:
                fullest = max(range(len(open_batches)), key=lambda place: open_batches[place][0])
                done.append(open_batches.pop(fullest)[1])
    return done + [members for _, members in open_batches]


class CaptureReader:
    """Reads and verifies samples, keeping up to `cache_bytes` of them in memory.

    Args:
        log: The hidden-state log.
        layers: Captured layers L + 1 that the log must have (auxiliary ones, then the last).
        hidden_size: H.
        dtype: Type of the states handed out.
    """

    def __init__(
        self, log: HiddenStateLog, layers: int, hidden_size: int, dtype: torch.dtype, cache_bytes: int
    ):
        self._log = log
        self._shape = (layers, hidden_size)
        self._dtype = dtype
        self._room = cache_bytes
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}
        self._lock = threading.Lock()

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's states, as they are handed out."""
        return self._shape[0] * self._shape[1] * self._dtype.itemsize

    def load(self, entry: IndexEntry) -> tuple[Tensor, Tensor]:
        """`hidden_states [T, L + 1, H]` and `token_ids [T]`; may be called by several threads.

        Raises:
            StageInputError: The sample has other layers or another width than the draft needs.
        """
        with self._lock:
            if entry.i in self._cache:
                return self._cache[entry.i]
        states, ids = self._log.load(entry)
        if tuple(states.shape[1:]) != self._shape:
            raise StageInputError(
                f"sample {entry.i} has states of shape {tuple(states.shape)}, the draft needs "
                f"[{entry.tokens}, {self._shape[0]}, {self._shape[1]}]",
                where=f"{self._log.folder}/hs_{entry.i}.safetensors",
                hint="target.aux_layer_ids and the captures must agree; run again from stage stream",
            )
        loaded = (states.to(self._dtype), ids.long())
        size = loaded[0].numel() * loaded[0].element_size()
        with self._lock:
            if size <= self._room and entry.i not in self._cache:
                self._room -= size
                self._cache[entry.i] = loaded
        return loaded


def make_batch(reader: CaptureReader, entries: Sequence[IndexEntry]) -> Batch:
    """Pack `entries` into one batch, in their order."""
    states, ids = zip(*(reader.load(entry) for entry in entries), strict=True)
    lengths = [len(part) for part in ids]
    packed = torch.cat(states)
    positions = [torch.arange(length) for length in lengths]
    masks = [place >= entry.prompt_tokens for place, entry in zip(positions, entries, strict=True)]
    return Batch(
        token_ids=torch.cat(ids),
        aux_states=packed[:, :-1].reshape(packed.shape[0], -1),
        last_states=packed[:, -1],
        loss_mask=torch.cat(masks),
        position_ids=torch.cat(positions),
        document_ids=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
    )


def with_losses(batch: Batch, entries: Sequence[IndexEntry]) -> Batch:
    """The same batch of `entries`, whose prompts may be of other lengths than when it was packed."""
    prompts = torch.tensor([entry.prompt_tokens for entry in entries])
    return replace(batch, loss_mask=batch.position_ids >= prompts[batch.document_ids])


def with_prompts(reader: CaptureReader, entries: Sequence[IndexEntry]) -> list[IndexEntry]:
    """The same samples with a loss on their prompts too, which the target's states cover as well.

    What all prompts begin with (the chat template's opening) stays without a loss: it teaches nothing.
    """
    first = reader.load(entries[0])[1]
    shared = len(first)
    for entry in entries[1:]:
        ids = reader.load(entry)[1][:shared]
        same = (ids == first[: len(ids)]).long().cumprod(0)
        shared = int(same.sum())
    return [replace(entry, prompt_tokens=min(entry.prompt_tokens, max(shared, 1))) for entry in entries]


@dataclass(frozen=True)
class Step:
    """What one optimizer step learns from.

    Args:
        samples: Numbers of its samples in the log, to be written down; None where the plan tells.
        release: A checkpoint must follow: samples wait to be deleted.
        measure: A held-out evaluation is due behind it.
    """

    batch: Batch
    samples: tuple[int, ...] | None = None
    release: bool = False
    measure: bool = False


Save = Callable[[], None]


class Batches(Protocol):
    """The batches of every epoch, of a log that is complete or of one that grows."""

    @property
    def waited_s(self) -> float:
        """Seconds that `take` waited for batches to be read, in all."""

    def fits(self, place: Position) -> bool:
        """Whether training can go on from this checkpoint; called before anything else, if there is one."""

    def is_over(self, place: Position, save: Save | None) -> bool:
        """Whether the epoch has no further batch; may wait for samples.

        Args:
            save: Writes a checkpoint, where only that brings further samples. None: do not wait.
        """

    def take(self, place: Position) -> Step:
        """The next batch; only after `is_over` said that there is one."""

    def advance(self, place: Position) -> None:
        """Move the position behind the batch that was taken."""

    def saved(self, place: Position) -> None:
        """A checkpoint with this position is complete."""

    def complete(self, place: Position) -> None:
        """Wait for the end of the log."""

    def amount(self, place: Position) -> tuple[float, float]:
        """How much is done, and how much there is in all: what the learning rate's schedule follows."""

    def close(self) -> None:
        """Forget what was read ahead, and read no more: training ends or stops."""


class TrainBatches:
    """The batches of every epoch of a complete log.

    Args:
        entries: Samples of the train split.
        batch_tokens: Packed tokens in a batch at most (a longer document stands alone).
        prompt_epochs: First epochs whose loss also sees what the target predicts inside the prompts.
        prefetch_bytes: Memory for batches that are read ahead; 0 reads none ahead.
    """

    def __init__(
        self,
        reader: CaptureReader,
        entries: Sequence[IndexEntry],
        batch_tokens: int,
        seed: int,
        epochs: int,
        prompt_epochs: int = 0,
        prefetch_bytes: int = 0,
    ):
        self._reader = reader
        self._answers = list(entries)
        self._prompts = with_prompts(reader, entries) if prompt_epochs else []
        self._prompt_epochs = prompt_epochs
        lengths = [entry.tokens for entry in entries]
        self._plans = [pack(lengths, batch_tokens, seed, epoch) for epoch in range(epochs)]
        self._ahead: Prefetch[tuple[int, int], Batch] = Prefetch(
            lambda key: self.batch(*key), self._bytes_of, prefetch_bytes
        )

    @property
    def waited_s(self) -> float:
        return self._ahead.waited_s

    def steps(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._plans[epoch])

    @property
    def total_steps(self) -> int:
        return sum(len(plan) for plan in self._plans)

    def batch(self, epoch: int, step: int) -> Batch:
        """Batch `step` of `epoch`: the sampler's whole position is these two numbers."""
        entries = self._prompts if epoch < self._prompt_epochs else self._answers
        return make_batch(self._reader, [entries[k] for k in self._plans[epoch][step]])

    def fits(self, place: Position) -> bool:
        return True

    def is_over(self, place: Position, save: Save | None) -> bool:
        return place.step_in_epoch == self.steps(place.epoch)

    def take(self, place: Position) -> Step:
        return Step(self._ahead.take((place.epoch, place.step_in_epoch), self._after(place)))

    def _after(self, place: Position) -> Iterator[tuple[int, int]]:
        """Places of the batches behind this one, those of later epochs too."""
        for epoch in range(place.epoch, len(self._plans)):
            first = place.step_in_epoch + 1 if epoch == place.epoch else 0
            yield from ((epoch, step) for step in range(first, self.steps(epoch)))

    def _bytes_of(self, key: tuple[int, int]) -> int:
        epoch, step = key
        return self._reader.token_bytes * sum(self._answers[k].tokens for k in self._plans[epoch][step])

    def advance(self, place: Position) -> None:
        place.step_in_epoch += 1

    def saved(self, place: Position) -> None:
        """Nothing waits for a checkpoint."""

    def complete(self, place: Position) -> None:
        """It is."""

    def amount(self, place: Position) -> tuple[float, float]:
        return place.step, self.total_steps

    def close(self) -> None:
        self._ahead.close()


def choose_anchors(batch: Batch, wanted: int, generator: torch.Generator) -> Tensor:
    """`wanted` anchors (or all, if there are fewer) without repetition, rising; drawn on the CPU."""
    positions = batch.anchor_positions()
    if len(positions) <= wanted:
        return positions
    chosen = torch.randperm(len(positions), generator=generator)[:wanted]
    return positions[chosen.sort().values.to(positions.device)]


def spaced_anchors(batch: Batch, stride: int) -> Tensor:
    """Every `stride`-th possible anchor: the fixed anchors of held-out evaluation."""
    return batch.anchor_positions()[::stride]
