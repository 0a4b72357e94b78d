"""Joining what several collectors found, and making a record of it."""

from __future__ import annotations

import pytest

from tasks.validate.collect.assemble import node_facts
from tasks.validate.collect.findings import Findings, merge, unobserved
from tasks.validate.collect.request import ProbeRequest


def test_the_first_observation_stands_and_gaps_are_filled() -> None:
    first = Findings({"driver": {"loaded": True, "kmd_version": None}}, {"driver": "nvml"})
    second = Findings(
        {"driver": {"loaded": False, "kmd_version": "610.57.04"}, "rdma": []}, {"driver": "/proc"}
    )
    found = merge(first, second)
    assert found.facts == {"driver": {"loaded": True, "kmd_version": "610.57.04"}, "rdma": []}
    assert found.sources == {"driver": "nvml, /proc"}


def test_gpus_are_matched_by_address_and_paths_follow() -> None:
    """The second collector counts positions, the first knows indices: 0 and 2, 1 is lost."""
    first = Findings({"gpus": [{"index": 0, "bus_id": "A"}, {"index": 2, "bus_id": "C", "name": "x"}]})
    second = Findings(
        {"gpus": [{"index": 0, "bus_id": "A"}, {"index": 1, "bus_id": "C", "name": "y", "arch": "z"}]},
        not_supported=["gpus[1].vbios", "imex"],
        errors={"gpus[1].serial": "refused"},
    )
    found = merge(first, second)
    assert found.facts["gpus"][1] == {"index": 2, "bus_id": "C", "name": "x", "arch": "z", "nvlinks": None}
    assert found.not_supported == ["gpus[2].vbios", "imex"] and found.errors == {"gpus[2].serial": "refused"}


def test_a_gpu_that_only_one_collector_saw_is_kept() -> None:
    first = Findings({"gpus": [{"index": 0, "bus_id": "A"}, {"index": 1, "bus_id": "B"}]})
    second = Findings({"gpus": [{"index": 1, "bus_id": "C"}]}, errors={"gpus[1].serial": "refused"})
    found = merge(first, second)
    assert [(gpu["index"], gpu["bus_id"]) for gpu in found.facts["gpus"]] == [(0, "A"), (1, "B"), (2, "C")]
    assert found.errors == {"gpus[2].serial": "refused"}


def test_links_and_peers_are_joined_one_by_one() -> None:
    first = Findings(
        {"gpus": [{"index": 0, "nvlinks": [{"link": 1, "state": "active", "speed_mb_s": None}]}]}
    )
    second = Findings({"gpus": [{"index": 0, "nvlinks": [{"link": 1, "speed_mb_s": 53125}, {"link": 0}]}]})
    first.facts["gpu_peers"] = [{"from_gpu": 0, "to_gpu": 1, "nvlink_p2p": "ok"}]
    second.facts["gpu_peers"] = [{"from_gpu": 0, "to_gpu": 1, "path": "NV18", "nvlink_p2p": "not supported"}]
    found = merge(first, second)
    assert found.facts["gpus"][0]["nvlinks"] == [
        {"link": 0},
        {"link": 1, "state": "active", "speed_mb_s": 53125},
    ]
    assert found.facts["gpu_peers"] == [{"from_gpu": 0, "to_gpu": 1, "nvlink_p2p": "ok", "path": "NV18"}]


@pytest.mark.parametrize("first", [None, []])
def test_a_list_of_nothing_is_not_the_same_as_no_list(first: list[object] | None) -> None:
    facts = {} if first is None else {"gpus": first}
    assert merge(Findings(facts), Findings()).facts.get("gpus") == first


def test_not_supported_ends_where_another_collector_observed() -> None:
    facts = {
        "gpus": [{"index": 2, "vbios": "1", "fabric": {"status": None}}],
        "driver": {"umd_version": "610"},
    }
    paths = ["gpus[2].vbios", "gpus[2].fabric.status", "gpus[2].serial", "driver.umd_version", "gpus[0].name"]
    assert unobserved(facts, paths) == ("gpus[0].name", "gpus[2].fabric.status", "gpus[2].serial")


def test_findings_survive_the_way_between_processes() -> None:
    found = Findings({"gpus": []}, {"gpus": "nvml"}, ["a"], {"b": "c"})
    assert Findings.from_json(found.to_json()) == found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"other": 1}'])
def test_text_that_is_no_findings(text: str) -> None:
    with pytest.raises(ValueError):
        Findings.from_json(text)


def test_a_value_that_no_record_can_hold_costs_itself_only() -> None:
    gpu = {"index": 0, "name": "x", "temperature_c": "hot", "compute_capability": [10, "?"], "later_field": 1}
    node = node_facts(
        ProbeRequest(node_id="n"), Findings({"gpus": [gpu, {"name": "no index"}], "os": {"id": "u"}})
    )
    assert node.gpus is not None
    assert [(one.name, one.temperature_c, one.compute_capability) for one in node.gpus] == [("x", None, None)]
    assert node.os.id == "u"
    assert {"gpus[0].temperature_c", "gpus[0].later_field", "gpus[1].index"} <= node.errors.keys()
    assert node.errors["gpus[0].temperature_c"].startswith("unusable value")


def test_a_record_without_facts() -> None:
    node = node_facts(ProbeRequest(node_id="n", role="train"), Findings())
    assert (node.node_id, node.role, node.collector, node.gpus) == ("n", "train", "sysfs", None)


def test_further_groups_are_joined() -> None:
    found = Findings({"net": {"hostname": "h", "memlock_bytes": -1}})
    node = node_facts(
        ProbeRequest(node_id="n"), found, {"net": {"ports": {"a=1": ""}}, "versions": {"vllm": "1"}}
    )
    assert (node.net.hostname, node.net.ports, node.versions) == ("h", {"a=1": ""}, {"vllm": "1"})
