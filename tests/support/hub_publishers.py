"""Publishers in processes of their own, which a hub kills at a request that a test chooses.

They are forks of a server that has imported the hub's client: a kill costs no imports.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from publishing_hub import WRITER, RunningHub, hasty, published, settings

from tasks.errors import EXIT_FAILED, RetrainError
from tasks.publish.hub.rollback import roll_back
from tasks.publish.verify import verify_folder

_context = multiprocessing.get_context("forkserver")
_PR_SET_PDEATHSIG = 1


def publish_folder(folder: Path, together: Barrier | None) -> None:
    """Publish a version; with `together`, only once another publisher is as far."""

    def load(fetched: Path) -> None:
        verify_folder(fetched)
        if together is not None:
            together.wait(300)

    published(folder, load=load)


def take_back(leaving: str, to: str) -> None:
    ours = settings()
    roll_back(ours, token=WRITER, leaving=leaving, to=to, patience=hasty(ours))


class Publisher:
    """A process that does its work once it is told to.

    Args:
        log: Its output; an error of ours stands there.
    """

    def __init__(self, hub: RunningHub, log: Path, work: Callable[..., None], *args: object) -> None:
        self.log, (self._go, ready) = log, _context.Pipe()
        self._process: BaseProcess = _context.Process(
            target=_be_publisher, args=(hub.url, log, ready, work, args)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def begin(self) -> None:
        self._go.send("go")

    def end(self) -> int:
        """Its exit status; negative for a signal."""
        self._process.join(600)
        assert self._process.exitcode is not None, "the publisher does not end"
        return self._process.exitcode

    def run(self) -> int:
        self.begin()
        return self.end()


def _be_publisher(
    url: str, log: Path, ready: Connection, work: Callable[..., None], args: tuple[object, ...]
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    from huggingface_hub import constants

    os.environ["HF_ENDPOINT"] = url
    constants.HF_HUB_DISABLE_XET, constants.HF_HUB_OFFLINE = True, False
    ready.recv()
    try:
        work(*args)
    except RetrainError as error:
        print(error, flush=True)
        sys.exit(EXIT_FAILED)
