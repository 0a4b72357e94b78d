"""The target of a run: started by the first stage that needs it, ended before training needs the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from tasks.processes.launcher import Handle
from tasks.serve.models import TargetEndpoint, TargetIdentity


class Server(Protocol):
    """What `tasks.serve.target.TargetServer` offers."""

    def open(self) -> tuple[TargetIdentity, TargetEndpoint]:
        """Start and wait until it answers."""

    def close(self) -> None:
        """End it."""

    def handles(self) -> Sequence[Handle]:
        """Processes that it started."""

    def watch(self) -> Callable[[], None]:
        """A check to call often while requests are open; it raises when the server makes no progress."""


class LazyTarget:
    """Starts the target at the first `open`, and only then.

    Args:
        make: Makes the server; it is not started by that.
    """

    def __init__(self, make: Callable[[], Server]) -> None:
        self._make = make
        self._server: Server | None = None
        self._answer: tuple[TargetIdentity, TargetEndpoint] | None = None

    def open(self) -> tuple[TargetIdentity, TargetEndpoint]:
        """Identity and endpoint of the running target."""
        if self._answer is None:
            self._server = self._make()
            self._answer = self._server.open()
        return self._answer

    def handles(self) -> Sequence[Handle]:
        """Processes of the running target; none if it was not started, or is not ours."""
        return self._server.handles() if self._server is not None else ()

    def watch(self) -> Callable[[], None]:
        """A check of the running target, to call often while requests are open.

        Raises:
            RuntimeError: The target was not opened.
        """
        if self._server is None:
            raise RuntimeError("the target is not open")
        return self._server.watch()

    def close(self) -> None:
        """End the target if it was started."""
        server, self._server, self._answer = self._server, None, None
        if server is not None:
            server.close()


@contextmanager
def lazy_target(make: Callable[[], Server]) -> Iterator[LazyTarget]:
    """A target that is ended on every way out of the block."""
    target = LazyTarget(make)
    try:
        yield target
    finally:
        target.close()
