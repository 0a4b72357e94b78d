"""Quality ablations on the laptop target's own answers: what each part of training is worth, with seeds.

Real captures of the laptop profile, taken once by the pipeline's own capture. Each arm trains in this process
with the same budget of steps, and is measured on the same held-out conversations. Domains stand in for days:
yesterday's prompts are of some domains, the shifted ones of others.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import Row, compared

from profiles.schema import Train
from tasks.stream.log import HiddenStateLog, IndexEntry, LogWriter
from tasks.train.initial import InitialDraft, draft_digest
from tasks.train.run import train_draft
from tasks.train.settings import TrainSettings
from tasks.train.stopping import StopFlag
from tasks.train.validation import conditional_accuracy

SHIFTED = ("translation", "writing", "summarization")
"""Domains of the shifted prompts; all others are yesterday's."""
OLD_SHARE = 2
"""Of the mix, one old sample for every `OLD_SHARE` new ones."""


@dataclass(frozen=True)
class QualitySize:
    """How much each arm trains.

    Args:
        per_domain: Training prompts of each domain.
        epochs: Passes of each arm; held-out data is measured after each.
        seeds: One training of each arm for each seed.
    """

    per_domain: int = 32
    epochs: int = 4
    seeds: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Captured:
    """Captures and how to train on them.

    Args:
        settings: Settings of a training; the folders in it are replaced.
        folder: Gets one folder for each arm.
    """

    settings: TrainSettings
    folder: Path
    size: QualitySize

    @property
    def log(self) -> Path:
        return Path(self.settings.log_dir)


@dataclass(frozen=True)
class Arm:
    """What a training came to.

    Args:
        best: Held-out metrics of the exported step.
        curve: (step, eal) of each measurement.
        draft: The export.
    """

    best: dict[str, float]
    curve: list[tuple[int, float]]
    draft: Path
    step: int

    def steps_to(self, eal: float) -> int | None:
        """First measured step with at least this acceptance."""
        return next((step for step, value in self.curve if value >= eal), None)


def rows(
    folder: Path, measure: Callable[[Captured], list[Row]], size: QualitySize | None = None
) -> list[Row]:
    """Ablations, all or those that `measure` trains; captures are taken first, by servers of their own."""
    return measure(captured(folder, size or QualitySize()))


def captured(folder: Path, size: QualitySize) -> Captured:
    """Captures of the laptop target by the pipeline's own capture, without those for evaluation."""
    from servers import extracting, workplace

    from tasks.stream.settings import CaptureFiles
    from tasks.train.core import settings_for

    one = folder / "qa.jsonl"
    one.write_text('{"id": "one", "domain": "qa", "prompt": "Say hello."}\n', encoding="utf-8")
    fields: dict[str, Any] = {
        "prompts": {"train_per_domain": size.per_domain, "evaluate": [str(one)], "evaluate_per_domain": None},
        "evaluate": {"replay_max_new_tokens": 4},
    }
    with workplace(folder, "quality", fields) as place:
        with extracting(place) as target:
            found = target.capture(place.run.path / "stream")
        settings = settings_for(
            place.profile,
            place.run,
            folder / "train",
            CaptureFiles(place.run.path / "stream"),
            place.target,
            found.digest,
            found.hidden_size,
            found.dtype,
        )
    return Captured(settings, folder, size)


def ablations(world: Captured) -> list[Row]:
    """The rows; each arm is trained once for each seed."""
    full = [train_arm(world, f"dspark-{seed}", seed) for seed in world.size.seeds]
    return [
        trained_row(world, full),
        *dflash_rows(world, full),
        loss_row(world, full),
        *warm_rows(world),
    ]


