"""Row `replay`: replaying answers against having the engine decode them with the same draft, on one CPU.

The live side is the DSpark arm as the evaluate stage starts it, through Triton's interpreter; its start is
not counted, nor are replay's imports, but replay's loading of draft and target is. Both walk the same
answers, and must come to the same rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import Row, compared, machine
from servers import Workplace, extracting, workplace

from tasks.evaluate.draft_check import record_of
from tasks.report.progress import SilentProgress
from tasks.serve.arms import draft_speculation, serve_arm
from tasks.stream.settings import CaptureFiles
from tasks.train.core import settings_for
from tasks.train.run import train_draft
from tasks.train.stopping import StopFlag
from tests.support.live_draft import Asked, Decoded, asked_of, decoded, replayed

GOAL = 10.0
MAX_GAP = 0.02
"""Relative difference of the two acceptance lengths above which the sides did not do the same."""


@dataclass(frozen=True)
class ReplaySize:
    """How much is decoded.

    Args:
        per_domain: Prompts of each domain that are decoded, and twice as many that the draft trains on.
        tokens: Longest answer.
        epochs: Passes of the training.
        runs: Repetitions of each side.
    """

    per_domain: int = 4
    tokens: int = 32
    epochs: int = 4
    runs: int = 3

    def fields(self) -> dict[str, Any]:
        """Fields of the profile."""
        return {
            "prompts": {"train_per_domain": 2 * self.per_domain, "evaluate_per_domain": self.per_domain},
            "stream": {"max_new_tokens": self.tokens},
            "train": {"epochs": self.epochs},
            "evaluate": {"replay_max_new_tokens": self.tokens, "live": {"max_new_tokens": self.tokens}},
        }


def rows(folder: Path, size: ReplaySize | None = None) -> list[Row]:
    """The row; captures and a short training come first."""
    size = size or ReplaySize()
    with workplace(folder, "bench-replay", size.fields()) as place:
        files = CaptureFiles(place.run.path / "stream")
        with extracting(place) as target:
            found = target.capture(place.run.path / "stream")
        settings = settings_for(
            place.profile,
            place.run,
            folder / "train",
            files,
            place.target,
            found.digest,
            found.hidden_size,
            found.dtype,
        )
        done = train_draft(settings, lambda *_: None, StopFlag())
        assert done is not None
        draft, log = folder / "train" / done.path, Path(settings.log_dir)
        asked = asked_of(log, None, size.tokens)
        ours = [
            replayed(
                place.profile,
                folder / f"replay-{run}",
                target=place.target,
                log=log,
                draft=draft,
                asked=asked,
                length=size.tokens,
                record=record_of(done),
            )
            for run in range(size.runs)
        ]
        live = live_runs(place, draft, asked, size.runs)
    return [replay_row(ours, live, sum(len(one.answer) for one in asked), size)]


def live_runs(place: Workplace, draft: Path, asked: Sequence[Asked], runs: int) -> list[Decoded]:
    """Decode every evaluation prompt `runs` times on one server, after one warm-up answer."""
    with serve_arm(
        place.profile,
        place.run,
        place.launcher,
        name="arm-draft",
        target_dir=place.target,
        speculation=draft_speculation(place.profile, draft),
        progress=SilentProgress(),
    ) as arm:
        decoded(arm, asked[:1], 1)
        return [decoded(arm, asked, place.profile.evaluate.live.concurrency) for _ in range(runs)]


def replay_row(replays: Sequence[Decoded], lived: Sequence[Decoded], tokens: int, size: ReplaySize) -> Row:
    """Answer tokens per second of both sides, medians.

    Raises:
        AssertionError: The sides accepted differently, so they did not do the same work.
    """
    ours, live = (statistics.median(one.seconds for one in side) for side in (replays, lived))
    gap = abs(lived[0].tau - replays[0].tau) / replays[0].tau
    if gap > MAX_GAP:
        raise AssertionError(f"live accepts {lived[0].tau:.3f} a round, replay {replays[0].tau:.3f}")
    conditions = (
        f"at least {GOAL:.0f}; replay {ours:.1f} s with loading and without imports, live {live:.1f} s "
        f"without its start (replay {_shown(replays)}; live {_shown(lived)}), medians of {size.runs}; "
        f"{tokens} answer tokens, tau {replays[0].tau:.3f} and {lived[0].tau:.3f}; the live arm runs its "
        f"kernels in Triton's interpreter; {machine()}"
    )
    return compared("replay", tokens / ours, tokens / live, GOAL, "answer tokens/s", conditions, "evaluate")


def _shown(side: Sequence[Decoded]) -> str:
    return ", ".join(f"{one.seconds:.1f}" for one in side)
