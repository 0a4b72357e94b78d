"""What breaks on GB300 trays: one patch of the healthy facts each, and the checks that then do not pass."""

from __future__ import annotations

from typing import Any

from gb300_facts import GIB, Patch, every_link, fabric, fleet, gpus, group, link, rdma, versions, whole

from tasks.validate.facts import NodeFacts, Xid

PREVIEW = {"cuda.toolkit": "warn"}
"""The tested toolkit is a developer preview: the only thing that a healthy tray is told."""
ZERO_UUID = "00000000-0000-0000-0000-000000000000"
NO_IMEX = {"imex": {}}
RDMA = {"store": {"protocol": "rdma"}}
R580 = (
    group("driver", kmd_version="580.173.02", umd_version=None),
    group("cuda", driver_api=13000),
    lambda facts: facts if facts.role == "train" else group("imex", daemon_version="580.173.02")(facts),
    gpus(channel_repair_pending=None, unrepairable=None, cc_enabled=None, recovery_action=None),
    whole(
        collector="nvidia_smi",
        not_supported=["driver.umd_version"]
        + [
            f"gpus[{index}].{field}"
            for index in range(4)
            for field in (
                "channel_repair_pending",
                "unrepairable",
                "cc_enabled",
                "recovery_action",
                "retired_pages_pending",
            )
        ],
    ),
)
H100 = (
    group("os", machine="x86_64", page_size_bytes=4096, kernel_release="5.15.0-91-generic"),
    every_link(speed_mb_s=26562),
    gpus(
        name="NVIDIA H100 80GB HBM3",
        memory_total_mib=81559,
        compute_capability=(9, 0),
        c2c_enabled=False,
        addressing_mode="HMM",
    ),
    fabric(cluster_uuid=ZERO_UUID, clique_id=0),
    lambda facts: NodeFacts.model_validate(
        {
            **facts.model_dump(),
            "gpus": [
                {**one, "index": one["index"] + offset}
                for offset in (0, 4)
                for one in facts.model_dump()["gpus"]
            ],
            "gpus_attached": 8,
            "gpus_on_pci": 8,
        }
    ),
    whole(**NO_IMEX),
)
NO_DRIVER = (
    whole(
        driver={"loaded": False, "module_flavour": "none"},
        cuda={},
        gpus=[],
        gpus_attached=None,
        gpus_on_pci=0,
        gpu_peers=None,
        host={**fleet()[0].host.model_dump(), "xids": []},
        **NO_IMEX,
    ),
)
HUNG = (
    whole(
        errors={"nvml": "timed out after 20 s", "nvidia-smi -q -x": "timed out after 20 s"},
        driver={"module_flavour": "open", "kmd_version": "610.57.04"},
        cuda={"toolkit": "13.4.0"},
        gpus=None,
        gpus_attached=None,
        gpu_peers=None,
    ),
)
LOST = (
    lambda facts: NodeFacts.model_validate(
        {**facts.model_dump(), "gpus": facts.model_dump()["gpus"][:3], "errors": {"gpus[3]": "GPU is lost"}}
    ),
)
CUT_XML = (
    whole(
        errors={"nvidia-smi -q -x": "not well-formed XML (no element found): the output was cut"},
        driver={"loaded": True, "kmd_version": "610.57.04", "module_flavour": "open"},
        cuda={"toolkit": "13.4.0"},
        gpus=None,
        gpus_attached=None,
        gpu_peers=None,
    ),
)

