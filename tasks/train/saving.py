"""Checkpoints written beside training: the state is copied, and a thread writes the copy."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from tasks.errors import JobError
from tasks.train.checkpoint import Checkpoints, Position


@dataclass(frozen=True)
class State:
    """What a checkpoint holds besides the position; live tensors, whole or a rank's shards."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]


class Saver:
    """Writes in the order of asking, one after another, in one thread at a time.

    Args:
        checkpoints: Where to.
    """

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._open = 0
        self._failed: JobError | None = None
        self._complete: list[Position] = []
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Something is still being written."""
        with self._changed:
            return self._open > 0

    def save(self, position: Position, state: State) -> None:
        """Copy the state and have it written; waits for what is still being written.

        Raises:
            JobError: An earlier write failed.
        """
        self.wait()  # one copy of the state is enough memory, and its place is used again
        copied: Any = self._stager.stage(
            {"model": dict(state.model), "optimizer": dict(state.optimizer), "random": dict(state.random)}
        )

        def write() -> None:
            self._checkpoints.save(position, copied["model"], copied["optimizer"], copied["random"])
            with self._changed:
                self._complete.append(position)

        self._ask(f"the checkpoint of step {position.step}", write)

    def save_best(self, position: Position, weights: Mapping[str, Tensor]) -> None:
        """Have the best weights written; `weights` are a copy that nobody changes."""
        self._ask(
            f"the best weights (step {position.step})",
            lambda: self._checkpoints.save_best(position, weights),
        )

    def save_untrained(self, position: Position, weights: Mapping[str, Tensor]) -> None:
        """Have the weights from before the first step written; `weights` are a copy."""
        self._ask("the untrained weights", lambda: self._checkpoints.save_untrained(position, weights))

    def complete(self) -> list[Position]:
        """Positions whose checkpoints have become complete since the last call.

        Raises:
            JobError: A write failed.
        """
        with self._changed:
            done, self._complete = self._complete, []
            if self._failed is not None:
                raise self._failed
        return done

    def wait(self) -> None:
        """Wait until nothing is left to write.

        Raises:
            JobError: A write failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)
            if self._failed is not None:
                raise self._failed

    def _ask(self, what: str, job: Callable[[], None]) -> None:
        with self._changed:
            self._open += 1
            self._jobs.put((what, job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
                self._thread.start()

    def _write_all(self) -> None:
        """The thread: after a failure it writes nothing more, so that no later state hides the gap.

        It ends when nothing is left to write, so that a training that is over keeps no state alive.
        """
        while True:
            what, job = self._jobs.get()
            try:
                if self._failed is None:
                    job()
            except Exception as error:  # whatever it is must stop training
                self._failed = self._error(what, error)
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
                if self._open == 0:
                    self._thread = None
                    return

    def _error(self, what: str, error: Exception) -> JobError:
        cause = str(error).strip().splitlines() or [""]
        return JobError(
            f"{what} could not be written: {type(error).__name__}: {cause[-1][:300]}",
            where=str(self._checkpoints.folder),
            hint="free space or repair the disk; resume continues from the last complete checkpoint",
        )
