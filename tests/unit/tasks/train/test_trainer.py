"""The trainer beside the capture: when it starts, what is shown, who is told when it dies, how it ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.load import load_profile
from tasks.errors import JobError, StageInputError
from tasks.execute import RunContext, execute_stage
from tasks.processes.child import ERROR_FILE_ENV, ProgressFile
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.serve.models import TargetIdentity
from tasks.stages import STREAM, TRAIN
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.stream.retention import consumed, mark_consumed
from tasks.train import trainer as module
from tasks.train.models import DraftCheckpoint
from tasks.train.settings import WAITING, TrainSettings
from tasks.train.trainer import Trainer, trainer_of
from tests.unit.tasks.test_execute import Recorder
from tests.unit.tasks.train.arriving import MIXED, capture_again
from tests.unit.tasks.train.conftest import AUX_LAYERS, HIDDEN, VOCAB, TinyWorld

SLEEP = "import time; time.sleep(600)"


class Shown(SilentProgress):
    """Remembers what a user sees."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.said: list[str] = []

    def update(self, **row: Any) -> None:
        self.rows.append(row)

    def say(self, line: str) -> None:
        self.said.append(line)


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(0.001)


IDENTITY = TargetIdentity(
    served_name="m",
    model_digest="d",
    revision=None,
    architecture="a",
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    num_hidden_layers=4,
    dtype="float32",
    layer_ids=(*AUX_LAYERS, 4),
    tokenizer_digest="t",
    template_digest="t",
    engine="e",
    connector="c",
    argv=("a",),
)
CAPTURES = CaptureManifest(
    log="log",
    digest="final",
    target="d",
    layer_ids=(*AUX_LAYERS, 4),
    hidden_size=HIDDEN,
    dtype="float32",
    samples=24,
    tokens=2,
    trainable_tokens=1,
    distinct_tokens=2,
    bytes=8,
    splits={"train": 20},
    counters=CaptureCounters(),
)
DRAFT = DraftCheckpoint(
    path="draft",
    files={},
    step=1,
    steps=1,
    epochs=1,
    parameters=1,
    trained_parameters=1,
    draft_vocab_size=2,
    block_size=2,
    held_out_eal=1.5,
    metrics={},
    config={"captures": ""},
)


@pytest.fixture
def made(world: TinyWorld, tmp_path: Path) -> Iterator[Callable[..., RunContext]]:
    """Makes the context of a run whose capture client was given its prompts."""
    contexts: list[RunContext] = []

    def make(**stream: Any) -> RunContext:
        values = {
            "target": {"model": str(world.target), "source": {"kind": "path"}, "aux_layer_ids": AUX_LAYERS},
            "stream": {"overlap": True, **stream},
            "train": {"epochs": 1, "stall_timeout_s": 60, "draft": {"vocab_size": None}},
        }
        profile = load_profile("laptop", values).profile
        run = create_run(tmp_path, "r", profile)
        work = run.stage(STREAM).path / "work"
        work.mkdir(parents=True, exist_ok=True)
        splits = ["train"] * 20 + ["held_out"] * 4 + ["evaluate"]
        (work / "prompts.jsonl").write_text("".join(json.dumps({"split": one}) + "\n" for one in splits))
        ctx = RunContext(run, profile, Recorder(), Shown(), LocalLauncher(), attempt="a")
        contexts.append(ctx)
        return ctx

    yield make
    for ctx in contexts:
        close_registry(ctx.run.services)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[TrainSettings]]:
    """Puts a small program in the trainer's place; the list gets the settings that it was started with."""

    def use(text: str) -> list[TrainSettings]:
        started: list[TrainSettings] = []

        def spec(settings: TrainSettings) -> ProcessSpec:
            started.append(settings)
            return ProcessSpec("trainer", "train", "train", (sys.executable, "-I", "-c", text))

        monkeypatch.setattr(module, "trainer_spec", spec)
        return started

    return use


def begun(ctx: RunContext) -> Trainer:
    trainer = Trainer(ctx)
    trainer.captures_of = "planned"
    trainer.begin(IDENTITY)
    return trainer


def capture_under_way(ctx: RunContext, world: TinyWorld, trainer: Trainer) -> None:
    """The capture client has opened the log, and the first samples are in it."""
    capture_again(world.log, ctx.run.stage(STREAM).path / "log", MIXED[:3], finish=False)
    trainer.beside(ctx.progress).update(done=3, total=25, unit="samples", note="")
    trainer.watch()


