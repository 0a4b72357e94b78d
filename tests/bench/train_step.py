"""Row `step`: an optimizer step of ours against one of upstream's trainer, and how near it is to the machine.

Before anything is timed, both train from the same weights on the same batches and anchors in float32, and
their losses are compared step by step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rows import Row, compared, hardware
from torch import Tensor
from train_upstream import UpstreamTrainer, fresh_draft, recorded_steps
from train_world import TrainWorld

from profiles.schema import Train
from tasks.train.data import Batch
from tasks.train.learner import DTYPES, Learner, Pack
from tasks.train.ranks import Ranks

LOSS_TOLERANCE = 1e-3
Steps = Sequence[tuple[Batch, Tensor]]


class OurStep:
    """One optimizer step of the trainer's own learner, on one rank, at the peak learning rate.

    Args:
        betas: AdamW's, where they are to be upstream's; None leaves ours.
    """

    def __init__(self, model: Any, train: Train, betas: tuple[float, float] | None = None):
        self._learner = Learner(model, train, Ranks(), torch.device("cpu"))
        self._step = 0
        if betas is not None and "adamw" in self._learner.optimizers:
            for group in self._learner.optimizers["adamw"].param_groups:
                group["betas"] = betas

    def __call__(self, batch: Batch, anchors: Tensor) -> float:
        """Forward, backward, clipping, optimizers and metrics; the loss."""
        self._learner.update([Pack(0, batch, anchors=anchors)], self._step, factor=1.0, stop=False)
        self._step += 1
        (sums,) = self._learner.take_sums()
        return sums["loss"][0]


def rows(world: TrainWorld) -> list[Row]:
    """Row `step`, and what of it are matrix products."""
    upstream = UpstreamTrainer(world)
    apart, record = compare_losses(world, upstream)
    return [timed(world, upstream, record, apart), limit(world, record)]


def compare_losses(world: TrainWorld, upstream: UpstreamTrainer) -> tuple[float, Path]:
    """Largest relative distance of the losses in float32, and the folder with upstream's batches.

    Raises:
        AssertionError: A loss is further away than `LOSS_TOLERANCE`.
    """
    record = world.folder / "record"
    record.mkdir()
    train, count = world.train.model_copy(update={"autocast": "float32"}), world.size.losses
    theirs = upstream.run("losses", train, count, record).losses()
    # Upstream leaves AdamW's second beta at 0.999; ours is 0.95 and would part the losses after some steps.
    step = OurStep(fresh_draft(world), train, betas=(0.9, 0.999))
    ours = [step(*one) for one in recorded_steps(record, count, torch.float32)]
    apart = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    if max(apart) > LOSS_TOLERANCE:
        worst = apart.index(max(apart))
        raise AssertionError(f"loss of step {worst}: ours {ours[worst]}, upstream's {theirs[worst]}")
    return max(apart), record


@dataclass
class _Turn:
    ours: list[float]
    theirs: list[float]
    own_share: list[float]


def timed(world: TrainWorld, upstream: UpstreamTrainer, record: Path, apart: float) -> Row:
    """Tokens per second of a step, both sides in turns on the same batches."""
    size, train = world.size, world.train
    batches = recorded_steps(record, size.steps, DTYPES[train.autocast])
    turn = _Turn([], [], [])
    for number in range(size.repetitions):
        found = upstream.run(f"timed-{number}", train, size.steps)
        turn.theirs.append(found.tokens_per_s(size.warm))
        spent = sum(row["forward_s"] + row["backward_s"] + row["optimizer_s"] for row in found.steps)
        turn.own_share.append(found.own_s / spent)
        turn.ours.append(_tokens_per_s(OurStep(fresh_draft(world), train), batches, size.warm))
    words = (
        f"at least; medians of {size.repetitions} repetitions in turns, {size.steps - size.warm} steps each; "
        f"forward, backward, clipping and optimizer of both, waiting for data of neither; upstream's own "
        f"Trainer through its command line, {train.autocast}, {train.optimizer}, sdpa; its shims and the "
        f"recorder take {statistics.median(turn.own_share):.2%} of its steps; losses of {size.losses} steps "
        f"in float32 at most {apart:.1e} apart; {_spread(turn)}; {hardware()}"
    )
    ours, theirs = statistics.median(turn.ours), statistics.median(turn.theirs)
    return compared("step", ours, theirs, 0.95, "tokens/s", words, stage="train")


def _spread(turn: _Turn) -> str:
    ratios = [a / b for a, b in zip(turn.ours, turn.theirs, strict=True)]
    return f"ratios of the repetitions {min(ratios):.2f} to {max(ratios):.2f}"


def _tokens_per_s(step: OurStep, batches: Steps, warm: int) -> float:
    for batch, anchors in batches[:warm]:
        step(batch, anchors)
    started = time.perf_counter()
    for batch, anchors in batches[warm:]:
        step(batch, anchors)
    return sum(batch.tokens for batch, _ in batches[warm:]) / (time.perf_counter() - started)


def limit(world: TrainWorld, record: Path) -> Row:
    """Seconds that a step's matrix products take at the machine's own rate, against those of the step."""
    from torch.utils.flop_counter import FlopCounterMode

    size, train = world.size, world.train
    dtype = DTYPES[train.autocast]
    batches = recorded_steps(record, size.steps, dtype)
    step = OurStep(fresh_draft(world), train)
    with FlopCounterMode(display=False) as counter:
        step(*batches[0])
    seconds = [_seconds(step, one) for one in batches]
    rate = matmul_rate(dtype)
    least, measured = counter.get_total_flops() / rate, statistics.median(seconds[size.warm :])
    words = (
        f"no goal; value: {counter.get_total_flops() / 1e9:.1f} Gflop of matrix products, optimizer's too, "
        f"at the {rate / 1e9:.0f} Gflop/s that this machine reaches in a {dtype} product of 1024 "
        f"cubed; baseline: the step; {batches[0][0].tokens} tokens, {len(batches[0][1])} blocks; {hardware()}"
    )
    return compared("step, matrix products alone", least, measured, None, "s", words, stage="train")


def _seconds(step: OurStep, one: tuple[Batch, Tensor]) -> float:
    started = time.perf_counter()
    step(*one)
    return time.perf_counter() - started


def matmul_rate(dtype: torch.dtype, edge: int = 1024) -> float:
    """Floating-point operations a second of one product of square matrices, the best of several."""
    left, right = (torch.randn(edge, edge).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(8):
        started = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - started)
    return float(2 * edge**3 / best)
