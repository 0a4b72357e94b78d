"""Healthy facts of the three GB300 trays of `gb300-kimi-k3`, and small patches that break them.

Values are our own; sizes and words are those that such a tray reports. A patch takes facts and gives facts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from store_facts import healthy_store

from profiles.load import load_profile
from tasks.validate.checks import judge
from tasks.validate.facts import NodeFacts
from tasks.validate.models import CheckResult
from tasks.validate.requirements import LIBRARIES, Requirements, read_pins, requirements_of

GIB = 2**30
SERVE_DOMAIN = "3f1a0c52-7d1e-4b8a-9c55-0d2e8f6a1b01"
TRAIN_DOMAIN = "a8e4d7b0-2c96-4f3d-8e17-5b9c0a7d6e02"
CLIQUE = 32766
HEALTHY_MASK = 0x1AA
DRIVER = "610.57.04"
PINS = read_pins(("speculators==0.9.0", "hs-connectors==0.9.0", "torch>=2.9,<=2.14.1", "safetensors>=0.6"))
Patch = Callable[[NodeFacts], NodeFacts]


def gpu(index: int, domain: str) -> dict[str, Any]:
    return {
        "index": index,
        "bus_id": f"000000{index + 8:02X}:06:00.0",
        "uuid": f"GPU-0000000{index}",
        "serial": f"board-{index // 2}",
        "name": "NVIDIA GB300",
        "pci_device_id": "0x31C210DE",
        "compute_capability": [10, 3],
        "arch": "Blackwell",
        "vbios": "97.10.4C.00.05",
        "memory_total_mib": 284208,
        "memory_reserved_mib": 947,
        "memory_used_mib": 0,
        "persistence": True,
        "compute_mode": "Default",
        "mig_current": False,
        "mig_pending": False,
        "ecc_current": True,
        "ecc_pending": True,
        "ecc_uncorr_volatile_dram": 0,
        "ecc_uncorr_volatile_sram": 0,
        "ecc_uncorr_aggregate": 0,
        "sram_threshold_exceeded": False,
        "remap_pending": False,
        "remap_failure": False,
        "channel_repair_pending": False,
        "unrepairable": False,
        "recovery_action": "None",
        "temperature_c": 38,
        "slowdown_margin_c": 48,
        "clock_event_reasons": ["idle"],
        "power_limit_w": 1400.0,
        "pcie_gen": 6,
        "pcie_width": 16,
        "pcie_replays": 0,
        "c2c_enabled": True,
        "addressing_mode": "ATS",
        "cc_enabled": False,
        "processes": [],
        "nvlinks": [
            {"link": link, "state": "active", "speed_mb_s": 53125, "version": 7, "remote": "switch"}
            for link in range(18)
        ],
        "fabric": {
            "state": "Completed",
            "status": "Success",
            "clique_id": CLIQUE,
            "cluster_uuid": domain,
            "health_summary": "Healthy",
            "health_mask": HEALTHY_MASK,
        },
        "platform": {"chassis_serial": "rack-1", "slot": 9, "tray": 4, "host_id": 1, "module_id": index + 1},
    }


def tray(node_id: str, role: str, domain: str, address: str, **more: Any) -> NodeFacts:
    serves = role == "serve"
    return NodeFacts.model_validate(
        {
            "node_id": node_id,
            "role": role,
            "collected_at": datetime(2026, 11, 30, tzinfo=UTC),
            "collector": "nvml",
            "sources": {"gpus": "nvml", "driver": "nvml"},
            "not_supported": [f"gpus[{index}].retired_pages_pending" for index in range(4)],
            "os": {
                "id": "ubuntu",
                "version_id": "24.04",
                "version": "24.04.4 LTS (Noble Numbat)",
                "kernel_release": "6.14.0-1012-nvidia-64k",
                "machine": "aarch64",
                "page_size_bytes": 65536,
            },
            "driver": {
                "loaded": True,
                "kmd_version": DRIVER,
                "umd_version": DRIVER,
                "module_flavour": "open",
                "module_license": "Dual MIT/GPL",
            },
            "cuda": {"driver_api": 13030, "toolkit": "13.4.0"},
            "gpus": [gpu(index, domain) for index in range(4)],
            "gpus_attached": 4,
            "gpus_on_pci": 4,
            "gpu_peers": [
                {"from_gpu": a, "to_gpu": b, "path": "NV18", "nvlink_p2p": "ok"}
                for a in range(4)
                for b in range(4)
                if a != b
            ],
            "imex": {
                "channels": ["channel0"],
                "daemon_version": DRIVER,
                "domain_state": "UP",
                "ready_nodes": 2,
            }
            if serves
            else {},
            "rdma": [rdma(index) for index in range(4)],
            "net": {
                "hostname": node_id,
                "resolved_ip": address,
                "data_ip": address,
                "memlock_bytes": -1,
                "mc_force_tcp": True,
                "loopback_addresses": ["127.0.0.1", "::1"],
            },
            "host": {
                "cores": 144,
                "memory_available_bytes": 900 * GIB,
                "mem_total_mib": 960 * 1024,
                "numa_nodes": 34,
                "weights_path_free_gb": 4000.0,
                "weights_present": False,
                "xids": [],
            },
            "disk": {
                "run_root_free_bytes": 4000 * GIB,
                "cache_free_bytes": 4000 * GIB,
                "run_folder_writable": True,
                "run_folder_mode": 0o700,
            },
            "libraries": dict.fromkeys(LIBRARIES, ""),
            "programs": {"mooncake_master": "/opt/run/bin/mooncake_master"},
            "versions": {
                "vllm": "0.33.0" if serves else None,
                "mooncake-transfer-engine-cuda13": "0.3.14",
                "speculators": "0.9.0",
                "hs-connectors": "0.9.0",
                "torch": "2.13.0",
                "transformers": "5.19.0",
                "safetensors": "0.6.2",
                "nccl": "2.29.2",
            },
            **more,
        }
    )


def rdma(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "device": f"mlx5_{index}",
        "hca_type": "MT4131",
        "fw": "40.48.1000",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "link_layer": "InfiniBand",
        "rate_gbps": 800.0,
        "uverbs": True,
        "numa": index // 2,
        "link_downed": 0,
        "gid_ok": True,
        "subnet": "fe80:0000:0000:0000",
        **changes,
    }


def fleet() -> tuple[NodeFacts, ...]:
    """Two serving trays in one NVLink domain, a training tray in another."""
    return (
        tray("serve-0", "serve", SERVE_DOMAIN, "10.0.0.10", store=healthy_store(readers=2)),
        tray("serve-1", "serve", SERVE_DOMAIN, "10.0.0.11"),
        tray("train-0", "train", TRAIN_DOMAIN, "10.0.0.20"),
    )


def needs(overrides: Mapping[str, Any] | None = None, profile: str = "gb300-kimi-k3") -> Requirements:
    loaded = load_profile(profile, overrides).profile
    return dataclasses.replace(requirements_of(loaded), pins=PINS)


def group(name: str, **values: Any) -> Patch:
    """Change fields of a group of facts: `group("os", machine="x86_64")`."""
    return lambda facts: facts.model_copy(update={name: getattr(facts, name).model_copy(update=values)})


def whole(**values: Any) -> Patch:
    """Replace whole groups; values are validated."""
    return lambda facts: NodeFacts.model_validate({**facts.model_dump(), **values})


def versions(name: str, version: str | None) -> Patch:
    return lambda facts: facts.model_copy(update={"versions": {**facts.versions, name: version}})


def gpus(only: Iterable[int] | None = None, **values: Any) -> Patch:
    """Change fields of some GPUs, or of all."""

    def patch(facts: NodeFacts) -> NodeFacts:
        chosen = set(range(99)) if only is None else set(only)
        dumped = facts.model_dump()
        for one in dumped["gpus"]:
            if one["index"] in chosen:
                one |= values
        return NodeFacts.model_validate(dumped)

    return patch


def fabric(only: Iterable[int] | None = None, **values: Any) -> Patch:
    def patch(facts: NodeFacts) -> NodeFacts:
        chosen = set(range(99)) if only is None else set(only)
        dumped = facts.model_dump()
        for one in dumped["gpus"]:
            if one["index"] in chosen:
                one["fabric"] |= values
        return NodeFacts.model_validate(dumped)

    return patch


def link(gpu_index: int, number: int, **values: Any) -> Patch:
    def patch(facts: NodeFacts) -> NodeFacts:
        dumped = facts.model_dump()
        dumped["gpus"][gpu_index]["nvlinks"][number].update(values)
        return NodeFacts.model_validate(dumped)

    return patch


def every_link(**values: Any) -> Patch:
    def patch(facts: NodeFacts) -> NodeFacts:
        dumped = facts.model_dump()
        for one in dumped["gpus"]:
            for each in one["nvlinks"]:
                each |= values
        return NodeFacts.model_validate(dumped)

    return patch


def patched(nodes: Sequence[NodeFacts], on: str, *patches: Patch) -> tuple[NodeFacts, ...]:
    """Apply patches to the node `on`, to a role (`serve`, `train`), or to `all`."""
    result = []
    for node in nodes:
        if on in (node.node_id, node.role, "all"):
            for patch in patches:
                node = patch(node)
        result.append(node)
    return tuple(result)


def bad(nodes: Sequence[NodeFacts], need: Requirements) -> dict[str, str]:
    """Check -> worst status, of everything that neither passes nor is skipped."""
    found: dict[str, str] = {}
    for result in judge(nodes, need):
        if result.status in ("fail", "warn"):
            found.setdefault(result.id, result.status)
    return found


def result_of(nodes: Sequence[NodeFacts], need: Requirements, id: str, subject: str = "") -> CheckResult:
    """The worst result of a check, or the one of a subject."""
    return next(r for r in judge(nodes, need) if r.id == id and subject in ("", r.subject))
