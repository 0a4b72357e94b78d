"""`nvidia-smi`: both shapes of its XML, values that stand for nothing, and a program that fails or hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smi_text import (
    CLUSTER,
    Gpu,
    full_topology,
    install,
    leaves_of,
    links,
    path_with,
    process,
    program,
    topology,
    tray,
    xml,
)

from tasks.validate.collect.assemble import node_facts
from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.smi import smi_findings
from tasks.validate.collect.smi_links import parse_links, parse_topology
from tasks.validate.collect.smi_query import query_gpus
from tasks.validate.collect.smi_xml import SOURCE, parse_xml


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of PATH."""
    monkeypatch.setenv("PATH", path_with(tmp_path))
    return tmp_path


def first(found: Findings) -> dict[str, Any]:
    gpu: dict[str, Any] = found.facts["gpus"][0]
    return gpu


@pytest.mark.parametrize(
    ("shape", "driver", "api", "mask"),
    [("R580", "580.173.02", 13000, 0x1AA), ("R610", "610.57.04", 13030, 0x11AA)],
)
def test_both_shapes_give_the_same_facts(shape: str, driver: str, api: int, mask: int) -> None:
    found = parse_xml(xml(tray(), shape))
    assert found.errors == {}
    assert found.facts["driver"] == {"loaded": True, "kmd_version": driver}
    assert (found.facts["cuda"]["driver_api"], found.facts["gpus_attached"]) == (api, 4)
    assert first(found)["fabric"] == {
        "state": "Completed",
        "status": "Success",
        "clique_id": 32766,
        "cluster_uuid": CLUSTER,
        "health_summary": "Healthy",
        "health_mask": mask,
    }


def test_every_leaf_of_a_gpu() -> None:
    gpu = first(parse_xml(xml(tray())))
    unseen = {name for name, value in gpu.items() if value is None}
    assert gpu["peer_type"] == "Switch Connected"
    assert unseen == {"retired_pages_pending"}
    assert (gpu["bus_id"], gpu["pci_device_id"]) == ("00000008:06:00.0", "0x31C210DE")
    assert (gpu["memory_total_mib"], gpu["memory_reserved_mib"], gpu["power_limit_w"]) == (
        284208,
        947,
        1400.0,
    )
    assert (gpu["persistence"], gpu["mig_current"], gpu["c2c_enabled"], gpu["ecc_pending"]) == (
        True,
        False,
        True,
        True,
    )
    assert (gpu["pcie_gen"], gpu["pcie_width"], gpu["slowdown_margin_c"]) == (6, 16, 49)
    assert gpu["clock_event_reasons"] == ["idle"] and gpu["processes"] == []
    assert gpu["platform"] == {
        "chassis_serial": "1820000000001",
        "slot": 3,
        "tray": 2,
        "host_id": 1,
        "module_id": 1,
    }


@pytest.mark.parametrize(
    "word",
    [
        "N/A",
        "[N/A]",
        "Not Supported",
        "[Deprecated: use another]",
        "Requested functionality has been deprecated",
    ],
)
def test_words_that_stand_for_no_value(word: str) -> None:
    found = parse_xml(xml([tray()[0].with_leaf("c2c_mode", word)]))
    assert first(found)["c2c_enabled"] is None
    assert "gpus[0].c2c_enabled" in found.not_supported and found.errors == {}


def test_a_value_that_may_not_be_read_is_an_error_of_its_field() -> None:
    found = parse_xml(xml([tray()[0].with_leaf("serial", "Insufficient Permissions")]))
    assert found.errors == {"gpus[0].serial": "nvidia-smi: Insufficient Permissions"}
    assert "gpus[0].serial" not in found.not_supported


def test_what_older_drivers_do_not_list_is_not_supported_and_the_rest_not_observed() -> None:
    older = tray()[0].with_leaf("gpu_recovery_action", "-").with_leaf("ecc_mode/current_ecc", "-")
    found = parse_xml(xml([older]))
    assert "gpus[0].recovery_action" in found.not_supported
    assert "gpus[0].ecc_current" not in found.not_supported and first(found)["ecc_current"] is None


def test_a_fabric_in_progress_has_no_identity_yet() -> None:
    gpu = tray()[0]
    for leaf in ("status", "cliqueId", "clusterUuid", "health/summary"):
        gpu = gpu.with_leaf(f"fabric/{leaf}", "N/A")
    found = parse_xml(xml([gpu.with_leaf("fabric/state", "In Progress")]))
    fabric = first(found)["fabric"]
    assert fabric["state"] == "In Progress"
    assert (fabric["status"], fabric["clique_id"], fabric["cluster_uuid"]) == (None, None, None)
    assert not [path for path in found.not_supported if "fabric" in path]


