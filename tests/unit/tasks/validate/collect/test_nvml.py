"""NVML: every field, what a call refuses, and the traps of the binding's structures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvml_stand_in import CLUSTER, MIB, Nvml

from tasks.validate.collect.assemble import node_facts
from tasks.validate.collect.findings import Findings
from tasks.validate.collect.nvml import nvml_findings
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.facts import NodeFacts


def facts(nvml: Nvml) -> NodeFacts:
    return node_facts(ProbeRequest(node_id="n"), nvml_findings(nvml))


def gpu(nvml: Nvml, index: int = 0) -> dict[str, Any]:
    found = nvml_findings(nvml)
    return next(one for one in found.facts["gpus"] if one["index"] == index)


def test_a_healthy_tray() -> None:
    node = facts(Nvml())
    assert node.errors == {}
    assert (node.driver.loaded, node.driver.kmd_version, node.driver.umd_version) == (
        True,
        "610.57.04",
        "610.57.04",
    )
    assert (node.cuda.driver_api, node.gpus_attached, len(node.gpus or ())) == (13030, 4, 4)
    assert node.collector == "nvml"
    assert node.not_supported == tuple(f"gpus[{index}].retired_pages_pending" for index in range(4))


def test_every_field_of_a_gpu_is_observed() -> None:
    first = (facts(Nvml()).gpus or ())[0]
    unseen = {name for name, value in first.model_dump().items() if value is None}
    assert unseen == {"retired_pages_pending"}
    assert first.bus_id == "00000008:06:00.0" and first.pci_device_id == "0x31C210DE"
    assert first.compute_capability == (10, 3) and first.arch == "Blackwell"
    assert (first.memory_total_mib, first.memory_reserved_mib, first.memory_used_mib) == (284208, 947, 12)
    assert (first.mig_current, first.ecc_pending, first.persistence, first.cc_enabled) == (
        False,
        True,
        True,
        False,
    )
    assert first.clock_event_reasons == ("idle", "hw_thermal") and first.power_limit_w == 1400.0
    assert (first.recovery_action, first.addressing_mode, first.ecc_uncorr_aggregate) == ("None", "ATS", 4)
    assert (first.temperature_c, first.slowdown_margin_c, first.pcie_width) == (31, 49, 16)


def test_sram_errors_are_parity_and_secded_together() -> None:
    assert [gpu(Nvml(), index)["ecc_uncorr_volatile_sram"] for index in (0, 1)] == [0, 2]


def test_links_have_state_speed_version_and_remote_end() -> None:
    links = gpu(Nvml())["nvlinks"]
    assert len(links) == 18
    assert links[17] == {"link": 17, "state": "active", "speed_mb_s": 53125, "version": 7, "remote": "switch"}


@pytest.mark.parametrize(("code", "state"), [(0, "inactive"), (2, "sleep"), (3, "active-traffic-disabled")])
def test_a_link_that_carries_nothing_is_not_active(code: int, state: str) -> None:
    nvml = Nvml()
    nvml.fields[(165, 207)] = code
    assert gpu(nvml, 2)["nvlinks"][7]["state"] == state
    assert {link["state"] for link in gpu(nvml, 1)["nvlinks"]} == {"active"}


def test_fabric_state_is_one_byte() -> None:
    """The binding reads three bytes of padding with it; the stand-in fills them with rubbish."""
    assert gpu(Nvml())["fabric"] == {
        "state": "Completed",
        "status": "Success",
        "clique_id": 32766,
        "cluster_uuid": CLUSTER,
        "health_summary": "Healthy",
        "health_mask": 0x11AA,
    }


def test_fabric_identity_means_nothing_before_completion() -> None:
    nvml = Nvml()
    nvml.fabric["state"] = 2
    fabric = gpu(nvml)["fabric"]
    assert fabric["state"] == "In Progress"
    assert not {"status", "cluster_uuid", "clique_id"} & fabric.keys()


def test_fabric_status_in_words() -> None:
    nvml = Nvml()
    nvml.fabric |= {"status": 23, "clique": 0, "uuid": "0" * 32}
    fabric = gpu(nvml)["fabric"]
    assert (fabric["status"], fabric["clique_id"]) == ("Insufficient Resources", 0)
    assert fabric["cluster_uuid"] == "00000000-0000-0000-0000-000000000000"


def test_fabric_structure_4_gives_the_clique_for_unicast_pointers() -> None:
    nvml = Nvml()
    nvml.fabric["refuses"] = "v3"
    assert gpu(nvml)["fabric"]["clique_id"] == 32766


def test_fabric_structure_2_has_no_summary() -> None:
    nvml = Nvml()
    nvml.fabric["refuses"] = "v3 v4"
    found = nvml_findings(nvml)
    assert "health_summary" not in found.facts["gpus"][0]["fabric"]
    assert found.facts["gpus"][0]["fabric"]["state"] == "Completed"
    assert "gpus[0].fabric.health_summary" in found.not_supported


def test_rack_position_survives_bytes_that_are_no_text() -> None:
    nvml = Nvml()
    nvml.slot = 0x94
    info = nvml.c_nvmlPlatformInfo_v2_t()
    nvml.nvmlDeviceGetPlatformInfo(0, SimpleNamespace(_obj=info))
    with pytest.raises(UnicodeDecodeError):
        _ = info.ibGuid
    place = gpu(nvml, 3)["platform"]
    assert place == {"chassis_serial": "1820000000001", "slot": 0x94, "tray": 2, "host_id": 1, "module_id": 4}


def test_a_call_that_a_driver_does_not_offer_costs_its_fields_only() -> None:
    nvml = Nvml()
    nvml.fails |= {"nvmlDeviceGetMigMode": 3, "nvmlDeviceGetRepairStatus": 13, "nvmlDeviceGetVbiosVersion": 4}
    found = nvml_findings(nvml)
    assert {"gpus[0].mig_current", "gpus[0].mig_pending", "gpus[0].channel_repair_pending"} <= set(
        found.not_supported
    )
    assert found.errors == {f"gpus[{index}].vbios": "Insufficient Permissions" for index in range(4)}
    assert [one["name"] for one in found.facts["gpus"]] == ["NVIDIA GB300"] * 4


def test_an_older_binding_lacks_calls() -> None:
    nvml = Nvml(
        missing=("nvmlDeviceGetAddressingMode", "nvmlDeviceGetTemperatureV", "c_nvmlPlatformInfo_v2_t")
    )
    found = nvml_findings(nvml)
    assert "gpus[1].addressing_mode" in found.not_supported and "gpus[1].platform" in found.not_supported
    assert "gpus[1].temperature_c" in found.not_supported
    assert found.errors == {} and len(found.facts["gpus"]) == 4


def test_a_lost_gpu_is_named_and_the_others_are_read() -> None:
    nvml = Nvml()
    nvml.lost[3] = 15
    node = facts(nvml)
    assert (node.gpus_attached, [one.index for one in node.gpus or ()]) == (4, [0, 1, 2])
    assert node.errors == {"gpus[3]": "GPU is lost"}


def test_a_gpu_that_is_lost_while_it_is_read() -> None:
    nvml = Nvml()
    nvml.fails["nvmlDeviceGetRemappedRows"] = 16
    node = facts(nvml)
    assert node.gpus == () and set(node.errors) == {f"gpus[{index}]" for index in range(4)}


def test_a_machine_without_the_library_has_no_driver_and_no_error() -> None:
    found = nvml_findings(Nvml(init=12))
    assert (found.facts["driver"]["loaded"], found.errors, "gpus" in found.facts) == (False, {}, False)


def test_driver_and_library_that_differ_are_named() -> None:
    found = nvml_findings(Nvml(init=18))
    assert found.facts["driver"] == {"loaded": False, "umd_version": "610.57.04"}
    assert "reboot" in found.errors["driver"] and "differ" in found.errors["driver"]
    assert "gpus" not in found.facts


def test_a_module_that_is_not_loaded_enumerates_nothing() -> None:
    found = nvml_findings(Nvml(init=9))
    assert found.facts["gpus"] == [] and "not loaded" in found.errors["driver"]


def test_processes_are_named_without_their_folder() -> None:
    nvml = Nvml()
    nvml.processes = [
        SimpleNamespace(pid=4242, usedGpuMemory=40000 * MIB),
        SimpleNamespace(pid=4243, usedGpuMemory=None),
    ]
    assert gpu(nvml)["processes"] == [
        {"pid": 4242, "used_mib": 40000, "name": "python3"},
        {"pid": 4243, "used_mib": None, "name": "python3"},
    ]
    assert gpu(nvml, 1)["processes"] == []


def test_peer_access_of_every_pair_in_both_directions() -> None:
    nvml = Nvml(count=2)
    assert nvml_findings(nvml).facts["gpu_peers"] == [
        {"from_gpu": 0, "to_gpu": 1, "nvlink_p2p": "ok"},
        {"from_gpu": 1, "to_gpu": 0, "nvlink_p2p": "ok"},
    ]


def test_a_recovery_action_in_words() -> None:
    nvml = Nvml(count=1)
    nvml.fields[(230, 0)] = 1
    assert gpu(nvml)["recovery_action"] == "GPU Reset"


def test_the_binding_itself_on_a_machine_without_a_driver() -> None:
    """The real nvidia-ml-py, where it is installed."""
    pynvml = pytest.importorskip("pynvml", reason="pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value != 12:
            pytest.skip(f"this machine has a driver that does not start: {error}")
    else:
        pytest.skip("this machine has a driver")
    assert nvml_findings() == Findings(facts={"driver": {"loaded": False}}, sources={"driver": "nvml"})
