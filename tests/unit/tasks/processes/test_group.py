"""Several processes, all or none, and seen as one."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from profiles.load import load_profile
from tasks.errors import ServiceError
from tasks.processes.group import start_all, start_together
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.processes.registry import read_entries
from tasks.processes.service import running_together
from tasks.run_folder import RunFolder

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def profiled(run: RunFolder) -> RunFolder:
    profile = load_profile("laptop").profile
    (run.path / "profile.json").write_text(profile.model_dump_json())
    return run


def spec(name: str, code: str, *argv: str) -> ProcessSpec:
    words = argv or (sys.executable, "-S", "-c", code)
    return ProcessSpec(name, "serve", "serve", words)


SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


def test_one_that_cannot_start_ends_the_others(profiled: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of three is refused: the first two are gone with their entries."""
    launcher = LocalLauncher()
    start = launcher.start

    def refusing(one: ProcessSpec, run: RunFolder) -> object:
        if one.name == "c":
            raise ServiceError("no room on the third node", where="n3")
        return start(one, run)

    monkeypatch.setattr(launcher, "start", refusing)
    with pytest.raises(ServiceError, match="third node"):
        start_all(launcher, [spec(name, SLEEPS) for name in "abc"], profiled)
    assert list(read_entries(profiled.services)) == []


def test_the_end_of_one_is_the_end_of_all(profiled: RunFolder, eventually: Eventually) -> None:
    """What ends first is what its log and status are asked for."""
    specs = [spec("head", SLEEPS), spec("other", "print('out of memory'); raise SystemExit(7)")]
    with running_together(LocalLauncher(), specs, profiled) as handle:
        assert handle.spec.name == "head" and handle.log.name == "head.log"
        eventually(lambda: handle.poll() is not None)
        assert handle.poll() == 7 and handle.tail() == ["out of memory"] and handle.log.name == "other.log"
    assert list(read_entries(profiled.services)) == []


def test_one_is_itself(profiled: RunFolder) -> None:
    handle = start_together(LocalLauncher(), [spec("only", SLEEPS)], profiled)
    assert type(handle).__name__ == "LocalHandle"
    handle.stop()
    assert start_all(LocalLauncher(), [], profiled) == ()
