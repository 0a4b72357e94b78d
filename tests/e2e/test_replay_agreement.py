"""Replay against the engine on the same prompts: `make verify PART=evaluate`.

It starts from the captures of the run that the demo kept, and makes it first if there is none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_draft import asked_of, decoded, replayed

from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.arms import draft_speculation, serve_arm
from tasks.serve.target_folder import resolve_target
from tasks.stages import STREAM, TRAIN
from tasks.train.run import train_draft
from tasks.train.settings import TrainSettings
from tasks.train.stopping import StopFlag

pytestmark = [pytest.mark.verify("evaluate"), pytest.mark.timeout(4500)]
Record = Callable[[str, object], None]
PER_DOMAIN = 4
"""Prompts of each of nine domains, the same for every draft: 36, and 108 for three drafts."""
TOKENS = 32
MAX_GAP = 0.01
MAX_POINTS = 0.02
SHARES = {"untrained": 0.0, "half trained": 0.5, "best": None}
"""Share of the run's optimizer steps; None takes the draft as the run exported it."""


@dataclass(frozen=True)
class Captures:
    """What the demo's run left."""

    run: RunFolder
    log: Path
    draft: Path
    steps: int
    settings: TrainSettings


@pytest.fixture(scope="module")
def captures(demo_run: RunFolder) -> Captures:
    stream, train = demo_run.stage(STREAM).path, demo_run.stage(TRAIN).path
    stored = json.loads((train / "result.json").read_text(encoding="utf-8"))
    settings = TrainSettings.model_validate_json((train / "config.json").read_text(encoding="utf-8"))
    return Captures(demo_run, stream / "log", train / stored["path"], int(stored["steps"]), settings)


def draft_of(captures: Captures, share: float | None, folder: Path) -> Path:
    """The exported draft, or one that is trained for a share of its steps on the same captures."""
    if share is None:
        return Path(shutil.copytree(captures.draft, folder / "draft"))
    train = captures.settings.train.model_copy(update={"max_steps": round(share * captures.steps)})
    moved = {
        "train": train,
        "log_dir": str(captures.log),
        "folder": str(folder),
        "progress_file": str(folder / "progress.jsonl"),
        "overlap": None,
    }
    done = train_draft(captures.settings.model_copy(update=moved), lambda *_: None, StopFlag())
    assert done is not None
    return folder / done.path


@pytest.mark.parametrize("name", SHARES)
def test_replay_says_what_the_engine_accepts(
    name: str, captures: Captures, tmp_path: Path, record_property: Record
) -> None:
    """Pooled tau of replay and engine differ by 1 % at most, every position's rate by 2 points"""
    profile = captures.run.profile()
    target, asked = resolve_target(profile), asked_of(captures.log, PER_DOMAIN, TOKENS)
    draft = draft_of(captures, SHARES[name], tmp_path / "train")
    ours = replayed(
        profile, tmp_path, target=target, log=captures.log, draft=draft, asked=asked, length=TOKENS
    )
    run = create_run(tmp_path / "runs", "agreement", profile)
    try:
        with serve_arm(
            profile,
            run,
            LocalLauncher(),
            name="arm-draft",
            target_dir=target,
            speculation=draft_speculation(profile, draft),
            progress=SilentProgress(),
        ) as arm:
            live = decoded(arm, asked, profile.evaluate.live.concurrency)
    finally:
        close_registry(run.services)
    record_property("prompts", len(asked))
    record_property("tau_replay", f"{ours.tau:.4f}")
    record_property("tau_live", f"{live.tau:.4f}")
    record_property("gap", f"{abs(live.tau - ours.tau) / ours.tau:.4f}")
    record_property("seconds_replay_live", f"{ours.seconds:.1f} {live.seconds:.1f}")
    assert len(asked) >= 9 * PER_DOMAIN and live.differing == ()
    assert abs(live.tau - ours.tau) / ours.tau <= MAX_GAP
    rates = [
        (a / live.counts.rounds, b / ours.counts.rounds)
        for a, b in zip(live.counts.per_position, ours.counts.per_position, strict=True)
    ]
    record_property("positions_live", " ".join(f"{a:.3f}" for a, _ in rates))
    record_property("positions_replay", " ".join(f"{b:.3f}" for _, b in rates))
    assert max(abs(a - b) for a, b in rates) <= MAX_POINTS
