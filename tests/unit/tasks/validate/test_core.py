"""Validation as a whole: what it reports, what it raises, and that nothing starts on bad input."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gb300_facts import fleet, group
from store_facts import healthy_store

from profiles.schema import Profile
from tasks.errors import EXIT_FAILED, EXIT_USAGE, HardwareError, UnmetRequirement, UsageError
from tasks.processes.launcher import Launcher, LocalHandle, LocalLauncher, ProcessSpec
from tasks.processes.nodes import Node
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.validate import collectors, core
from tasks.validate.collect.nodes import Probe
from tasks.validate.core import raise_if_failed, validate
from tasks.validate.models import CheckResult, ValidationReport
from tasks.validate.recording import report_of


class NoLauncher(LocalLauncher):
    """Fails the test if anything is started."""

    def start(self, spec: ProcessSpec, run: RunFolder) -> LocalHandle:
        raise AssertionError(f"{spec.name} was started")


class ThreeNodes(NoLauncher):
    """This machine serves; one node hangs, and one is not reached."""

    def __init__(self, folder: Path):
        super().__init__("serve")
        self._hangs = folder / "hangs"
        self._hangs.write_text("#!/bin/sh\nexec sleep 600\n")
        self._hangs.chmod(0o755)

    def nodes(self, profile: Profile) -> tuple[Node, ...]:
        return (
            *super().nodes(profile),
            Node("slow", "serve", reach=(str(self._hangs),)),
            Node("gone", "train", reach=("/no/such/ssh", "gone")),
        )


def run_validate(tmp_path: Path, launcher: Launcher | None = None, **parts: Any) -> ValidationReport:
    profile = Profile.model_validate(
        {
            "name": "t",
            "hardware": {"min_memory_gib": 0, "min_disk_gib": 0, "min_cores": 1, **parts.pop("hardware", {})},
            "target": {"model": str(tmp_path / "nowhere"), "aux_layer_ids": [2]},
            **parts,
        }
    )
    run = create_run(tmp_path / "runs", "r1", profile)
    return validate(profile, run, run.path / "01-validate", launcher or NoLauncher(), SilentProgress())


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


def test_nodes_that_are_slow_or_gone_are_reported_and_delay_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe_of(node: Node, deadline_s: float) -> Probe:
        return collectors.node_probe(node, 1.0 if node.name == "slow" else deadline_s)

    monkeypatch.setattr(core, "collect_plan", partial(collectors.collect_plan, probe_of=probe_of))
    several = {"hardware": {"roles": {"colocated": False}}, "store": {"host": "192.0.2.1"}}
    report = run_validate(tmp_path, ThreeNodes(tmp_path), **several)
    found = {check.subject: check for check in report.checks if check.id == "node.reachable"}
    here = next(name for name in found if name not in ("slow", "gone"))
    assert [found[name].status for name in (here, "slow", "gone")] == ["pass", "fail", "fail"]
    assert "timed out after 1 s" in found["slow"].message
    assert "/no/such/ssh is not installed" in found["gone"].message and found["gone"].remedy
    assert [node["node_id"] for node in report.nodes] == [here, "slow", "gone"]
    assert report.nodes[0]["os"]["kernel_release"] and report.nodes[1]["os"]["kernel_release"] is None
    others = [c for c in report.checks if c.subject in ("slow", "gone") and c.id != "node.reachable"]
    assert {check.status for check in others} == {"skip"}
    with pytest.raises(HardwareError, match="on 3 nodes") as caught:
        raise_if_failed(report)
    assert "node.reachable on gone" in str(caught.value)


def test_the_disk_of_the_root_that_is_named_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = core.request_of
    monkeypatch.setattr(core, "request_of", lambda *words: asked.append(words[2:]) or real(*words))
    run_validate(tmp_path, hardware={"min_memory_gib": 10**6})
    runs = tmp_path / "runs"
    assert asked == [(runs, runs / "r1")]


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


def test_the_round_trip_belongs_to_the_first_serving_node() -> None:
    from tasks.validate.store_facts import StoreFacts

    nodes = [node.model_copy(update={"store": StoreFacts()}) for node in reversed(fleet())]
    ran = [node.store.ran for node in core._with_store(nodes, healthy_store())]
    assert ran == [False, True, False]


def test_one_preview_toolkit_makes_the_plan_a_preview() -> None:
    def channel(*toolkits: str | None) -> str:
        nodes = [group("cuda", toolkit=one)(node) for one, node in zip(toolkits, fleet(), strict=True)]
        return report_of(nodes, ()).toolkit_channel

    assert channel("13.4.1", "13.4.0", "13.4.1") == "preview"
    assert channel("13.4.1", None, "13.3") == "release"
    assert channel(None, None, None) == "none"


def test_a_good_report_raises_nothing() -> None:
    raise_if_failed(ValidationReport(facts={}, checks=(), worst="pass"))
