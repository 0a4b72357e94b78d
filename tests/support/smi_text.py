"""What `nvidia-smi` prints, made from values: XML of R580 and R610 shape, query rows, links, topology.

Also a program that stands in its place on PATH.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

CLUSTER = "7b1d5e2a-0c44-4f7e-9a63-52f0a1b2c3d4"
NA = "N/A"


@dataclass(frozen=True)
class Gpu:
    """One GPU as the tool tells it; `leaves` replaces single leaves by path."""

    index: int
    name: str = "NVIDIA GB300"
    bus_id: str = ""
    serial: str = ""
    cc: str = "10.3"
    memory_mib: int = 284208
    leaves: dict[str, str] = field(default_factory=dict)
    processes: str = ""

    @property
    def address(self) -> str:
        return self.bus_id or f"0000000{8 + self.index}:06:00.0"

    @property
    def uuid(self) -> str:
        return f"GPU-00000000-1111-2222-3333-00000000000{self.index}"

    def with_leaf(self, path: str, word: str) -> Gpu:
        return replace(self, leaves={**self.leaves, path: word})


def tray(count: int = 4) -> list[Gpu]:
    """GPUs of one healthy tray; two share a board."""
    return [Gpu(index, serial=f"16500000{index // 2}") for index in range(count)]


def leaves_of(gpu: Gpu) -> dict[str, str]:
    """Leaves of the GPU's element, by path."""
    active, off = "Not Active", "Disabled"
    return {
        "product_name": gpu.name,
        "product_architecture": "Blackwell",
        "display_mode": "Requested functionality has been deprecated",
        "persistence_mode": "Enabled",
        "addressing_mode": "ATS",
        "mig_mode/current_mig": off,
        "mig_mode/pending_mig": off,
        "serial": gpu.serial,
        "uuid": gpu.uuid,
        "vbios_version": "97.10.4A.00.0D",
        "platformInfo/chassis_serial_number": "1820000000001",
        "platformInfo/slot_number": "3",
        "platformInfo/tray_index": "2",
        "platformInfo/host_id": "1",
        "platformInfo/peer_type": "Switch Connected",
        "platformInfo/module_id": str(gpu.index + 1),
        "c2c_mode": "Enabled",
        "gpu_recovery_action": "None",
        "pci/pci_device_id": "31C210DE",
        "pci/pci_bus_id": gpu.address,
        "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen": "4",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "6",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
        "pci/replay_counter": "0",
        "clocks_event_reasons/clocks_event_reason_gpu_idle": "Active",
        "clocks_event_reasons/clocks_event_reason_applications_clocks_setting": active,
        "clocks_event_reasons/clocks_event_reason_sw_power_cap": active,
        "clocks_event_reasons/clocks_event_reason_hw_slowdown": active,
        "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": active,
        "clocks_event_reasons/clocks_event_reason_hw_power_brake_slowdown": active,
        "clocks_event_reasons/clocks_event_reason_sw_thermal_slowdown": active,
        "fb_memory_usage/total": f"{gpu.memory_mib} MiB",
        "fb_memory_usage/reserved": "947 MiB",
        "fb_memory_usage/used": "0 MiB",
        "compute_mode": "Default",
        "ecc_mode/current_ecc": "Enabled",
        "ecc_mode/pending_ecc": "Enabled",
        "ecc_errors/volatile/sram_uncorrectable_parity": "0",
        "ecc_errors/volatile/sram_uncorrectable_secded": "0",
        "ecc_errors/volatile/dram_uncorrectable": "0",
        "ecc_errors/aggregate/sram_uncorrectable_parity": "0",
        "ecc_errors/aggregate/sram_uncorrectable_secded": "0",
        "ecc_errors/aggregate/dram_uncorrectable": "0",
        "ecc_errors/aggregate/sram_threshold_exceeded": "No",
        "ecc_errors/channel_repair_pending": "No",
        "ecc_errors/unrepairable_memory": "No",
        "retired_pages/pending_retirement": NA,
        "remapped_rows/remapped_row_pending": "No",
        "remapped_rows/remapped_row_failure": "No",
        "temperature/gpu_temp": "31 C",
        "temperature/gpu_temp_tlimit": "49 C",
        "gpu_power_readings/current_power_limit": "1400.00 W",
        "fabric/state": "Completed",
        "fabric/status": "Success",
        "fabric/cliqueId": "32766",
        "fabric/clusterUuid": CLUSTER,
        "fabric/health/summary": "Healthy",
        "fabric/health/bandwidth": "Full",
        "fabric/health/route_recovery_in_progress": "False",
        "fabric/health/route_unhealthy": "False",
        "fabric/health/access_timeout_recovery": "False",
        "fabric/health/incorrect_configuration": "None",
    }


def xml(gpus: list[Gpu], shape: str = "R580", attached: int | None = None) -> str:
    """The document of `-q -x`. R610 names driver and CUDA by module and library, and reports partitions."""
    new = shape == "R610"
    head = {
        "kmd_version" if new else "driver_version": "610.57.04" if new else "580.173.02",
        "cuda_umd_version" if new else "cuda_version": "13.3" if new else "13.0",
        "attached_gpus": str(len(gpus) if attached is None else attached),
    }
    body = "".join(f"<{tag}>{word}</{tag}>" for tag, word in head.items())
    for gpu in gpus:
        leaves = leaves_of(gpu) | ({"fabric/health/partition_assigned": "True"} if new else {}) | gpu.leaves
        kept = {path: word for path, word in leaves.items() if word != "-"}
        body += f'<gpu id="{gpu.address}">{_nested(kept)}<processes>{gpu.processes}</processes></gpu>\n'
    declaration = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    return f"{declaration}<nvidia_smi_log>{body}</nvidia_smi_log>\n"


