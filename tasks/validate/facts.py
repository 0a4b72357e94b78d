"""Facts about one node. `None` means *not observed*, and never passes a required check."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FactGroup(BaseModel):
    """Base of every group of facts: frozen, no unknown fields, so that recorded facts stay readable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class HostFacts(FactGroup):
    """Operating system, cores, memory."""

    machine: str | None = None
    system: str | None = None
    kernel_release: str | None = None
    python: str | None = None
    page_size_bytes: int | None = None
    cores: float | None = None
    """Cores that this process may use: affinity and cgroup quota included."""
    memory_available_bytes: int | None = None
    """Memory that the run can still take: the smaller of the kernel's and the cgroup's answer."""
    memory_limited_by: str | None = None
    lscpu: str | None = None


class DiskFacts(FactGroup):
    """Free space where the run and the caches write."""

    run_root_free_bytes: int | None = None
    cache_free_bytes: int | None = None
    run_folder_writable: bool | None = None
    run_folder_mode: int | None = None
    """Permission bits of the run folder."""


class NetworkFacts(FactGroup):
    """Loopback and the ports that the profile asks for."""

    loopback_addresses: tuple[str, ...] | None = None
    ports: dict[str, str] = {}
    """`field=port` -> empty if free, else who holds it."""


class GpuFacts(FactGroup):
    """What `nvidia-smi` said within its deadline."""

    probe: str = "not run"
    """`ok`, `not installed`, `timed out`, or the first line of its error."""
    names: tuple[str, ...] = ()
    memory_mib: tuple[int, ...] = ()
    driver: str | None = None


class StoreFacts(FactGroup):
    """Outcome of the round trip through a real store."""

    ran: bool = False
    cause: str = ""
    """Empty on success, else what failed, in words."""
    sizes_bytes: tuple[int, ...] = ()
    get_ms: tuple[float, ...] = ()
    megabytes_per_s: float | None = None


class NodeFacts(FactGroup):
    """Everything known about one node at one time."""

    schema_version: int = 1
    node: str
    role: str
    collected_at: str
    host: HostFacts = HostFacts()
    disk: DiskFacts = DiskFacts()
    network: NetworkFacts = NetworkFacts()
    gpu: GpuFacts = GpuFacts()
    libraries: dict[str, str] = {}
    """Shared library -> empty if it loads, else the loader's message."""
    programs: dict[str, str | None] = {}
    """Program -> path, or None if it is not there."""
    versions: dict[str, str | None] = {}
    """Python distribution -> installed version, or None."""
    store: StoreFacts = StoreFacts()
    errors: dict[str, str] = {}
    """Collector -> why it failed; the facts that it would have given stay `None`."""
