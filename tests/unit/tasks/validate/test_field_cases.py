"""What went wrong for others (field cases of the first stage), as facts."""

from __future__ import annotations

from typing import Any

from gb300_facts import bad, fabric, fleet, gpus, group, needs, patched, rdma, result_of, whole

from tasks.validate.facts import NodeFacts

PREVIEW = {"cuda.toolkit": "warn"}
RDMA = {"store": {"protocol": "rdma"}}


def peers(**changes: tuple[str | None, str | None]) -> list[dict[str, Any]]:
    """Paths between four GPUs; `_3_0=("SYS", "ok")` changes one."""
    rows = []
    for a in range(4):
        for b in range(4):
            if a != b:
                path, p2p = changes.get(f"_{a}_{b}", ("NV18", "ok"))
                rows.append({"from_gpu": a, "to_gpu": b, "path": path, "nvlink_p2p": p2p})
    return rows


def test_fc001_library_and_module_differ_after_an_upgrade() -> None:
    mismatch = "NVML could not be initialised: Driver/library version mismatch"
    nodes = patched(
        fleet(),
        "train-0",
        whole(driver={"loaded": False}, cuda={}, gpus=None, gpus_attached=None, errors={"driver": mismatch}),
    )
    assert bad(nodes, needs()) == {**PREVIEW, "driver.loaded": "fail", "fabric.domain": "fail"}
    result = result_of(nodes, needs(), "driver.loaded")
    assert "differ" in result.message and "reload" in result.message and "reboot" in result.message
    assert result_of(nodes, needs(), "gpu.count", "train-0").status == "skip", "it is not reported as 0 GPUs"


def test_fc001_versions_that_both_answer_and_differ() -> None:
    nodes = patched(fleet(), "train-0", group("driver", umd_version="615.71.09"))
    assert bad(nodes, needs()) == {**PREVIEW, "driver.loaded": "fail"}


def test_fc002_gpus_on_the_bus_and_none_in_nvml() -> None:
    nodes = patched(
        fleet(),
        "train-0",
        group("driver", module_flavour="proprietary"),
        whole(gpus=[], gpus_attached=0, gpus_on_pci=4, gpu_peers=[]),
    )
    message = result_of(nodes, needs(), "gpu.count").message
    assert "4" in message and "proprietary" in message and "open" in message
    some = patched(fleet(), "train-0", whole(gpus_on_pci=5))
    assert "5" in result_of(some, needs(), "gpu.count").message


def test_fc003_completed_without_success() -> None:
    nodes = patched(
        fleet(),
        "serve-0",
        fabric(
            [2],
            status="Insufficient Resources",
            clique_id=0,
            cluster_uuid="00000000-0000-0000-0000-000000000000",
        ),
    )
    assert bad(nodes, needs()) == {**PREVIEW, "fabric.state": "fail", "fabric.domain": "fail"}
    message = result_of(nodes, needs(), "fabric.state").message
    assert all(words in message for words in ("GPU2", "Insufficient Resources", "clique 0", "UUID of zeros"))
    assert not any(f"GPU{index}" in message for index in (0, 1, 3))


def test_fc005_imex_matters_only_where_the_plan_spans_nodes() -> None:
    idle = patched(fleet(), "serve", whole(imex={"channels": ["channel0"], "daemon_version": "610.57.04"}))
    result = result_of(idle, needs(), "imex.ready", "serve")
    assert result.status == "fail" and "serve-0" in result.message and "serve-1" in result.message
    one = {"hardware": {"roles": {"serve": {"nodes": 1}}, "weights_gb": 500}}
    nodes = (idle[0], idle[2])
    assert bad(nodes, needs(one)) == PREVIEW
    assert "not needed" in result_of(nodes, needs(one), "imex.ready", "serve").message


def test_fc007_links_partly_down_or_up_in_name_only() -> None:
    narrow = whole(gpu_peers=peers(_3_0=("NV9", "ok"), _3_1=("SYS", "ok")))
    result = result_of(patched(fleet(), "serve-0", narrow), needs(), "nvlink.links")
    assert result.status == "fail"
    assert "GPU3 to GPU0: path NV9, wanted NV18" in result.message and "SYS" in result.message
    dead = whole(gpu_peers=peers(_0_1=("NV18", "not supported")))
    result = result_of(patched(fleet(), "serve-0", dead), needs(), "nvlink.links")
    assert result.status == "fail" and "GPU0 to GPU1" in result.message
    softened = needs({"hardware": {"severity_overrides": {"nvlink.links": "warn"}}})
    result = result_of(patched(fleet(), "serve-0", dead), softened, "nvlink.links")
    assert result.status == "warn" and "severity_overrides" in result.message


def test_fc008_memory_that_is_going() -> None:
    pending = patched(fleet(), "train-0", gpus([2], remap_pending=True))
    result = result_of(pending, needs(), "gpu.memory_repair")
    assert result.status == "fail" and "GPU2" in result.message and "reset or reboot" in result.message
    failed = patched(fleet(), "train-0", gpus([1], remap_failure=True))
    assert "replace" in result_of(failed, needs(), "gpu.memory_repair").message
    fields = (
        "remap_pending",
        "remap_failure",
        "channel_repair_pending",
        "unrepairable",
        "retired_pages_pending",
    )
    silent = patched(
        fleet(),
        "train-0",
        gpus(**dict.fromkeys(fields)),
        whole(not_supported=[f"gpus[{index}].{field}" for index in range(4) for field in fields]),
    )
    assert bad(silent, needs()) == {**PREVIEW, "gpu.memory_repair": "warn"}


def unusable_rails() -> tuple[NodeFacts, ...]:
    ports = [
        rdma(index, subnet="fe80:0000:0000:0001" if index < 8 else "fe80:0000:0000:0002")
        for index in range(16)
    ]
    ports += [rdma(16, state="DOWN", phys_state="Polling"), rdma(17, link_layer="Unknown")]
    return patched(fleet(), "all", whole(rdma=ports), group("net", mc_force_tcp=False))


def test_fc010_unusable_nics_and_two_rails() -> None:
    eight = needs({**RDMA, "hardware": {"roles": {"train": {"rdma": {"ports_min": 8}}}}})
    result = result_of(unusable_rails(), eight, "rdma.ports", "train-0")
    assert result.status == "pass" and result.observed == "8 usable ports"
    assert all(words in result.message for words in ("mlx5_16", "DOWN", "mlx5_17", "Unknown", "2 subnets"))
    nine = needs({**RDMA, "hardware": {"roles": {"train": {"rdma": {"ports_min": 9}}}}})
    assert result_of(unusable_rails(), nine, "rdma.ports", "train-0").status == "fail"