def train_arm(
    world: Captured,
    name: str,
    seed: int,
    *,
    log: Path | None = None,
    start: Path | None = None,
    draft: Mapping[str, Any] | None = None,
    **train: Any,
) -> Arm:
    """Train one arm in a folder of its own.

    Args:
        log: Captures; None takes all.
        start: Draft to start from.
        draft, train: Fields to change.
    """
    own = world.folder / "arms" / name
    own.mkdir(parents=True)
    values = {**world.settings.train.model_dump(), "epochs": world.size.epochs, "seed": seed, **train}
    values["draft"] = {**values["draft"], **(draft or {})}
    initial = (
        None if start is None else InitialDraft(name="start", folder=str(start), digest=draft_digest(start))
    )
    settings = world.settings.model_copy(
        update={
            "train": Train.model_validate(values),
            "folder": str(own),
            "progress_file": str(own / "progress.jsonl"),
            "log_dir": str(log or world.log),
            "initial": initial,
        }
    )
    result = train_draft(settings, _quiet, StopFlag())
    gc.collect()  # a training's objects refer to each other, and hold its captures in memory
    lines = (own / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    held = [row for row in map(json.loads, lines) if row["split"] == "held_out"]
    best = next(row for row in held if row["step"] == result.step)
    return Arm(best, [(row["step"], row["eal"]) for row in held], own / result.path, result.step)


def _quiet(_done: float, _total: float, _metrics: Mapping[str, float], _note: str) -> None:
    """Progress of an arm goes nowhere."""


def trained_row(world: Captured, full: Sequence[Arm]) -> Row:
    """Trained against untrained, greedy acceptance length."""
    before = [arm.curve[0][1] for arm in full]
    return _row(
        "trained against untrained",
        [arm.best["eal"] for arm in full],
        before,
        1.05,
        "held-out eal",
        world,
        "",
    )


def dflash_rows(world: Captured, full: Sequence[Arm]) -> list[Row]:
    """DSpark against DFlash with the same budget and as many drafted tokens."""
    block = world.settings.train.draft.block_size
    changes = {
        "markov_rank": 0,
        "confidence_head": False,
        "sample_from_anchor": False,
        "block_size": block + 1,
    }
    plain = [
        train_arm(world, f"dflash-{seed}", seed, draft=changes, loss_confidence=0.0)
        for seed in world.size.seeds
    ]
    ours, theirs = (_curve(arms) for arms in (full, plain))
    shown = "; ".join(
        f"{name}: " + ", ".join(f"{place}: {value:.3f}" for place, value in curve.items())
        for name, curve in (("DSpark", ours), ("DFlash", theirs))
    )
    decay = [statistics.mean(arm.best.get("suffix_decay", 0.0) for arm in arms) for arms in (full, plain)]
    beside = f"conditional acceptance by position, {shown}; suffix decay {decay[0]:+.4f} and {decay[1]:+.4f}"
    later = [[_later(arm) for arm in arms] for arms in (full, plain)]
    return [
        _row("DSpark against DFlash, later positions", *later, 1.0, "conditional acceptance", world, beside),
        _row(
            "DSpark against DFlash, eal",
            *([arm.best["eal"] for arm in arms] for arms in (full, plain)),
            None,
            "held-out eal",
            world,
            "",
        ),
    ]


def _curve(arms: Sequence[Arm]) -> dict[int, float]:
    """Conditional acceptance by position, mean over the seeds that reached it."""
    found: dict[int, list[float]] = {}
    for arm in arms:
        for place, value in conditional_accuracy(arm.best).items():
            found.setdefault(place, []).append(value)
    return {place: statistics.mean(values) for place, values in sorted(found.items())}


def _later(arm: Arm) -> float:
    """Mean conditional acceptance from the second position on, where the Markov head has something to say."""
    later = [value for place, value in conditional_accuracy(arm.best).items() if place > 1]
    return statistics.mean(later) if later else 0.0


def loss_row(world: Captured, full: Sequence[Arm]) -> Row:
    """Cross entropy and total variation against upstream's default, the divergence."""
    other = [
        train_arm(world, f"kl-{seed}", seed, loss_ce=0.0, loss_tv=0.0, loss_kl=1.0)
        for seed in world.size.seeds
    ]
    eal = ([arm.best["eal"] for arm in arms] for arms in (full, other))
    lengths = [statistics.mean(arm.best["accept_len"] for arm in arms) for arms in (full, other)]
    beside = f"analytic acceptance length {lengths[0]:.3f} and {lengths[1]:.3f}"
    name = '{"ce": 0.1, "tv": 0.9} against kl_div'
    return _row(name, *eal, None, "held-out eal", world, beside)


def warm_rows(world: Captured) -> list[Row]:
    """A draft of yesterday's domains on shifted ones: how soon it is as good as a new one, what it forgets.

    Domains are not equally hard, so yesterday's acceptance on its own prompts is no mark for the shifted
    ones: the mark is what yesterday's training, begun anew, reaches on the shifted prompts.
    A learning rate's schedule belongs to the length of its training, so a shorter training is planned as
    one, and not cut off from a longer one.
    """
    old, new, mix = split_by_domain(world)
    steps: list[tuple[float, float]] = []
    kept: list[tuple[float, float]] = []
    gained: list[tuple[float, float]] = []
    for seed in world.size.seeds:
        yesterday = train_arm(world, f"old-{seed}", seed, log=old)
        anew = train_arm(world, f"anew-{seed}", seed, log=new)
        steps.append((shortest(world, seed, new, yesterday.draft, anew.best["eal"]), anew.step))
        mixed = train_arm(world, f"mix-{seed}", seed, log=mix, start=yesterday.draft)
        for log, found in ((old, kept), (new, gained)):
            before, after = (measured(world, f"{arm.draft.parent.name}-on-{log.name}", seed, log, arm)
                             for arm in (yesterday, mixed))  # fmt: skip
            found.append((after, before))
    return [
        _row(
            "warm start on shifted prompts",
            [ours for ours, _ in steps],
            [float(theirs) for _, theirs in steps],
            0.5,
            "steps to the eal of a draft begun anew",
            world,
            f"at most; shifted: {', '.join(SHIFTED)}; the shortest of trainings planned for 1, 2, 4 epochs; "
            "never reached counts twice the steps taken",
        ),
        _mixed_row("old", kept, 0.97, world),
        _mixed_row("shifted", gained, 1.0, world),
    ]


def shortest(world: Captured, seed: int, log: Path, start: Path, mark: float) -> float:
    """Steps of the shortest planned training from `start` that reaches the `eal`: 1, 2, 4, ... epochs."""
    epochs = 1
    while True:
        arm = train_arm(world, f"today-{seed}-{epochs}", seed, log=log, start=start, epochs=epochs)
        if (reached := arm.steps_to(mark)) is not None:
            return max(reached, 1)
        if epochs >= world.size.epochs:
            return 2.0 * arm.curve[-1][0]
        epochs = min(2 * epochs, world.size.epochs)


def measured(world: Captured, name: str, seed: int, log: Path, arm: Arm) -> float:
    """Held-out `eal` of an arm's draft on the captures of `log`."""
    return train_arm(world, name, seed, log=log, start=arm.draft, max_steps=0).best["eal"]


def _mixed_row(what: str, found: Sequence[tuple[float, float]], goal: float, world: Captured) -> Row:
    words = f"at least; against yesterday's draft; one old sample for every {OLD_SHARE} new ones"
    name = f"{what} domains after a mixed warm start"
    after, before = zip(*found, strict=True)
    return _row(name, after, before, goal, "held-out eal", world, words)


def split_by_domain(world: Captured) -> tuple[Path, Path, Path]:
    """Logs of the old domains, of the shifted ones, and of the mix, whose held-out samples are all."""
    whole = HiddenStateLog(world.log)
    shifted = {entry.domain for entry in whole.entries()} & set(SHIFTED)
    old_rank = {
        entry.i: place
        for place, entry in enumerate(e for e in whole.entries("train") if e.domain not in shifted)
    }
    new = sum(entry.domain in shifted for entry in whole.entries("train"))

    def in_mix(entry: IndexEntry) -> bool:
        return entry.domain in shifted or old_rank.get(entry.i, 0) < max(new // OLD_SHARE, 1)

    return (
        sub_log(whole, world.folder / "logs" / "old", lambda entry: entry.domain not in shifted),
        sub_log(whole, world.folder / "logs" / "new", lambda entry: entry.domain in shifted),
        sub_log(whole, world.folder / "logs" / "mix", in_mix),
    )


def sub_log(whole: HiddenStateLog, folder: Path, keep: Callable[[IndexEntry], bool]) -> Path:
    """A finished log of some of the samples."""
    writer = LogWriter(folder)
    for entry in whole.entries():
        if entry.split == "evaluate" or not keep(entry):
            continue
        states, ids = whole.load(entry)
        writer.append(
            i=entry.i,
            prompt_id=entry.prompt_id,
            domain=entry.domain,
            split=entry.split,
            prompt_tokens=entry.prompt_tokens,
            answer_ids=tuple(entry.answer_ids),
            finish_reason=entry.finish_reason,
            hidden_states=states,
            token_ids=ids,
        )
    writer.finish()
    return folder


def _row(
    name: str,
    ours: Sequence[float],
    plain: Sequence[float],
    goal: float | None,
    unit: str,
    world: Captured,
    beside: str,
) -> Row:
    """Means over the seeds, and each seed's own two figures."""
    seeds = ", ".join(
        f"seed {seed}: {a:.4g} and {b:.4g}" for seed, a, b in zip(world.size.seeds, ours, plain, strict=True)
    )
    words = "; ".join(part for part in (beside, seeds, f"{world.size.epochs} epochs each") if part)
    # A position that no draft of an arm ever reached has nothing to divide by.
    value, baseline = (max(statistics.mean(figures), 1e-4) for figures in (ours, plain))
    return compared(name, value, baseline, goal, unit, words, stage="train")
