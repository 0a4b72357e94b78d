"""Set-up without installing anything: what it decides from files, Python and the environment."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CI = Path(__file__).resolve().parents[3] / ".ci"


@pytest.fixture
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module whose checkout is an empty folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("set_up", CI / "set_up.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    places = {
        "ROOT": tmp_path,
        "VENV": venv,
        "STAMP": venv / "set-up.json",
        "INSTALLING": venv / "installing",
    }
    for name, value in {**places, "PROFILE": tmp_path / "laptop.yaml"}.items():
        monkeypatch.setattr(module, name, value)
    for file in (tmp_path / "pyproject.toml", tmp_path / "laptop.yaml", module.constraints()):
        file.parent.mkdir(exist_ok=True)
        file.write_text("as it was", encoding="utf-8")
    venv.mkdir()
    return module


@pytest.fixture
def ran(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Steps that were run, instead of running them."""
    steps: list[dict[str, Any]] = []

    def run(command: list[str], what: str, remedy: str, env: dict[str, str] | None = None) -> str:
        steps.append({"command": command, "env": env or {}})
        return ""

    monkeypatch.setattr(set_up, "run", run)
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS", "PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return steps


def stamp(set_up: ModuleType, target: Path) -> None:
    row = {"fingerprint": set_up.fingerprint(), "target": str(target)}
    set_up.STAMP.write_text(json.dumps(row), encoding="utf-8")


def test_a_stamp_of_the_same_files_means_nothing_to_do(set_up: ModuleType, tmp_path: Path) -> None:
    assert not set_up.is_complete()
    stamp(set_up, tmp_path)
    assert set_up.is_complete()


@pytest.mark.parametrize("changed", ["pyproject.toml", "laptop.yaml", "constraints"])
def test_a_changed_file_sets_up_again(set_up: ModuleType, tmp_path: Path, changed: str) -> None:
    stamp(set_up, tmp_path)
    file = set_up.constraints() if changed == "constraints" else tmp_path / changed
    file.write_text("other", encoding="utf-8")
    assert not set_up.is_complete()


def test_a_lost_target_or_a_cut_stamp_sets_up_again(set_up: ModuleType, tmp_path: Path) -> None:
    stamp(set_up, tmp_path / "gone")
    assert not set_up.is_complete()
    set_up.STAMP.write_text('{"fingerp', encoding="utf-8")
    assert not set_up.is_complete()


def test_an_installation_that_was_cut_off_is_made_again(
    set_up: ModuleType, ran: list[dict[str, Any]]
) -> None:
    set_up.install("uv")
    assert "--reinstall" not in ran[0]["command"] and not set_up.INSTALLING.exists()
    set_up.INSTALLING.touch()
    set_up.install("uv")
    assert "--reinstall" in ran[1]["command"] and not set_up.INSTALLING.exists()


def test_a_failed_installation_stays_marked(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> str:
        raise SystemExit("no network")

    monkeypatch.setattr(set_up, "run", run)
    with pytest.raises(SystemExit):
        set_up.install("uv")
    assert set_up.INSTALLING.exists()


def test_pip_settings_of_the_machine_reach_uv(
    set_up: ModuleType, ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up.install("uv")
    assert ran[0]["command"][-2:] == ["--torch-backend", "cpu"] and ran[0]["env"] == {}
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    set_up.install("uv")
    assert ran[1]["env"] == {
        "UV_FIND_LINKS": "/a,/b",
        "UV_DEFAULT_INDEX": "https://index.invalid/simple",
    }
    assert "--torch-backend" not in ran[1]["command"]


def test_a_failed_step_shows_the_end_of_its_output(set_up: ModuleType) -> None:
    program = "import sys; [print('line', i) for i in range(40)]; sys.exit(3)"
    with pytest.raises(SystemExit) as ended:
        set_up.run([sys.executable, "-c", program], "making it", "do this")
    text = str(ended.value)
    assert "making it failed" in text and "to do: do this" in text
    assert "line 39" in text and "line 20" not in text


def test_too_little_disk_stops_before_anything_is_made(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "DISK_GIB", 1e9)
    monkeypatch.setattr(set_up, "VENV_PYTHON", set_up.VENV / "bin" / "python")
    with pytest.raises(SystemExit, match="free disk"):
        set_up.print_needs()


def test_another_python_is_refused_with_the_way_out(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "SUPPORTED", ((2, 7),))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(SystemExit, match="make setup PYTHON="):
        set_up.use_supported_python()
