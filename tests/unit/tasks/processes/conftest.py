from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.processes.guard import close_registry
from tasks.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """An empty run folder whose guard ends with the test."""
    folder = RunFolder(tmp_path / "runs" / "run-1")
    for path in (folder.logs, folder.services, folder.progress):
        path.mkdir(parents=True)
    yield folder
    close_registry(folder.services)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition holds; fails after minutes: a loaded machine is no fault."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "the condition never held"
            time.sleep(0.02)

    return wait