Scenario = tuple[str, str, tuple[Patch, ...], dict[str, Any], dict[str, str]]
"""Name, on which node or role, patches, overrides of the profile, check -> status that is expected."""
SCENARIOS: list[Scenario] = [
    ("1 healthy", "all", (), {}, {}),
    ("1b healthy, R580 with many fields that are not offered", "all", R580, {}, {"driver.version": "warn"}),
    (
        "2 wrong driver",
        "all",
        (
            group("driver", kmd_version="570.124.06", umd_version="570.124.06"),
            group("cuda", driver_api=12080),
            lambda f: f if f.role == "train" else group("imex", daemon_version="570.124.06")(f),
        ),
        {},
        {"driver.version": "fail", "cuda.driver_api": "fail"},
    ),
    (
        "3 proprietary module: no GPU enumerates",
        "serve-1",
        (
            group("driver", module_flavour="proprietary", module_license="NVIDIA"),
            whole(gpus=[], gpus_attached=0, gpu_peers=[], **NO_IMEX),
        ),
        {},
        {
            "driver.open_module": "fail",
            "gpu.count": "fail",
            "fabric.domain": "fail",
            "imex.ready": "fail",
        },
    ),
    (
        "4 one link down",
        "serve-0",
        (link(2, 7, state="inactive"), fabric([2], health_mask=0x1A9, health_summary="Unhealthy")),
        {},
        {"nvlink.links": "fail", "fabric.health": "fail"},
    ),
    (
        "4b one link trained without traffic",
        "train-0",
        (link(1, 3, state="active-traffic-disabled"),),
        {},
        {"nvlink.links": "fail"},
    ),
    (
        "5 fabric in progress",
        "serve-1",
        (fabric(state="In Progress", status=None, cluster_uuid=None, clique_id=None),),
        {},
        {"fabric.state": "fail", "fabric.domain": "fail"},
    ),
    (
        "5b completed but unhealthy",
        "serve-1",
        (fabric([0], health_mask=0x19A, health_summary="Unhealthy"),),
        {},
        {"fabric.health": "fail"},
    ),
    (
        "6 another NVLink domain with the same clique",
        "serve-1",
        (fabric(cluster_uuid="11111111-2222-3333-4444-555555555555"),),
        {},
        {"fabric.domain": "fail"},
    ),
    (
        "7 pages of 4 KiB",
        "all",
        (group("os", page_size_bytes=4096, kernel_release="6.14.0-1012-nvidia"),),
        {},
        {"os.page_size": "warn", "os.kernel": "warn"},
    ),
    (
        "8 no RDMA device, transport rdma",
        "train-0",
        (whole(rdma=[]),),
        {"store": {"protocol": "rdma"}},
        {"rdma.ports": "fail"},
    ),
    ("8b no RDMA device, transport tcp", "train-0", (whole(rdma=[]),), {}, {}),
    (
        "9 busy GPU",
        "serve-0",
        (
            gpus(
                [1],
                processes=[{"pid": 4242, "used_mib": 40000, "name": "python3"}],
                memory_used_mib=40000,
            ),
        ),
        {},
        {"gpu.idle": "fail"},
    ),
    (
        "10 uncorrectable error",
        "train-0",
        (gpus([3], ecc_uncorr_volatile_dram=1, ecc_uncorr_aggregate=1, recovery_action="GPU Reset"),),
        {},
        {"gpu.ecc": "fail", "gpu.recovery_action": "fail"},
    ),
    (
        "11 row remapping pending",
        "train-0",
        (gpus([2], remap_pending=True),),
        {},
        {"gpu.memory_repair": "fail"},
    ),
    ("12 MIG is on", "serve-0", (gpus([0], mig_current=True, mig_pending=True),), {}, {"gpu.mode": "fail"}),
    (
        "13 H100 nodes",
        "serve",
        H100,
        {},
        {
            "os.release": "fail",
            "os.kernel": "warn",
            "os.page_size": "warn",
            "gpu.count": "fail",
            "gpu.model": "fail",
            "gpu.memory": "fail",
            "nvlink.links": "fail",
            "fabric.domain": "fail",
            "imex.ready": "fail",
            "gpu.host_link": "warn",
        },
    ),
    (
        "14 no GPU, and GPUs are required",
        "serve-0",
        NO_DRIVER,
        {},
        {"driver.loaded": "fail", "gpu.count": "fail", "fabric.domain": "fail", "imex.ready": "fail"},
    ),
    ("15 lost GPU", "train-0", LOST, {}, {"gpu.count": "fail"}),
    (
        "15b hung probe",
        "serve-1",
        HUNG,
        {},
        {"driver.loaded": "fail", "fabric.domain": "fail"},
    ),
    (
        "17 the host's name is loopback",
        "train-0",
        (group("net", resolved_ip="127.0.1.1"),),
        {},
        {"net.address": "fail"},
    ),
    (
        "17b the local buffer is too small",
        "all",
        (),
        {"store": {"local_buffer_bytes": 2 * 2**30}},
        {"store.roundtrip": "fail"},
    ),
    (
        "18 cut XML",
        "serve-0",
        CUT_XML,
        {},
        {
            "driver.loaded": "fail",
            "cuda.driver_api": "fail",
            "gpu.count": "fail",
            "fabric.domain": "fail",
        },
    ),
]

