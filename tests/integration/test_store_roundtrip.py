"""The store's round trip with a real master and two real clients; then every cause that it must tell."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from profiles.schema import Profile
from tasks.processes.launcher import launcher_for
from tasks.run_folder import RunFolder, create_run
from tasks.serve import command
from tasks.validate import store_roundtrip
from tasks.validate.store_roundtrip import round_trip

pytestmark = pytest.mark.integration
TARGET: Any = SimpleNamespace(hidden_size=576)


@pytest.fixture
def profile() -> Profile:
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "aux_layer_ids": [2, 8], "max_model_len": 512},
            "stream": {"max_new_tokens": 64},
        }
    )


@pytest.fixture
def run(tmp_path: Path, profile: Profile) -> RunFolder:
    return create_run(tmp_path, "r1", profile)


def test_objects_of_the_runs_sizes_come_back(profile: Profile, run: RunFolder) -> None:
    folder = run.path / "01-validate"
    facts = round_trip(profile, TARGET, run, folder, launcher_for(profile))
    assert facts.cause == ""
    assert facts.sizes_bytes[1] > 511 * 3 * 576 * 2
    assert len(facts.get_ms) == 2
    assert list(folder.iterdir()) == [], "nothing of the exchange stays"
    assert list(run.services.glob("*.json")) == [], "every process is ended"
    lines = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    ours = [line for line in lines if "tasks.stream.roundtrip" in line and str(run.path) in line]
    assert ours == []


def test_a_master_that_dies_is_told_with_its_last_lines(
    profile: Profile, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mooncake_master"
    program.write_text("#!/bin/sh\necho cannot bind >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(command, "_master_program", lambda: str(program))
    facts = round_trip(profile, TARGET, run, run.path / "01-validate", launcher_for(profile))
    assert facts.ran and "status 3" in facts.cause and "cannot bind" in facts.cause


def test_damaged_bytes_are_noticed(profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer expects what belongs to other keys, as after a mix-up in the store."""
    real = store_roundtrip._end

    def swapped(profile: Profile, role: str, sizes: tuple[int, int], master: str, exchange: Path) -> Any:
        spec = real(profile, role, sizes, master, exchange)
        if role != "consume":
            return spec
        code = (
            "import sys, tasks.stream.roundtrip as r; real = r.payload; "
            "r.payload = lambda key, size: real(key + 'x', size); raise SystemExit(r.main(sys.argv[1]))"
        )
        return dataclasses.replace(spec, argv=(spec.argv[0], "-c", code, spec.argv[-1]))

    monkeypatch.setattr(store_roundtrip, "_end", swapped)
    facts = round_trip(profile, TARGET, run, run.path / "01-validate", launcher_for(profile))
    assert "other bytes" in facts.cause


def test_a_segment_that_is_too_small_names_the_code(
    profile: Profile, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = dataclasses.make_dataclass("Sizes", ["typical_bytes", "largest_bytes"])(1000, 40 * 2**20)
    monkeypatch.setattr(store_roundtrip, "sample_sizes", lambda profile, target: big)
    real = store_roundtrip._end

    def small(profile: Profile, role: str, sizes: tuple[int, int], master: str, exchange: Path) -> Any:
        spec = real(profile, role, sizes, master, exchange)
        path = Path(spec.argv[-1])
        path.write_text(path.read_text().replace('"segment_bytes": 167772160', '"segment_bytes": 16777216'))
        return spec

    monkeypatch.setattr(store_roundtrip, "_end", small)
    facts = round_trip(profile, TARGET, run, run.path / "01-validate", launcher_for(profile))
    assert "-200" in facts.cause