def test_a_completed_fabric_without_success_keeps_every_wrong_field() -> None:
    """FC-003: state completed, status not, clique 0, a UUID of zeros."""
    gpu = tray()[0].with_leaf("fabric/status", "Insufficient Resources").with_leaf("fabric/cliqueId", "0")
    gpu = gpu.with_leaf("fabric/clusterUuid", "00000000-0000-0000-0000-000000000000")
    fabric = first(parse_xml(xml([gpu])))["fabric"]
    assert (fabric["status"], fabric["clique_id"]) == ("Insufficient Resources", 0)
    assert fabric["cluster_uuid"] == "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("leaf", "word", "mask"),
    [
        ("bandwidth", "Degraded", 0x1A9),
        ("route_unhealthy", "True", 0x19A),
        ("incorrect_configuration", "Insufficient NVLinks", 0x5AA),
        ("partition_assigned", "False", 0x21AA),
    ],
)
def test_health_words_become_the_mask(leaf: str, word: str, mask: int) -> None:
    found = parse_xml(xml([tray()[0].with_leaf(f"fabric/health/{leaf}", word)]))
    assert first(found)["fabric"]["health_mask"] == mask


def test_a_driver_that_reports_no_health() -> None:
    gpu = tray()[0]
    tags = (
        "summary",
        "bandwidth",
        "route_recovery_in_progress",
        "route_unhealthy",
        "access_timeout_recovery",
    )
    for leaf in (*tags, "incorrect_configuration"):
        gpu = gpu.with_leaf(f"fabric/health/{leaf}", "N/A")
    found = parse_xml(xml([gpu]))
    assert first(found)["fabric"]["health_mask"] is None
    assert {"gpus[0].fabric.health_mask", "gpus[0].fabric.health_summary"} <= set(found.not_supported)


def test_processes_that_compute() -> None:
    listed = (
        process(4242, "40000 MiB")
        + process(7, "12 MiB", "/usr/lib/xorg/Xorg", "G")
        + process(9, "N/A", "", "M+C")
    )
    found = parse_xml(xml([Gpu(0, processes=listed)]))
    assert first(found)["processes"] == [
        {"pid": 4242, "used_mib": 40000, "name": "python3"},
        {"pid": 9, "used_mib": None, "name": None},
    ]


@pytest.mark.parametrize(
    ("leaf", "field"),
    [
        ("remapped_rows/remapped_row_pending", "remap_pending"),
        ("remapped_rows/remapped_row_failure", "remap_failure"),
    ],
)
def test_remapped_rows(leaf: str, field: str) -> None:
    """FC-008: pending, failed, and not available are three different facts."""
    assert first(parse_xml(xml([tray()[0].with_leaf(leaf, "Yes")])))[field] is True
    absent = parse_xml(xml([tray()[0].with_leaf(leaf, "N/A")]))
    assert first(absent)[field] is None and f"gpus[0].{field}" in absent.not_supported


@pytest.mark.parametrize("text", ["", "no XML at all", xml(tray())[:900], xml(tray())[:-20]])
def test_cut_or_foreign_text_is_one_error(text: str) -> None:
    found = parse_xml(text)
    assert list(found.errors) == ["nvidia-smi -q -x"] and "cut" in found.errors["nvidia-smi -q -x"]
    assert found.facts == {}


def test_a_gpu_that_is_attached_and_does_not_answer() -> None:
    message = (
        "Unable to determine the device handle for GPU0000000B:06:00.0: GPU is lost.  Reboot the system\n"
    )
    found = parse_xml(message + xml(tray(3), attached=4))
    assert (found.facts["gpus_attached"], len(found.facts["gpus"])) == (4, 3)
    assert "GPU is lost" in found.errors["gpus"]
    assert "4 GPUs are attached and 3 answered" in parse_xml(xml(tray(3), attached=4)).errors["gpus"]


def test_no_devices_were_found() -> None:
    found = parse_xml("No devices were found\n")
    assert (found.facts["gpus"], found.facts["gpus_attached"], found.errors) == ([], 0, {})
    assert found.facts["driver"] == {"loaded": True}


def test_fields_that_a_driver_does_not_know_are_left_out(bin: Path) -> None:
    install(bin, tray(2), "R610", unknown_fields=("kmd_version", "fabric.status"))
    found = query_gpus("nvidia-smi", 5.0)
    assert found.facts["driver"]["kmd_version"] == "610.57.04"
    assert [gpu["compute_capability"] for gpu in found.facts["gpus"]] == [[10, 3], [10, 3]]
    assert first(found)["fabric"] == {"state": "Completed", "status": None}


def test_links_in_megabytes_per_second() -> None:
    found = parse_links(links(tray(2), down=((1, 7),)))
    assert first(found)["nvlinks"][17] == {"link": 17, "state": "active", "speed_mb_s": 53125}
    assert found.facts["gpus"][1]["nvlinks"][7] == {"link": 7, "state": "inactive"}
    assert first(parse_links(links(tray(1), "26.562 GB/s")))["nvlinks"][0]["speed_mb_s"] == 26562