MORE: list[Scenario] = [
    (
        "another distribution",
        "serve-0",
        (group("os", id="debian", version_id="13"),),
        {},
        {"os.release": "fail"},
    ),
    (
        "another point release",
        "all",
        (),
        {"hardware": {"os": {"point_release": "24.04.5"}}},
        {"os.release": "warn"},
    ),
    (
        "a page size that is not accepted",
        "all",
        (group("os", page_size_bytes=8192),),
        {},
        {"os.page_size": "fail"},
    ),
    ("persistence off", "train-0", (gpus(persistence=False),), {}, {"gpu.persistence": "warn"}),
    ("hot", "train-0", (gpus([0], slowdown_margin_c=5),), {}, {"gpu.thermal": "fail"}),
    (
        "slowed down",
        "train-0",
        (gpus([0], clock_event_reasons=["power_brake"]),),
        {},
        {"gpu.thermal": "fail"},
    ),
    ("power cap", "train-0", (gpus([0], clock_event_reasons=["power_cap"]),), {}, {"gpu.thermal": "warn"}),
    ("less memory", "serve-1", (gpus([3], memory_total_mib=213000),), {}, {"gpu.memory": "fail"}),
    ("another model", "serve-1", (gpus([3], name="NVIDIA GB200"),), {}, {"gpu.model": "fail"}),
    ("exclusive mode", "serve-1", (gpus([3], compute_mode="Exclusive_Process"),), {}, {"gpu.mode": "fail"}),
    ("confidential computing", "serve-1", (gpus([3], cc_enabled=True),), {}, {"gpu.mode": "warn"}),
    ("ECC off", "serve-1", (gpus([3], ecc_current=False),), {}, {"gpu.ecc": "fail"}),
    ("ECC goes off", "serve-1", (gpus([3], ecc_pending=False),), {}, {"gpu.ecc": "fail"}),
    ("errors of the past", "serve-1", (gpus([3], ecc_uncorr_aggregate=3),), {}, {"gpu.ecc": "warn"}),
    ("used by nobody visible", "serve-1", (gpus([3], memory_used_mib=9000),), {}, {"gpu.idle": "fail"}),
    ("half a PCIe link", "serve-1", (gpus([0], pcie_width=8),), {}, {"gpu.host_link": "warn"}),
    ("a link to another GPU", "serve-1", (link(0, 0, remote="gpu"),), {}, {"nvlink.links": "fail"}),
    (
        "limited capacity",
        "serve-1",
        (fabric([0], health_summary="Limited Capacity"),),
        {},
        {"fabric.health": "warn"},
    ),
    (
        "an old driver that reports no health",
        "serve-1",
        (fabric([0], health_summary="Not Supported", health_mask=0),),
        {},
        {"fabric.health": "warn"},
    ),
    ("no summary, clean mask", "serve-1", (fabric(health_summary="Not Supported"),), {}, {}),
    (
        "fatal Xid",
        "serve-0",
        (group("host", xids=(Xid(code=79, gpu="0000:06:00"),)),),
        {},
        {"xid.recent": "fail"},
    ),
    ("Xid of a program", "serve-0", (group("host", xids=(Xid(code=31),)),), {}, {}),
    (
        "a log that may not be read",
        "serve-0",
        (group("host", xids=None), whole(not_supported=["host.xids"])),
        {},
        {"xid.recent": "warn"},
    ),
    (
        "no room for weights",
        "serve-1",
        (group("host", weights_path_free_gb=900.0),),
        {},
        {"host.weights_space": "warn"},
    ),
    (
        "weights that are there",
        "serve-1",
        (group("host", weights_path_free_gb=9.0, weights_present=True),),
        {},
        {},
    ),
    (
        "IMEX of another version",
        "serve-1",
        (group("imex", daemon_version="580.1.1"),),
        {},
        {"imex.ready": "fail"},
    ),
    ("no IMEX channel", "serve-1", (group("imex", channels=()),), {}, {"imex.ready": "fail"}),
    ("IMEX with one node", "serve-1", (group("imex", ready_nodes=1),), {}, {"imex.ready": "fail"}),
    (
        "the master is out of reach",
        "train-0",
        (group("net", master_reachable=False),),
        {},
        {"net.address": "fail"},
    ),
    ("tcp not forced", "train-0", (group("net", mc_force_tcp=False),), {}, {"net.address": "warn"}),
    (
        "locked memory is limited",
        "train-0",
        (group("net", memlock_bytes=65536),),
        RDMA,
        {"rdma.ports": "fail"},
    ),
    ("slow ports", "train-0", (whole(rdma=[rdma(0, rate_gbps=100.0)]),), RDMA, {"rdma.ports": "fail"}),
    (
        "mixed kernels",
        "serve-1",
        (group("os", kernel_release="6.14.0-1013-nvidia-64k"),),
        {},
        {"fleet.uniform": "warn"},
    ),
    ("mixed GPU firmware", "serve-1", (gpus([0], vbios="97.10.4C.00.06"),), {}, {"fleet.uniform": "warn"}),
    ("mixed RDMA firmware", "serve-1", (whole(rdma=[rdma(0, fw="40.1.1")]),), {}, {"fleet.uniform": "warn"}),
    (
        "mixed connectors",
        "train-0",
        (versions("hs-connectors", "0.9.1"),),
        {},
        {"versions.agree": "fail", "versions.packages": "fail"},
    ),
    (
        "mixed Mooncake",
        "train-0",
        (versions("mooncake-transfer-engine-cuda13", "0.3.13"),),
        {},
        {"versions.agree": "fail"},
    ),
    ("mixed NCCL", "serve-1", (versions("nccl", "2.28.1"),), {}, {"versions.agree": "fail"}),
    ("NCCL not observed", "all", (versions("nccl", None),), {}, {"versions.agree": "warn"}),
    ("mixed vLLM", "serve-1", (versions("vllm", "0.32.0"),), {}, {"versions.agree": "fail"}),
    (
        "another driver on the training node",
        "train-0",
        (group("driver", kmd_version="615.71.09", umd_version="615.71.09"),),
        {},
        {"versions.agree": "warn", "driver.version": "warn"},
    ),
    (
        "too few nodes",
        "all",
        (),
        {"hardware": {"roles": {"serve": {"nodes": 3}}}},
        {"fleet.nodes": "fail", "imex.ready": "fail"},
    ),
    (
        "disk too small",
        "train-0",
        (group("disk", run_root_free_bytes=50 * GIB),),
        {},
        {"disk.run_root": "fail"},
    ),
    (
        "disk too small for the plan",
        "train-0",
        (group("disk", run_root_free_bytes=50 * GIB),),
        {"hardware": {"min_disk_gib": 10}},
        {"plan.disk": "fail"},
    ),
    ("training does not fit", "all", (), {"train": {"anchors": 16384}}, {"plan.trainer_memory": "fail"}),
    (
        "more tokens than the ports carry",
        "all",
        (),
        {
            **RDMA,
            "hardware": {"transfer": {"tokens_per_s": 800000}},
            "store": {"protocol": "rdma", "segment_bytes": 2**40},
        },
        {"plan.transfer_rate": "fail", "store.roundtrip": "fail"},
    ),
    (
        "segments too small for the rate",
        "all",
        (),
        {"hardware": {"transfer": {"latency_s": 30}}},
        {"store.roundtrip": "fail"},
    ),
    ("the round trip was not run", "all", (whole(store={}),), {}, {"store.roundtrip": "fail"}),
    (
        "both ends on one host",
        "serve-0",
        (group("store", spans_hosts=False),),
        {},
        {"store.roundtrip": "fail"},
    ),
    (
        "bytes that did not cross",
        "serve-0",
        (group("store", crossed_bytes=1000),),
        {},
        {"store.roundtrip": "fail"},
    ),
    (
        "too slow",
        "serve-0",
        (group("store", observed_gb_per_s=1.0, required_gb_per_s=0.0),),
        {},
        {"store.roundtrip": "fail"},
    ),
    ("weights do not fit", "all", (), {"hardware": {"weights_gb": 2300}}, {"plan.weights_memory": "fail"}),
]
"""Further faults, one or more for each check that the scenarios above leave out."""
