"""A tree of files that stands for `/` of a node: /etc, /proc, /sys and /dev, made from values."""

from __future__ import annotations

from pathlib import Path

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  610.57.04  Release Build  (builder@host)"
PROPRIETARY = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.126.20  Tue Jan  6 00:00:00 UTC 2026"
GOOD_GID = "fe80:0000:0000:0001:0011:2233:4455:6677"


def write(root: Path, files: dict[str, str]) -> None:
    """Files by absolute path."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tray(root: Path, module: str = OPEN, gpus: int = 4) -> None:
    """A node of one tray, without its RDMA devices."""
    release = 'ID=ubuntu\nVERSION_ID="24.04"\n# comment\nVERSION="24.04.4 LTS (Noble Numbat)"\n'
    files = {
        "/etc/os-release": release,
        "/proc/driver/nvidia/version": f"{module}\nGCC version:  gcc 13.3.0\n",
        "/proc/meminfo": "MemTotal:       983040 kB\nMemAvailable:   900000 kB\n",
    }
    files |= {f"/sys/devices/system/node/node{number}/cpulist": "" for number in range(34)}
    for number in range(gpus):
        device = f"/sys/bus/pci/devices/000{8 + number}:06:00.0"
        files |= {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030200\n"}
    bridge, nic = "/sys/bus/pci/devices/0008:05:00.0", "/sys/bus/pci/devices/0008:03:00.0"
    files |= {f"{bridge}/vendor": "0x10de\n", f"{bridge}/class": "0x060400\n"}
    files |= {f"{nic}/vendor": "0x15b3\n", f"{nic}/class": "0x020700\n"}
    write(root, files)


def rdma_port(
    root: Path,
    device: str,
    state: str = "4: ACTIVE",
    phys: str = "5: LinkUp",
    layer: str = "InfiniBand",
    rate: str = "800 Gb/sec (4X XDR)",
    gid: str = GOOD_GID,
    uverbs: bool = True,
) -> None:
    """One device with one port."""
    base = f"/sys/class/infiniband/{device}"
    port = f"{base}/ports/1"
    write(
        root,
        {
            f"{base}/hca_type": "MT4131\n",
            f"{base}/fw_ver": "40.45.1020\n",
            f"{base}/device/numa_node": "1\n",
            f"{base}/device/infiniband_verbs/uverbs_{device}/dev": "231:192\n",
            f"{port}/state": f"{state}\n",
            f"{port}/phys_state": f"{phys}\n",
            f"{port}/link_layer": f"{layer}\n",
            f"{port}/rate": f"{rate}\n",
            f"{port}/counters/link_downed": "2\n",
            f"{port}/gids/0": f"{gid}\n",
            f"{port}/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        },
    )
    if uverbs:
        write(root, {f"/dev/infiniband/uverbs_{device}": ""})