def test_topology_that_is_partly_down() -> None:
    """FC-007: narrow and missing paths of GPU3, and peer access that is not there."""
    cells = full_topology(4)
    cells[3][0], cells[3][1] = "NV9", "SYS"
    access = full_topology(4, "OK")
    access[0][2] = "NS"
    peers = parse_topology(topology(cells), topology(access)).facts["gpu_peers"]
    by_pair = {(peer["from_gpu"], peer["to_gpu"]): (peer["path"], peer["nvlink_p2p"]) for peer in peers}
    assert len(by_pair) == 12
    assert by_pair[3, 0] == ("NV9", "ok") and by_pair[3, 1] == ("SYS", "ok")
    assert by_pair[0, 3] == ("NV18", "ok") and by_pair[0, 2] == ("NV18", "not supported")


def test_all_calls_together(bin: Path) -> None:
    install(bin, tray(), "R610")
    found = smi_findings(ProbeRequest(gpu_deadline_s=5))
    assert found.errors == {}
    gpu = found.facts["gpus"][3]
    assert (gpu["index"], gpu["compute_capability"], gpu["addressing_mode"]) == (3, [10, 3], "ATS")
    assert gpu["nvlinks"][0] == {"link": 0, "state": "active", "speed_mb_s": 53125, "remote": "switch"}
    assert len(gpu["nvlinks"]) == 18 and len(found.facts["gpu_peers"]) == 12
    assert found.sources["gpus"] == "nvidia-smi --query-gpu, nvidia-smi -q -x, nvidia-smi nvlink -s"


def test_a_lost_gpu_keeps_the_indices_of_the_others(bin: Path) -> None:
    """The XML counts positions; the query knows that GPU1 is the one that is gone."""
    left = [gpu for gpu in tray() if gpu.index != 1]
    install(bin, [gpu.with_leaf("c2c_mode", "N/A") for gpu in left], document=None)
    found = smi_findings(ProbeRequest(gpu_deadline_s=5))
    assert [gpu["index"] for gpu in found.facts["gpus"]] == [0, 2, 3]
    assert {path for path in found.not_supported if "c2c" in path} == {
        f"gpus[{n}].c2c_enabled" for n in (0, 2, 3)
    }
    assert found.facts["gpus"][1]["platform"]["module_id"] == 3


def test_driver_and_library_that_differ(bin: Path) -> None:
    """FC-001: nothing on standard output, the complaint on standard error, a status that is not 0."""
    program(
        bin,
        "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2;"
        " echo 'NVML library version: 610.57' >&2; exit 18",
    )
    found = smi_findings(ProbeRequest(gpu_deadline_s=5))
    assert found.facts["driver"]["loaded"] is False and "gpus" not in found.facts
    assert "mismatch" in found.errors["driver"] and "reboot" in found.errors["driver"]


def test_a_driver_that_does_not_answer(bin: Path) -> None:
    program(
        bin, 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9'
    )
    found = smi_findings(ProbeRequest(gpu_deadline_s=5))
    assert found.facts["driver"] == {"loaded": False}
    assert found.errors["driver"].startswith("nvidia-smi: NVIDIA-SMI has failed")


def test_a_hanging_program_is_given_up(bin: Path) -> None:
    program(bin, "exec sleep 60")
    found = smi_findings(ProbeRequest(gpu_deadline_s=0.3))
    assert found.errors["nvidia-smi -q -x"] == "timed out after 0.3 s" and found.facts == {}


def test_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smi_findings(ProbeRequest(gpu_deadline_s=5)) == Findings()


@given(cut=st.integers(0, 9000), shape=st.sampled_from(["R580", "R610"]))
@settings(max_examples=25, deadline=None)
def test_text_cut_anywhere_never_raises(cut: int, shape: str) -> None:
    """Either the document is whole, or it gives one error and no GPU that was only half read."""
    text = xml(tray(2), shape)
    found = parse_xml(text[:cut])
    whole = cut >= len(text.rstrip())
    assert (SOURCE in found.errors) is not whole
    assert len(found.facts.get("gpus", ())) == (2 if whole else 0)


@given(word=st.text(max_size=20), leaf=st.sampled_from(sorted(leaves_of(tray()[0]))))
@settings(max_examples=40, deadline=None)
def test_any_word_in_any_leaf_gives_a_record(word: str, leaf: str) -> None:
    """A word that a later driver invents costs its own field at most."""
    clean = "".join(letter for letter in word if letter.isprintable() and letter not in "<&")
    found = parse_xml(xml([tray()[0].with_leaf(leaf, clean or "?")]))
    found.facts["gpus"][0].pop("peer_type")
    facts = node_facts(ProbeRequest(node_id="n"), found)
    assert len(facts.gpus or ()) == 1 and (facts.gpus or ())[0].index == 0
