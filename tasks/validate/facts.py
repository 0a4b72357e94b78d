"""Facts about one node. `None` means *not observed*, and never passes a required check.

Groups of GPUs are in `gpu_facts.py`, those of the store in `store_facts.py`. Units are in the names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime

from tasks.processes.nodes import NodeRole
from tasks.validate.fact_group import FactGroup
from tasks.validate.gpu_facts import GpuFacts, GpuPeer
from tasks.validate.store_facts import StoreFacts

SCHEMA_VERSION = 1
Role = Literal["serve", "train"]
Collector = Literal["nvml", "nvidia_smi", "recorded", "sysfs"]


class OsFacts(FactGroup):
    """Operating system and kernel."""

    id: str | None = None
    """`ID` of /etc/os-release: `ubuntu`."""
    version_id: str | None = None
    """`24.04`."""
    version: str | None = None
    """With the point release: `24.04.4 LTS (...)`."""
    kernel_release: str | None = None
    machine: str | None = None
    page_size_bytes: int | None = None


class DriverFacts(FactGroup):
    """NVIDIA driver: kernel module (KMD) and user-space library (UMD)."""

    loaded: bool | None = None
    """The kernel module is loaded and NVML could be initialised; False on a machine without a driver."""
    kmd_version: str | None = None
    umd_version: str | None = None
    """Version of the user-space library, `610.57.04`; not a CUDA version."""
    module_flavour: Literal["open", "proprietary", "none"] | None = None
    module_license: str | None = None


class CudaFacts(FactGroup):
    """CUDA as the driver offers it and as it is installed."""

    driver_api: int | None = None
    """`cuDriverGetVersion`: 1000 x major + 10 x minor (13030)."""
    toolkit: str | None = None
    """`13.4.0`; from `nvcc` or `version.json`."""
    compat_package: str | None = None
    """`cuda-compat-*` on the library path: `driver_api` is then the package's."""


class ImexFacts(FactGroup):
    """IMEX: memory sharing between nodes over NVLink."""

    channels: tuple[str, ...] | None = None
    """Names under /dev/nvidia-caps-imex-channels."""
    daemon_version: str | None = None
    domain_state: str | None = None
    """`UP`, `DEGRADED`, `DOWN`; None without a daemon."""
    ready_nodes: int | None = None


class RdmaPort(FactGroup):
    """One port of one RDMA device."""

    device: str
    port: int = 1
    hca_type: str | None = None
    fw: str | None = None
    state: str | None = None
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`."""
    phys_state: str | None = None
    """`LinkUp`, `Disabled`, `Polling`."""
    link_layer: str | None = None
    """`InfiniBand`, `Ethernet`, or what else the device says."""
    rate_gbps: float | None = None
    uverbs: bool | None = None
    numa: int | None = None
    link_downed: int | None = None
    """Times that the link went down."""
    gid_ok: bool | None = None
    """At least one GID that is not all zero."""
    subnet: str | None = None
    """Subnet prefix of the first good GID; ports with different ones do not reach each other."""


class NetFacts(FactGroup):
    """Names, addresses, and the ports that the profile asks for."""

    hostname: str | None = None
    resolved_ip: str | None = None
    """Address that the host's own name resolves to."""
    data_ip: str | None = None
    """Address that this node gives to its peers."""
    master_reachable: bool | None = None
    """A TCP connection to the store's master succeeded; None if it was not tried."""
    memlock_bytes: int | None = None
    """Limit of locked memory; -1 is unlimited."""
    mc_force_tcp: bool | None = None
    """MC_FORCE_TCP is set."""
    mc_gid_index: int | None = None
    loopback_addresses: tuple[str, ...] | None = None
    ports: dict[str, str] = {}
    """`field=port` -> empty if free, else who holds it."""


class Xid(FactGroup):
    """An error that the driver wrote into the kernel log."""

    code: int
    gpu: str | None = None
    at: AwareDatetime | None = None


class HostFacts(FactGroup):
    """Cores, memory, weights, and what the kernel log says."""

    python: str | None = None
    cores: float | None = None
    """Cores that this process may use: affinity and cgroup quota included."""
    memory_available_bytes: int | None = None
    """Memory that the run can still take: the smaller of the kernel's and the cgroup's answer."""
    memory_limited_by: str | None = None
    mem_total_mib: int | None = None
    numa_nodes: int | None = None
    lscpu: str | None = None
    weights_path_free_gb: float | None = None
    """Free space where the target's weights lie, GB (1e9 bytes)."""
    weights_present: bool | None = None
    """The target's checkpoint is already there."""
    xids: tuple[Xid, ...] | None = None
    """Since boot."""


class DiskFacts(FactGroup):
    """Free space where the run and the caches write."""

    run_root_free_bytes: int | None = None
    cache_free_bytes: int | None = None
    run_folder_writable: bool | None = None
    run_folder_mode: int | None = None
    """Permission bits of the run folder."""


class NodeFacts(FactGroup):
    """Everything known about one node at one time."""

    schema_version: Literal[1] = 1
    node_id: str
    role: NodeRole
    collected_at: AwareDatetime
    collector: Collector = "sysfs"
    sources: dict[str, str] = {}
    """Group of facts -> where they came from: `nvml`, `nvidia-smi -q -x`, `/proc/driver/nvidia/version`."""
    not_supported: tuple[str, ...] = ()
    """Paths of facts that were asked for and that the device does not offer: `gpus[0].pcie_replays`."""
    errors: dict[str, str] = {}
    """Path or collector -> why it failed (`gpus[3]`: GPU is lost); what it would have given stays `None`."""
    os: OsFacts = OsFacts()
    driver: DriverFacts = DriverFacts()
    cuda: CudaFacts = CudaFacts()
    gpus: tuple[GpuFacts, ...] | None = None
    """GPUs that answered; empty if none was enumerated, None if nobody could ask."""
    gpus_attached: int | None = None
    """GPUs that the driver counts, lost ones included."""
    gpus_on_pci: int | None = None
    """NVIDIA display and 3D controllers on the PCI bus, whether or not a driver is bound."""
    gpu_peers: tuple[GpuPeer, ...] | None = None
    imex: ImexFacts = ImexFacts()
    rdma: tuple[RdmaPort, ...] | None = None
    """Ports of all RDMA devices; empty if there are none."""
    net: NetFacts = NetFacts()
    host: HostFacts = HostFacts()
    disk: DiskFacts = DiskFacts()
    libraries: dict[str, str] = {}
    """Shared library -> empty if it loads, else the loader's message."""
    programs: dict[str, str | None] = {}
    """Program -> path, or None if it is not there."""
    versions: dict[str, str | None] = {}
    """Python distribution -> installed version, or None; `nccl` is the loaded library's."""
    store: StoreFacts = StoreFacts()

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that this node fills."""
        return tuple(role for role in ("serve", "train") if role in self.role)

    def supported(self, path: str) -> bool:
        """False if the device said that it does not offer this fact."""
        return path not in self.not_supported