def watched_until_ended(trainer: Trainer) -> None:
    deadline = time.monotonic() + 120
    while trainer._job is not None and not trainer._ended:
        assert time.monotonic() < deadline
        trainer.watch()


def dying(message: str) -> str:
    row = {"kind": "StageInputError", "what": message, "where": "here", "hint": "do this"}
    return (
        f"import os, sys; open(os.environ['{ERROR_FILE_ENV}'], 'w').write({json.dumps(row)!r}); sys.exit(1)"
    )


def test_it_starts_with_the_first_sample_and_not_before(made: Any, program: Any, world: TinyWorld) -> None:
    ctx, started = made(), program(SLEEP)
    with trainer_of(ctx) as trainer:
        trainer.captures_of = "planned"
        trainer.begin(IDENTITY)
        shown = trainer.beside(ctx.progress)
        trainer.watch()
        shown.update(done=0, total=25, unit="samples")
        trainer.watch()
        assert started == []
        capture_under_way(ctx, world, trainer)
        assert [entry.name for entry in ctx.run.services.glob("*.json")] == ["trainer.json"]
        pid = json.loads((ctx.run.services / "trainer.json").read_text())["pid"]
    (settings,) = started
    assert settings.overlap is not None and settings.captures_digest == "planned"
    assert (settings.overlap.train_prompts, settings.overlap.held_out_prompts) == (20, 4)
    assert not psutil.pid_exists(pid) and not list(ctx.run.services.glob("*.json"))


def test_without_overlap_nothing_begins_early(made: Any, program: Any, world: TinyWorld) -> None:
    ctx, started = made(overlap=False), program(SLEEP)
    trainer = begun(ctx)
    assert trainer.beside(ctx.progress) is ctx.progress
    trainer.watch()
    trainer.close("FAILED")
    assert started == [] and ctx.rows == [] and ctx.tracker.ended == []


def test_captures_that_will_not_fit_are_refused_before_the_first_request(made: Any) -> None:
    trainer = Trainer(made())
    with pytest.raises(StageInputError, match=r"hold layers \[0, 4\]"):
        trainer.begin(IDENTITY.model_copy(update={"layer_ids": (0, 4)}))


def test_both_works_are_shown_in_one_line(made: Any, program: Any, world: TinyWorld) -> None:
    ctx, started = made(), program(SLEEP)
    with trainer_of(ctx) as trainer:
        trainer.begin(IDENTITY)
        capture_under_way(ctx, world, trainer)
        file = ProgressFile(started[0].progress_file)
        file.write(12, 20, "samples", {"loss": 0.51}, "")
        trainer.watch()
    row = ctx.progress.rows[-1]
    assert (row["done"], row["total"], row["unit"]) == (3, 25, "samples")
    assert row["note"] == "training 12/20 samples, loss 0.51"


def test_captures_are_kept_when_the_trainer_dies(made: Any, program: Any, world: TinyWorld) -> None:
    ctx, _ = made(), program(dying("no memory"))
    with trainer_of(ctx) as trainer:
        trainer.begin(IDENTITY)
        capture_under_way(ctx, world, trainer)
        watched_until_ended(trainer)
        trainer.watch()
        assert len(ctx.progress.said) == 1 and "the capture goes on" in ctx.progress.said[0]
        with pytest.raises(StageInputError, match="while the captures came in: no memory"):
            execute_stage(ctx, TRAIN, {}, lambda folder: trainer.finish(folder, CAPTURES))
    assert [(row.name, row.status) for row in ctx.rows] == [("train", "failed")]
    assert ctx.tracker.ended == [("train", "FAILED")]


def test_capture_into_a_window_ends_when_the_trainer_dies(made: Any, program: Any, world: TinyWorld) -> None:
    ctx, _ = made(retention="window", window_bytes=10_000_000), program(dying("no memory"))

    def capture() -> None:
        with trainer_of(ctx) as trainer:
            trainer.begin(IDENTITY)
            capture_under_way(ctx, world, trainer)
            watched_until_ended(trainer)

    with pytest.raises(StageInputError, match="no memory"):
        capture()
    assert [(row.name, row.status) for row in ctx.rows] == [("train", "failed")]
    assert ctx.tracker.ended == [("train", "FAILED")]


