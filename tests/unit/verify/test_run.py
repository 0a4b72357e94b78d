"""The runner behind `make verify`: items become rows, and a part replaces only its own section."""

from __future__ import annotations

import importlib.util
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)

SUITE = '''
import pytest

@pytest.mark.verify("kills")
@pytest.mark.parametrize("stage", ["serve", "train"])
def test_a(stage, record_property):
    """Nothing is left.

    More about it.
    """
    record_property("processes", 0)
    assert stage == "serve"

@pytest.mark.verify("kills")
def test_needs_two_machines():
    pytest.skip("needs two machines")

@pytest.mark.verify("demo")
def test_other_part():
    raise AssertionError("belongs to another part")

def test_ordinary():
    raise AssertionError("belongs to make test")
'''


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_run", ROOT / "tests" / "verify" / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_only_the_items_of_the_part_run_and_each_is_a_row(runner: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = verify(part): long\n")
    recorder = runner.Recorder("kills")
    options = ["-q", "-p", "no:cacheprovider", "-m", "verify", "--rootdir", str(tmp_path), "-c"]
    pytest.main([*options, str(tmp_path / "pytest.ini"), str(tmp_path)], plugins=[recorder])
    rows = list(recorder.rows.values())
    assert [(row.what, row.result) for row in rows] == [
        ("Nothing is left [serve]", "passed"),
        ("Nothing is left [train]", "failed"),
        ("needs two machines", "skipped: needs two machines"),
    ]
    assert rows[0].measured == {"processes": "0"}


def test_a_section_says_where_when_and_what(runner: ModuleType) -> None:
    rows = [runner.Row("a | b", "passed", 1.25, {"tau": "1.6"}), runner.Row("c")]
    text = runner.section("demo", rows, "2 cores", "abc", WHEN)
    assert "1 of 2 passed." in text
    assert "2026-01-02 03:04 UTC, commit abc, 2 cores" in text
    assert "| a / b | passed | 1.2 | tau 1.6 |" in text
    assert "| c | not run | 0.0 |  |" in text


def test_a_part_replaces_its_own_section_only(runner: ModuleType) -> None:
    def make(part: str, what: str) -> str:
        return str(runner.section(part, [runner.Row(what, "passed")], "m", "c", WHEN))

    document = runner.replace_section("", "kills", make("kills", "old kill"))
    document = runner.replace_section(document, "demo", make("demo", "a demo"))
    document = runner.replace_section(document, "kills", make("kills", "new kill"))
    assert document.index("## demo") < document.index("## kills")
    assert "a demo" in document
    assert "new kill" in document
    assert "old kill" not in document
    assert document.count("# What was verified") == 1


def test_the_machine_is_described_without_its_name(runner: ModuleType) -> None:
    import platform

    text = runner.machine()
    assert "GiB" in text
    assert len(platform.node()) < 4 or platform.node() not in text
