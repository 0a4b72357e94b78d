"""One hub for all tests of a file; each test has a repository of its own in a fresh folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from publishing_hub import RunningHub, running_hub, use_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "hub") as found:
        use_hub(monkeypatch, found)
        yield found


@pytest.fixture
def version(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder of a published version; each call makes the next one."""
    from tasks.publish.core import publish
    from tests.unit.tasks.publish.drafts import better_than, evaluation, publish_inputs

    made: list[str] = []

    def make(**changes: Any) -> Path:
        run = f"r{len(made) + 1}"
        if made:
            changes.setdefault("evaluation", evaluation(**better_than(f"v{len(made):04d}")))
        made.append(run)
        return Path(publish(**publish_inputs(tmp_path, run, **changes)).location)

    return make
