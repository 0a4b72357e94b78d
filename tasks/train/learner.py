"""One rank's part of training: forward, backward, exchange of gradients, optimizer step.

All ranks call the methods of their learners in the same order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from profiles.training import Train
from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints
from tasks.train.data import Batch, choose_anchors
from tasks.train.journal import keep_batch
from tasks.train.loss import BlockOutcome, LossWeights, outcome_sums
from tasks.train.optimizer import (
    build_optimizers,
    empty_optimizer_tensors,
    load_optimizer_tensors,
    optimizer_tensors,
    set_rates,
)
from tasks.train.ranks import Ranks
from tasks.train.saving import State
from tasks.train.steps import pack_seed
from tasks.train.strategy import (
    DraftLoss,
    compile_layers,
    distribute,
    exchanging,
    recompute_layers,
    whole,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Sums = dict[str, tuple[float, float]]
"""Metric -> (sum, total), as `outcome_sums` makes them."""


@dataclass(frozen=True)
class Pack:
    """A pack that this rank computes.

    Args:
        number: Its number in the step.
        batch: Its documents.
        counts: False where another rank computes it too, and counts it.
        anchors: `[N]` where its blocks start, rising; None draws them by seed, step and number.
    """

    number: int
    batch: Batch
    counts: bool = True
    anchors: Tensor | None = None


@dataclass(frozen=True)
class _Ready:
    """A pack on the device, with its blocks."""

    pack: Pack
    anchors: Tensor
    slots: float


@dataclass(frozen=True)
class Update:
    """How a step went, on all ranks together.

    Args:
        learned: Something was learned from it: it had blocks, and loss and gradient were finite.
        finite: Loss and gradient were finite.
        stop: Some rank was asked to stop.
    """

    learned: bool
    finite: bool
    stop: bool


def loss_weights(settings: Train) -> LossWeights:
    return LossWeights(
        settings.loss_ce, settings.loss_tv, settings.loss_confidence, settings.decay_gamma, settings.loss_kl
    )


class Learner:
    """Trains this rank's part of one draft.

    Args:
        model: The draft; trained in float32, run in `settings.autocast`.
        ranks: This process among the others.

    Attributes:
        parameters: Name -> trained parameter, whole or this rank's shard.
        model: The draft as a whole where this rank has it (always with DDP, else a copy on the leader that
            `show_weights` fills), for measuring and export.
    """

    def __init__(self, model: nn.Module, settings: Train, ranks: Ranks, device: torch.device):
        self.settings = settings
        self.ranks = ranks
        self.device = device
        self.model = model.to(device)
        self.weights = loss_weights(settings)
        shards = settings.scale.strategy == "fsdp" and ranks.size > 1
        trained = copy.deepcopy(self.model) if shards and ranks.leads else self.model
        if settings.gradient_checkpointing:
            recompute_layers(trained)
        if settings.compile:
            compile_layers(trained, device)
        self._loss = DraftLoss(trained, self.weights)
        self._module = distribute(self._loss, settings.scale.strategy, ranks, device)
        self.parameters = adapter.trained_state(self._loss.model)
        self.optimizers = build_optimizers(self.parameters, settings)
        self._shards = shards
        self._sums: list[Sums] = []
        self._ready: list[_Ready] = []
        self._losses: list[float] = []

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES[self.settings.autocast]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)

    def update(self, packs: Sequence[Pack], step: int, factor: float, stop: bool) -> Update:
        """One optimizer step over the packs of all ranks.

        The loss is the mean over all slots of the step, whichever rank computes them, so that it does not
        depend on the number of ranks.

        Args:
            packs: This rank's, at least one and as many as on every other rank.
            factor: Factor on the peak learning rates.
            stop: This rank was asked to stop.
        """
        set_rates(self.optimizers, factor, self.settings)
        alone = self.ranks.size == 1
        self._ready = [self._prepare(pack, step, alone and len(packs) == 1) for pack in packs]
        slots, stops = self.ranks.sums(sum(ready.slots for ready in self._ready), float(stop))
        if slots == 0:
            return Update(learned=False, finite=True, stop=stops > 0)
        self._loss.train()
        outcomes = self._backward(slots)
        norm = whole(nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.grad_clip))
        bad = not all(math.isfinite(value) for value in (*self._losses, float(norm)))
        finite = self.ranks.sums(float(bad))[0] == 0
        for optimizer in self.optimizers.values():
            if finite:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if finite:
            self._count(outcomes, slots)
        return Update(learned=finite, finite=finite, stop=stops > 0)

    def _prepare(self, pack: Pack, step: int, is_only_one: bool) -> _Ready:
        batch = pack.batch.to(self.device)
        seed = pack_seed(self.settings.seed, step, pack.number)
        torch.manual_seed(seed)  # upstream's modules draw from it, if they draw
        if pack.anchors is None:
            anchors = choose_anchors(batch, self.settings.anchors, torch.Generator().manual_seed(seed))
        else:
            anchors = pack.anchors.to(self.device)
        if len(anchors) == 0 and not is_only_one:
            anchors = torch.zeros(1, dtype=torch.long, device=self.device)  # a block without a loss
        model: Any = self._loss.model
        size, from_anchor = model.block_size, model.config.sample_from_anchor
        if is_only_one or not pack.counts:
            slots = float(len(anchors) > 0 and pack.counts)
        else:
            slots = float(adapter.block_slots(batch, anchors, size, from_anchor).valid.sum())
        return _Ready(Pack(pack.number, batch, pack.counts), anchors, slots)

    def _backward(self, slots: float) -> list[BlockOutcome]:
        """Gradients of the step's mean loss; DDP and FSDP2 divide by the ranks what they sum up."""
        outcomes, self._losses = [], []
        for place, ready in enumerate(self._ready):
            with exchanging(self._module, place == len(self._ready) - 1):
                with self.autocast():
                    loss, outcome = self._module(ready.pack.batch, ready.anchors)
                (loss * (ready.slots * self.ranks.size / slots)).backward()
            outcomes.append(outcome)
            self._losses.append(float(loss.detach()))
        return outcomes

    def _count(self, outcomes: Sequence[BlockOutcome], slots: float) -> None:
        for ready, outcome in zip(self._ready, outcomes, strict=True):
            if not ready.slots:
                continue
            share = ready.slots / slots
            sums = outcome_sums(outcome)
            # Losses are means over a pack: a step's loss is the mean of them, by slots.
            means = {
                name: (value * share, share) for name, (value, _) in sums.items() if name.endswith("loss")
            }
            self._sums.append({**sums, **means})

    def take_sums(self) -> list[Sums]:
        """Sums of the metrics of this rank's packs since the last call."""
        sums, self._sums = self._sums, []
        return sums

    def keep_bad_packs(self, folder: Path, step: int) -> None:
        """Write the packs of the last step whose loss is not finite, or all if only the gradient was not."""
        bad = [not math.isfinite(loss) for loss in self._losses]
        for ready, loss, is_bad in zip(self._ready, self._losses, bad, strict=True):
            if is_bad or not any(bad):
                name = f"step-{step}-rank-{self.ranks.rank}-pack-{ready.pack.number}"
                keep_batch(folder, name, ready.pack.batch, ready.anchors, loss)

    def whole_weights(self) -> dict[str, Tensor] | None:
        """A copy of all trained weights in host memory, on the leader; None on the others."""
        if not self._shards and not self.ranks.leads:
            return None
        found = {name: whole(value.detach()).to("cpu", copy=True) for name, value in self.parameters.items()}
        return found if self.ranks.leads else None

    def show_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put whole weights into `model`; with DDP these are the trained ones."""
        for name, value in adapter.trained_state(self.model).items():
            value.data.copy_(weights[name])

    @property
    def shares_model(self) -> bool:
        """`model` is what is trained, so that its weights are always the newest."""
        return not self._shards

    def state(self) -> State:
        """What a checkpoint must hold of this rank; live tensors."""
        random = {}
        if self.ranks.leads:
            random["torch"] = torch.get_rng_state()
            if self.device.type == "cuda":
                random["cuda"] = torch.cuda.get_rng_state(self.device)
        return State(
            {name: value.detach() for name, value in self.parameters.items()},
            optimizer_tensors(self.optimizers),
            random,
        )

    def load(self, checkpoints: Checkpoints, step: int) -> None:
        """Continue from a checkpoint, whatever the number of ranks that wrote it."""
        checkpoints.read(step, "model", {name: value.detach() for name, value in self.parameters.items()})
        sizes = checkpoints.sizes(step, "optimizer")
        state = empty_optimizer_tensors(self.optimizers, sizes)
        if state:
            checkpoints.read(step, "optimizer", state)
            load_optimizer_tensors(self.optimizers, state)
        random = {
            name: torch.empty(size, dtype=torch.uint8)
            for name, size in checkpoints.sizes(step, "random").items()
        }
        checkpoints.read(step, "random", random)
        torch.set_rng_state(random["torch"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)
