"""The thread that forks every process of this interpreter.

The kernel's parent-death signal follows the *thread* that forked. Stages run in threads that end long
before their servers may, so one thread does it, and it lives as long as the interpreter. It is a daemon:
Python never waits for it. A pool's thread is waited for at exit, for ever if Ctrl-C came between its start
and its entry in the pool's books.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class Forker:
    """Runs functions one after another in its thread, where no signal handler interrupts them."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Result]) -> Result:
        """Run `function` in the thread and return its result, or raise its error."""
        self._ensure_thread()
        future: Future[Result] = Future()
        self._work.put((future, function))
        return future.result()

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="launcher", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            future, function = self._work.get()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