def test_waiting_for_captures_is_no_stall_while_they_come_but_is_one_after(
    made: Any, program: Any, world: TinyWorld, clock: Clock
) -> None:
    ctx, started = made(), program(SLEEP)
    with trainer_of(ctx) as trainer:
        trainer.begin(IDENTITY)
        capture_under_way(ctx, world, trainer)
        file = ProgressFile(started[0].progress_file)
        for _ in range(5):
            clock.now += 50
            file.write(2, 20, "samples", {}, WAITING)
            trainer.watch()
        assert ctx.progress.said == []
        waited_from = clock.now

        def said_again(seconds: float) -> None:
            clock.now += 20
            file.write(2, 20, "samples", {}, WAITING)

        clock.sleep = said_again  # type: ignore[method-assign]
        with pytest.raises(JobError, match="no progress for 60 s"):
            trainer.finish(ctx.run.stage(TRAIN).path, CAPTURES)
        assert clock.now - waited_from <= 100


def test_a_trainer_that_hangs_beside_the_capture_is_noticed(
    made: Any, program: Any, world: TinyWorld, clock: Clock
) -> None:
    ctx, _ = made(retention="window", window_bytes=10_000_000), program(SLEEP)
    with trainer_of(ctx) as trainer:
        trainer.begin(IDENTITY)
        capture_under_way(ctx, world, trainer)
        clock.now += 61
        with pytest.raises(JobError, match="no progress for 60 s"):
            trainer.watch()


def test_train_takes_over_and_names_the_captures_that_came_in(
    made: Any, program: Any, world: TinyWorld
) -> None:
    ctx = made()
    result = ctx.run.stage(TRAIN).path / "result.json"
    program(f"import pathlib; pathlib.Path({str(result)!r}).write_text({DRAFT.model_dump_json()!r})")
    with trainer_of(ctx) as trainer:
        trainer.captures_of = "planned"
        trainer.begin(IDENTITY)
        (ctx.run.stage(TRAIN).path / "kept").touch()
        capture_under_way(ctx, world, trainer)
        draft = execute_stage(
            ctx,
            TRAIN,
            {"captures": "final"},
            lambda folder: trainer.finish(folder, CAPTURES),
            trainer.started_with(),
        )
    assert draft.config["captures"] == "final"
    manifest = json.loads((ctx.run.stage(TRAIN).path / "manifest.json").read_text())
    assert manifest["fingerprint"]["inputs"] == {"captures": "final"}
    assert "kept" in manifest["files"] and not list(ctx.run.services.glob("*.json"))
    assert ctx.tracker.ended == [("train", "FINISHED")]
    assert [(row.name, row.status) for row in ctx.rows] == [("train", "completed")]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_what_a_window_lost_is_captured_again_unless_a_checkpoint_holds_it(
    made: Any, checkpoint: bool
) -> None:
    ctx = made(retention="window", window_bytes=10_000_000)
    begun(ctx).close("FAILED")
    if checkpoint:
        (ctx.run.stage(TRAIN).path / "checkpoints" / "step-3").mkdir(parents=True)
    log = ctx.run.stage(STREAM).path / "log"
    log.mkdir(exist_ok=True)
    mark_consumed(log, [1, 2])
    begun(ctx).close("FAILED")
    assert consumed(log) == (frozenset({1, 2}) if checkpoint else frozenset())


def test_it_ends_beside_the_target_and_is_waited_for(
    made: Any, program: Any, world: TinyWorld, tmp_path: Path
) -> None:
    """Told once, at once; it saves only after its `end_now` has returned, as others take their time."""
    others, up, saved = tmp_path / "others-ended", tmp_path / "up", tmp_path / "saved"
    text = (
        "import pathlib, signal, sys, time\n"
        f"others, up, saved = map(pathlib.Path, ({str(others)!r}, {str(up)!r}, {str(saved)!r}))\n"
        "def end(*_):\n"
        "    while not others.exists():\n        time.sleep(0.01)\n"
        "    saved.touch()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nup.touch()\ntime.sleep(600)"
    )
    ctx, started = made(), program(text)
    with trainer_of(ctx) as trainer:
        trainer.begin(IDENTITY)
        capture_under_way(ctx, world, trainer)
        deadline = time.monotonic() + 60
        while not up.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        trainer.end_now()
        trainer.watch()
        others.touch()
    assert saved.exists() and len(started) == 1, "it wrote its checkpoint, and nobody started it again"
    assert not list(ctx.run.services.glob("*.json"))
