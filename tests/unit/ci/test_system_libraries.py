"""Missing libraries of the operating system: which package, and where unpacked ones are found."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "system_libraries.py"


@pytest.fixture
def libraries() -> ModuleType:
    spec = importlib.util.spec_from_file_location("system_libraries", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def loads(libraries: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, ...]]]:
    """Let the store's import fail with these messages in turn; returns what was asked of apt."""

    def prepare(*messages: str) -> list[tuple[str, ...]]:
        left, asked = list(messages), []

        def run(*_: Any, **__: Any) -> Any:
            message = left.pop(0) if left else ""
            return SimpleNamespace(returncode=1 if message else 0, stderr=message)

        def get(names: tuple[str, ...], venv: Path) -> None:
            asked.append(names)

        monkeypatch.setattr(libraries, "subprocess", SimpleNamespace(run=run))
        monkeypatch.setattr(libraries, "_get", get)
        monkeypatch.setattr(libraries.shutil, "which", lambda *_, **__: "/bin/lscpu")
        return asked

    return prepare


def missing(library: str) -> str:
    return f"ImportError: {library}: cannot open shared object file: No such file or directory"


def test_each_missing_library_is_got_in_turn(
    libraries: ModuleType, loads: Callable[..., list[tuple[str, ...]]], tmp_path: Path
) -> None:
    asked = loads(missing("libibverbs.so.1"), missing("libcurl.so.4"))
    assert libraries.provide(tmp_path, tmp_path / "python") is None
    assert asked == [("libibverbs1",), ("libcurl4t64", "libcurl4")]


def test_an_unknown_library_is_named_and_not_guessed(
    libraries: ModuleType, loads: Callable[..., list[tuple[str, ...]]], tmp_path: Path
) -> None:
    asked = loads(missing("libsurprise.so.2"))
    what, _remedy, log = libraries.provide(tmp_path, tmp_path / "python")
    assert "cannot be loaded" in what and "libsurprise" in log and asked == []


def test_a_library_that_stays_missing_ends_the_search(
    libraries: ModuleType, loads: Callable[..., list[tuple[str, ...]]], tmp_path: Path
) -> None:
    asked = loads(*[missing("libnuma.so.1")] * 5)
    assert libraries.provide(tmp_path, tmp_path / "python") is not None
    assert len(asked) == 1


def test_unpacked_libraries_come_before_the_users(
    libraries: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/users")
    assert libraries.library_path(tmp_path) == {}
    folder = tmp_path / "lib-os" / "usr" / "lib" / "x86_64-linux-gnu"
    folder.mkdir(parents=True)
    assert libraries.library_path(tmp_path) == {"LD_LIBRARY_PATH": f"{folder}:/users"}


def test_every_python_of_the_environment_hands_them_on(
    libraries: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    folder = tmp_path / "lib-os" / "lib" / "x86_64-linux-gnu"
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    site.mkdir(parents=True)
    libraries._tell_python(tmp_path)
    line = (site / "retrain_dspark_libraries.pth").read_text(encoding="utf-8")
    assert line.startswith("import ") and line.count("\n") == 1, "site runs only lines that begin with import"
    program = f"{line}{line}print(os.environ['LD_LIBRARY_PATH'])"
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/users"}
    done = subprocess.run(["python3", "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == f"{folder}:/users", "named once, however often Python starts itself"
