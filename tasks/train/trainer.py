"""The run's trainer: started beside the capture where the profile overlaps them, by stage train otherwise."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.errors import RetrainError
from tasks.execute import RunContext, begin_stage, end_begun
from tasks.processes.job import run_job
from tasks.processes.started import StartedJob
from tasks.report.progress import Progress, figure
from tasks.serve.models import TargetIdentity
from tasks.serve.target_folder import read_target_config, resolve_target
from tasks.stages import STREAM, TRAIN
from tasks.stream.follower import LogFollower
from tasks.stream.models import CaptureManifest
from tasks.stream.retention import forget_consumed
from tasks.stream.settings import CaptureFiles
from tasks.train.core import check_inputs, check_shape, read_result, settings_for, trainer_spec
from tasks.train.models import DraftCheckpoint
from tasks.train.settings import WAITING, TrainSettings

_POLL_S = 0.1
log = logging.getLogger("retrain_dspark")


class Trainer:
    """Starts, follows and ends the trainer's process of one run.

    Args:
        ctx: The run.

    Attributes:
        captures_of: Digest of all that decides the captures: what stands for their own digest until they
            are complete. Set by stage stream.
    """

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self._files = CaptureFiles(ctx.run.stage(STREAM).path)
        self._settings: Callable[[], TrainSettings] | None = None
        self._job: StartedJob | None = None
        self._error: RetrainError | None = None
        self._ended = False
        self._ending: threading.Thread | None = None
        self._sign = 0.0
        self._both: _BothWorks | None = None
        self.captures_of = ""

    def begin(self, identity: TargetIdentity) -> None:
        """Get ready to train beside the capture that follows; nothing without `stream.overlap`.

        Raises:
            StageInputError: The target's captures would not fit the profile.
        """
        ctx = self._ctx
        if not ctx.profile.stream.overlaps:
            return
        target_dir = resolve_target(ctx.profile)
        check_shape(ctx.profile, identity.layer_ids, identity.hidden_size, read_target_config(target_dir))
        folder = begin_stage(ctx, TRAIN, {"captures_of": self.captures_of})
        if ctx.profile.stream.retention == "window" and not any(folder.glob("checkpoints/step-*")):
            # No checkpoint holds what an earlier attempt consumed: the capture client brings it again.
            self._files.log.mkdir(parents=True, exist_ok=True, mode=0o700)
            forget_consumed(self._files.log)
        self._settings = lambda: settings_for(
            ctx.profile,
            ctx.run,
            folder,
            self._files,
            target_dir,
            self.captures_of,
            identity.hidden_size,
            identity.dtype,
        )

    def started_with(self) -> Mapping[str, str] | None:
        """Inputs that are known before the captures are complete; None without `stream.overlap`."""
        return {"captures_of": self.captures_of} if self._ctx.profile.stream.overlaps else None

    def beside(self, shown: Progress) -> Progress:
        """Where the capture reports to: what the trainer does is shown with it."""
        if self._settings is None:
            return shown
        self._both = _BothWorks(shown)
        return self._both

    def watch(self) -> None:
        """Start the trainer when there is something to train on, then look after it; call it often.

        Raises:
            RetrainError: It ended, and with it the reason to go on capturing (`retention: window`).
        """
        if self._settings is None or self._ended or self._error is not None:
            return
        try:
            if self._job is None:
                self._start_if_possible()
            else:
                self._follow(self._job)
        except RetrainError as error:
            self._fail(error)

    def _start_if_possible(self) -> None:
        # Its first word means that the capture client has put the log in order.
        if self._both is None or not self._both.has_spoken or not self._has_samples(self._both):
            return
        assert self._settings is not None, "watch looked"
        settings = self._settings()
        self._sign = time.monotonic()
        self._job = StartedJob(
            self._ctx.launcher, trainer_spec(settings), self._ctx.run, Path(settings.progress_file)
        )
        log.info("train: the trainer starts beside the capture")

    def _has_samples(self, both: _BothWorks) -> bool:
        """Whether there is something to train on; a log on another node's own disk is only heard of."""
        if self._files.log.is_symlink():
            return both.captured > 0
        return bool(LogFollower(self._files.log).poll())

    def _follow(self, job: StartedJob) -> None:
        for row in job.rows():
            self._sign = time.monotonic()
            if self._both is not None:
                self._both.tell(row)
        self._ended = job.has_ended()
        if not self._ended:
            self._check_signs(job)

    def _check_signs(self, job: StartedJob) -> None:
        if time.monotonic() - self._sign > (limit := self._ctx.profile.train.stall_timeout_s):
            raise job.stalled(limit)

    def _fail(self, error: RetrainError) -> None:
        """The trainer ended too early: of a window nothing more may be captured, else the captures count."""
        what = f"training ended while the captures came in: {error.what}"
        self._error = type(error)(what, where=error.where, hint=error.hint, log_tail=error.log_tail)
        self._stop()
        if self._ctx.profile.stream.retention == "window":
            raise self._error
        line = f"train: {what}; the capture goes on, and resume continues training"
        log.warning(line)
        self._ctx.progress.say(line)

    def finish(self, folder: Path, captures: CaptureManifest) -> DraftCheckpoint:
        """Wait for the trainer's end; start it first if it does not run yet.

        Raises:
            StageInputError: The captures do not fit the profile or the target.
            RetrainError: The trainer ended with an error, or made no progress.
        """
        ctx, target_dir = self._ctx, resolve_target(self._ctx.profile)
        if self._error is not None:
            raise self._error
        check_inputs(ctx.profile, captures, read_target_config(target_dir))
        if self._job is None:
            digest = self.captures_of if ctx.profile.stream.overlaps else captures.digest
            settings = settings_for(
                ctx.profile,
                ctx.run,
                folder,
                self._files,
                target_dir,
                digest,
                captures.hidden_size,
                captures.dtype,
            )
            run_job(
                ctx.launcher,
                trainer_spec(settings),
                ctx.run,
                progress=ctx.progress,
                progress_file=Path(settings.progress_file),
                stall_timeout_s=ctx.profile.train.stall_timeout_s,
            )
        else:
            self._wait(self._job)
        return read_result(folder, captures.digest)

    def _wait(self, job: StartedJob) -> None:
        self._sign = time.monotonic()
        try:
            while not self._has_ended(job):
                self._check_signs(job)
                time.sleep(_POLL_S)
        finally:
            self._stop()

    def _has_ended(self, job: StartedJob) -> bool:
        """Show what the trainer reports now that nobody captures: waiting is no progress any more."""
        ended = job.has_ended()
        for row in job.rows():
            _show(self._ctx.progress, row)
            if row["note"] != WAITING:
                self._sign = time.monotonic()
        return ended

    def _stop(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.stop()

    def end_now(self) -> None:
        """Let the trainer write its checkpoint and end while others end too; `close` waits for it.

        On Ctrl-C everything must be gone within seconds. Ended only after the capture client and the target
        have taken their time, the trainer would be killed before its checkpoint is complete.
        """
        job, self._job = self._job, None
        self._ended = True
        if job is not None:
            self._ending = threading.Thread(target=job.stop, name="ending-the-trainer")
            self._ending.start()

    def close(self, status: str) -> None:
        """End the trainer, which writes a checkpoint, and close what it began.

        Args:
            status: MLflow's, of a stage that did not come to its end.
        """
        try:
            self._stop()
            if self._ending is not None:
                self._ending.join()
        finally:
            end_begun(self._ctx, status)


@contextmanager
def trainer_of(ctx: RunContext) -> Iterator[Trainer]:
    """The run's trainer, ended on every way out."""
    trainer = Trainer(ctx)
    status = "KILLED"
    try:
        yield trainer
    except Exception:
        status = "FAILED"
        raise
    finally:
        trainer.close(status)


def _show(progress: Progress, row: Mapping[str, Any]) -> None:
    progress.update(
        done=row["done"], total=row["total"], unit=row["unit"], metrics=row["metrics"], note=row["note"]
    )


class _BothWorks:
    """Shows two works at once: the capture's own figures, and the trainer's in few words behind them."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._capture: dict[str, Any] = {}
        self._training = ""

    @property
    def has_spoken(self) -> bool:
        """The capture client has reported something."""
        return bool(self._capture)

    @property
    def captured(self) -> float:
        """Samples that the capture client has reported."""
        return float(self._capture.get("done", 0))

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        self._capture = {"done": done, "total": total, "unit": unit, "metrics": metrics, "note": note}
        self._emit()

    def tell(self, row: Mapping[str, Any]) -> None:
        """Take what the trainer reported."""
        parts = [f"training {row['done']:g}/{row['total']:g} {row['unit']}"]
        parts += [figure(name, value) for name, value in list(row["metrics"].items())[:1]]
        parts += [row["note"]] if row["note"] else []
        self._training = ", ".join(parts)
        self._emit()

    def _emit(self) -> None:
        words = [word for word in (self._capture["note"], self._training) if word]
        self._shown.update(**{**self._capture, "note": "; ".join(words)})
