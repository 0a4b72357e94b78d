"""Facts about GPUs. `None` means *not observed*; what a device answered *not supported* is listed in
`NodeFacts.not_supported` by its path, for example `gpus[0].retired_pages_pending`."""

from __future__ import annotations

from tasks.validate.fact_group import FactGroup


class GpuProcess(FactGroup):
    """A process that computes on a GPU."""

    pid: int
    used_mib: int | None = None
    name: str | None = None


class NvLink(FactGroup):
    """One NVLink of a GPU."""

    link: int
    state: str | None = None
    """`active`, `inactive`, `sleep`, or `active-traffic-disabled` (trained, but carries nothing)."""
    speed_mb_s: int | None = None
    """Raw speed of one direction, MB/s (53125 for the fifth generation)."""
    version: int | None = None
    """NVML's number of the NVLink version (7 is the fifth generation)."""
    remote: str | None = None
    """What the other end is: `switch`, `gpu`, `cpu`, `unknown`."""


class GpuPeer(FactGroup):
    """Path from one local GPU to another."""

    from_gpu: int
    to_gpu: int
    path: str | None = None
    """As in `nvidia-smi topo -m`: `NV18`, `PIX`, `NODE`, `SYS`."""
    nvlink_p2p: str | None = None
    """Peer access over NVLink: `ok`, or NVML's reason against it."""


class Fabric(FactGroup):
    """NVLink fabric registration of a GPU, in the words of `nvidia-smi`."""

    state: str | None = None
    """`Not Supported`, `Not Started`, `In Progress` or `Completed`."""
    status: str | None = None
    """`Success` or the error; only meaningful when the state is `Completed`."""
    clique_id: int | None = None
    cluster_uuid: str | None = None
    """As reported; a UUID of zeros is kept as it is."""
    health_summary: str | None = None
    """`Healthy`, `Unhealthy`, `Limited Capacity` or `Not Supported`."""
    health_mask: int | None = None
    """NVML's health mask; a collector that reads words builds it with `fabric_health.encode`."""


class Platform(FactGroup):
    """Place of a GPU in its rack."""

    chassis_serial: str | None = None
    slot: int | None = None
    tray: int | None = None
    host_id: int | None = None
    module_id: int | None = None


class GpuFacts(FactGroup):
    """One GPU that answered."""

    index: int
    bus_id: str | None = None
    uuid: str | None = None
    serial: str | None = None
    """Of the board; two GPUs on one board share it."""
    name: str | None = None
    pci_device_id: str | None = None
    """`0x31C210DE`."""
    compute_capability: tuple[int, int] | None = None
    arch: str | None = None
    vbios: str | None = None
    memory_total_mib: int | None = None
    memory_reserved_mib: int | None = None
    memory_used_mib: int | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    """`Default`, `Exclusive_Process` or `Prohibited`."""
    mig_current: bool | None = None
    mig_pending: bool | None = None
    ecc_current: bool | None = None
    ecc_pending: bool | None = None
    ecc_uncorr_volatile_dram: int | None = None
    ecc_uncorr_volatile_sram: int | None = None
    """Parity and SECDED errors together."""
    ecc_uncorr_aggregate: int | None = None
    sram_threshold_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    channel_repair_pending: bool | None = None
    unrepairable: bool | None = None
    retired_pages_pending: bool | None = None
    """Older GPUs only; Blackwell answers *not supported*."""
    recovery_action: str | None = None
    """`None`, `GPU Reset`, `Node Reboot`, ... as `nvidia-smi` prints it."""
    temperature_c: int | None = None
    slowdown_margin_c: int | None = None
    """Degrees until the GPU slows down."""
    clock_event_reasons: tuple[str, ...] | None = None
    """Of `idle`, `application_clocks`, `power_cap`, `hw_slowdown`, `sync_boost`, `sw_thermal`, `hw_thermal`,
    `power_brake`, `display`."""
    power_limit_w: float | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    c2c_enabled: bool | None = None
    addressing_mode: str | None = None
    """`ATS`, `HMM` or `None`."""
    cc_enabled: bool | None = None
    """Confidential computing."""
    processes: tuple[GpuProcess, ...] | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: Fabric = Fabric()
    platform: Platform = Platform()
