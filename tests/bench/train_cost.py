"""Rows `data_wait`, `checkpoint` and `cost`: what training spends beside arithmetic, and how a step grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rows import Row, compared, hardware
from torch import Tensor
from train_step import OurStep
from train_upstream import fresh_draft
from train_world import TrainWorld

from profiles.load import load_profile
from tasks.stream.log import HiddenStateLog
from tasks.train import adapter
from tasks.train.checkpoint import Position
from tasks.train.data import Batch, CaptureReader, TrainBatches, choose_anchors, make_batch
from tasks.train.learner import DTYPES
from tasks.train.run import train_draft
from tasks.train.stopping import StopFlag
from tasks.train.validation import slope
from tasks.train.vocabulary import vocabulary_of


def data_wait(world: TrainWorld) -> list[Row]:
    """Share of training time in which a step waits for its batch: read ahead against read when needed.

    Nothing stays in memory between epochs, so that every batch is read from its files and checked.
    """
    shares: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(world.size.repetitions):
        for ahead in shares:
            shares[ahead].append(_waited(world, world.train.prefetch_bytes if ahead else 0))
    value, plain = (100 * statistics.median(shares[ahead]) for ahead in (True, False))
    words = (
        f"at most; medians of {world.size.repetitions} repetitions in turns, {world.size.steps} steps each, "
        f"from files that the system may hold in memory; baseline: without reading ahead; "
        f"{world.train.batch_tokens} tokens a batch, {world.train.autocast}; {hardware()}"
    )
    shown = (max(value, 1e-4), max(plain, 1e-4))
    return [compared("data_wait", *shown, 3.0, "% of training", words, stage="train")]


def _waited(world: TrainWorld, prefetch_bytes: int) -> float:
    train, size = world.train, world.size
    log = HiddenStateLog(world.log)
    reader = CaptureReader(log, size.aux_layers + 1, size.hidden, DTYPES[train.autocast], 0)
    batches = TrainBatches(
        reader, log.entries("train"), train.batch_tokens, train.seed, train.epochs, 0, prefetch_bytes
    )
    step, anchors = OurStep(fresh_draft(world), train), torch.Generator().manual_seed(train.seed)
    place = Position("")
    started = time.perf_counter()
    for _ in range(size.steps):
        batch = batches.take(place).batch
        step(batch, choose_anchors(batch, train.anchors, anchors))
        batches.advance(place)
    seconds = time.perf_counter() - started
    batches.close()
    return batches.waited_s / seconds


def checkpoint(world: TrainWorld) -> list[Row]:
    """Training with checkpoints against training without, at the profile's interval.

    Both are whole trainings in this process. The one with checkpoints writes one about every quarter of
    it, the first included; what each of them cost is then laid on the profile's interval.
    """
    interval = load_profile("laptop").profile.train.checkpoint_every_s
    costs, counts = [], []
    for number in range(world.size.repetitions):
        plain, without = _trained(world, f"without-{number}", 1e6)
        every, saved = _trained(world, f"with-{number}", max(plain / 4, 0.05))
        counts.append(max(saved - without, 1))
        costs.append((every - plain) / counts[-1])
    cost = statistics.median(costs)
    words = (
        f"at most; value: {interval:.0f} s of training and one checkpoint, baseline: without it; one cost "
        f"{cost * 1000:.0f} ms (repetitions {min(costs) * 1000:.0f} to {max(costs) * 1000:.0f} ms), "
        f"{statistics.median(counts):.0f} in each training, the first included; {hardware()}"
    )
    return [compared("checkpoint", interval + cost, interval, 1.03, "s", words, stage="train")]


def _trained(world: TrainWorld, name: str, every_s: float) -> tuple[float, int]:
    """Seconds of a training of one epoch, and how many checkpoints are there."""
    settings = world.settings(
        name,
        epochs=1,
        max_steps=4 * world.size.steps,
        checkpoint_every_s=every_s,
        keep_checkpoints=1000,
        threads=torch.get_num_threads(),
    )
    started = time.perf_counter()
    train_draft(settings, _quiet, StopFlag())
    return time.perf_counter() - started, len(list(settings.path.glob("checkpoints/step-*")))


def _quiet(_done: float, _total: float, _metrics: Mapping[str, float], _note: str) -> None:
    """Progress of a measured training goes nowhere."""


def cost(world: TrainWorld) -> list[Row]:
    """Seconds of a step against tokens, anchors and draft vocabulary: three points each, and the slope."""
    train = world.train
    vocab = train.draft.vocab_size or world.size.vocab // 2
    return [
        _line(world, "tokens", [train.batch_tokens // 2, train.batch_tokens, 2 * train.batch_tokens]),
        _line(world, "anchors", [train.anchors // 2, train.anchors, 2 * train.anchors]),
        _line(world, "draft vocabulary", [vocab // 2, vocab, min(2 * vocab, world.size.vocab - 1)]),
    ]


def _line(world: TrainWorld, what: str, points: Sequence[int]) -> Row:
    seconds = {point: _step_seconds(world, what, point) for point in points}
    small, *_, large = points
    shown = ", ".join(f"{point:,}: {value * 1000:.0f} ms" for point, value in seconds.items())
    words = (
        f"no goal; value: a step at {large:,} {what}, baseline: at {small:,}; {shown}; slope "
        f"{1e6 * slope(seconds):.1f} ms for each 1,000; the rest as in the laptop profile; {hardware()}"
    )
    name = f"cost against {what}"
    return compared(name, seconds[large], seconds[small], None, "s a step", words, stage="train")


def _step_seconds(world: TrainWorld, what: str, point: int) -> float:
    train = world.train
    tokens = point if what == "tokens" else train.batch_tokens
    wanted = point if what == "anchors" else train.anchors
    model: Any
    if what == "draft vocabulary":
        vocabulary = vocabulary_of(range(1, 1 + point), world.size.vocab)
        draft = train.draft.model_copy(update={"vocab_size": point})
        model = adapter.build_draft(world.target, draft, world.aux_layer_ids, vocabulary, train.seed)
    else:
        model = fresh_draft(world)
    batch, anchors = _packed(world, tokens, wanted)
    step, seconds = OurStep(model, train), []
    for _ in range(world.size.warm + world.size.repetitions):
        started = time.perf_counter()
        step(batch, anchors)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[world.size.warm :])


def _packed(world: TrainWorld, tokens: int, wanted: int) -> tuple[Batch, Tensor]:
    """A batch of exactly `tokens` tokens with `wanted` anchors."""
    log, size = HiddenStateLog(world.log), world.size
    reader = CaptureReader(log, size.aux_layers + 1, size.hidden, DTYPES[world.train.autocast], 0)
    chosen, used = [], 0
    for entry in log.entries("train"):
        chosen.append(entry)
        used += entry.tokens
        if used >= tokens:
            break
    batch = make_batch(reader, chosen)
    cut = replace(batch, **{name: getattr(batch, name)[:tokens] for name in batch.__annotations__})
    return cut, choose_anchors(cut, wanted, torch.Generator().manual_seed(0))
