"""Validation as a whole: what it reports, what it raises, and that nothing starts on bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import EXIT_FAILED, EXIT_USAGE, HardwareError, UnmetRequirement, UsageError
from tasks.processes.launcher import LocalHandle, LocalLauncher, ProcessSpec
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.validate import core
from tasks.validate.core import raise_if_failed, validate
from tasks.validate.models import CheckResult, ValidationReport


class NoLauncher(LocalLauncher):
    """Fails the test if anything is started."""

    def start(self, spec: ProcessSpec, run: RunFolder) -> LocalHandle:
        raise AssertionError(f"{spec.name} was started")


def run_validate(tmp_path: Path, **parts: Any) -> ValidationReport:
    profile = Profile.model_validate(
        {
            "name": "t",
            "hardware": {"min_memory_gib": 0, "min_disk_gib": 0, "min_cores": 1, **parts.pop("hardware", {})},
            "target": {"model": str(tmp_path / "nowhere"), "aux_layer_ids": [2]},
            **parts,
        }
    )
    run = create_run(tmp_path / "runs", "r1", profile)
    return validate(profile, run, run.path / "01-validate", NoLauncher(), SilentProgress())


def failing(*ids: str) -> ValidationReport:
    checks = tuple(
        CheckResult(id=id, status="fail", observed="o", required="r", message="m", remedy=f"fix {id}")
        for id in ids
    )
    return ValidationReport(facts={}, checks=checks, worst="fail")


def test_missing_prompts_stop_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run_validate(tmp_path, prompts={"train": [str(tmp_path / "none.jsonl")]})
    assert "none.jsonl" in str(caught.value) and caught.value.exit_code == EXIT_USAGE


def test_a_missing_target_stops_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no target folder"):
        run_validate(tmp_path)


def test_an_unfit_machine_is_reported_and_the_store_is_not_tried(tmp_path: Path) -> None:
    report = run_validate(tmp_path, hardware={"min_memory_gib": 10**6})
    assert report.worst == "fail"
    states = {result.id: result.status for result in report.checks}
    assert states["host.memory"] == "fail" and states["store.roundtrip"] == "skip"
    assert report.facts["host"]["memory_available_bytes"]
    with pytest.raises(HardwareError, match=r"host\.memory: observed .* GiB") as caught:
        raise_if_failed(report)
    assert "hardware.min_memory_gib" in str(caught.value)


def test_nvidia_mode_without_gpus_fails_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = run_validate(tmp_path, hardware={"mode": "nvidia"})
    gpu = next(result for result in report.checks if result.id == "gpu.count")
    assert gpu.status == "fail" and gpu.remedy


def test_a_failing_store_fails_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.validate.store_facts import StoreFacts

    monkeypatch.setattr(core, "check_target", lambda profile, folder: _Target())
    monkeypatch.setattr(core, "resolve_target", lambda profile: tmp_path)
    monkeypatch.setattr(core, "round_trip", lambda *a: StoreFacts(ran=True, cause="put answered -200"))
    report = run_validate(tmp_path)
    store = next(result for result in report.checks if result.id == "store.roundtrip")
    assert (store.status, store.message) == ("fail", "put answered -200")
    assert report.facts["inputs"]["target_layers"] == 4


class _Target:
    architecture, hidden_size, num_hidden_layers, vocab_size = "A", 8, 4, 16
    intermediate_size, num_attention_heads, num_key_value_heads, head_dim = 32, 2, 2, 4


def test_what_the_user_can_meet_at_once_is_bad_input() -> None:
    with pytest.raises(UnmetRequirement) as caught:
        raise_if_failed(failing("disk.run_root", "net.ports"))
    assert caught.value.exit_code == EXIT_USAGE and "fix net.ports" in str(caught.value)
    with pytest.raises(HardwareError) as other:
        raise_if_failed(failing("disk.run_root", "host.cores"))
    assert other.value.exit_code == EXIT_FAILED


def test_a_good_report_raises_nothing() -> None:
    raise_if_failed(ValidationReport(facts={}, checks=(), worst="pass"))