def _nested(leaves: dict[str, str]) -> str:
    groups: dict[str, dict[str, str]] = {}
    text = ""
    for path, word in leaves.items():
        tag, _, rest = path.partition("/")
        if rest:
            groups.setdefault(tag, {})[rest] = word
        else:
            text += f"<{tag}>{word}</{tag}>"
    return text + "".join(f"<{tag}>{_nested(inner)}</{tag}>" for tag, inner in groups.items())


def process(pid: int, used: str, name: str = "/opt/app/python3", kind: str = "C") -> str:
    return (
        f"<process_info><pid>{pid}</pid><type>{kind}</type><process_name>{name}</process_name>"
        f"<used_memory>{used}</used_memory></process_info>"
    )


def links(gpus: list[Gpu], speed: str = "53.125 GB/s", down: tuple[tuple[int, int], ...] = ()) -> str:
    """`nvlink -s`; `down` names (GPU, link) that are inactive."""
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        lines += [
            f"\t Link {link}: {'<inactive>' if (gpu.index, link) in down else speed}" for link in range(18)
        ]
    return "\n".join(lines) + "\n"


def topology(cells: list[list[str]]) -> str:
    """`topo -m` and `topo -p2p n` print the same kind of table; NICs and affinity follow in the first."""
    names = [f"GPU{index}" for index in range(len(cells))]
    head = "\t" + "\t".join(f"\x1b[4m{name}" for name in names) + "\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m"
    rows = [
        f"{name}\t" + "\t".join(row) + "\tNODE\t0-71\t0,2-17" for name, row in zip(names, cells, strict=True)
    ]
    return "\n".join([head, *rows, "NIC0\tNODE\tNODE\tSYS\tSYS\t X", "", "Legend:", "  X    = Self"]) + "\n"


def full_topology(count: int, word: str = "NV18") -> list[list[str]]:
    return [[" X " if one == other else word for other in range(count)] for one in range(count)]


_VALUES = {
    "index": lambda gpu: str(gpu.index),
    "uuid": lambda gpu: gpu.uuid,
    "pci.bus_id": lambda gpu: gpu.address,
    "name": lambda gpu: gpu.name,
    "compute_cap": lambda gpu: gpu.cc,
    "memory.total": lambda gpu: str(gpu.memory_mib),
    "memory.reserved": lambda gpu: "947",
    "memory.used": lambda gpu: "0",
    "vbios_version": lambda gpu: "97.10.4A.00.0D",
    "fabric.state": lambda gpu: gpu.leaves.get("fabric/state", "Completed"),
    "fabric.status": lambda gpu: gpu.leaves.get("fabric/status", "Success"),
}


def rows(gpus: list[Gpu], fields: list[str], driver: str) -> str:
    """Rows of `--query-gpu`."""
    special = {"driver_version": driver, "kmd_version": driver}
    return "".join(
        ", ".join(special.get(name) or _VALUES[name](gpu) for name in fields) + "\n" for gpu in gpus
    )


def install(
    folder: Path,
    gpus: list[Gpu],
    shape: str = "R580",
    unknown_fields: tuple[str, ...] = (),
    document: str | None = None,
    link_text: str | None = None,
    paths: str | None = None,
    p2p: str | None = None,
) -> None:
    """Put an `nvidia-smi` into `folder` that answers as the driver would.

    Args:
        unknown_fields: Fields of `--query-gpu` that this driver does not know.
        document: Printed for `-q -x` in place of the GPUs' own.
    """
    texts = {
        "xml": xml(gpus, shape) if document is None else document,
        "links": links(gpus) if link_text is None else link_text,
        "paths": topology(full_topology(len(gpus))) if paths is None else paths,
        "p2p": topology(full_topology(len(gpus), "OK")) if p2p is None else p2p,
    }
    for name, text in texts.items():
        (folder / f"smi.{name}").write_text(text)
    table = folder / "smi.rows"
    table.mkdir(exist_ok=True)
    driver = "610.57.04" if shape == "R610" else "580.173.02"
    for name in (*_VALUES, "driver_version", "kmd_version"):
        (table / name).write_text(rows(gpus, [name], driver))
    unknown = "".join(
        f'case ",$fields," in *,{name},*) '
        f"echo 'Field \"{name}\" is not a valid field to query.'; exit 2;; esac\n"
        for name in unknown_fields
    )
    program(
        folder,
        f"""cd {folder}
case "$*" in
  "-q -x") cat smi.xml;;
  "nvlink -s") cat smi.links;;
  "topo -m") cat smi.paths;;
  "topo -p2p n") cat smi.p2p;;
  --query-gpu=*)
    fields=${{1#--query-gpu=}}
    {unknown}
    cd smi.rows && paste -d, $(echo "$fields" | tr , ' ');;
  *) echo "unexpected: $*" >&2; exit 3;;
esac""",
    )


def program(folder: Path, body: str, name: str = "nvidia-smi") -> Path:
    """An executable of a shell script's body."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def path_with(folder: Path) -> str:
    """PATH with `folder` in front."""
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
