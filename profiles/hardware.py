"""What the machines must offer: requirements that the validate stage checks before anything is started.

A field that is empty requires nothing. Nothing here knows a GPU model: values stand in the profiles.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from profiles.part import Count, Part, Positive, Rate, Seconds

Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]
Architecture = Annotated[str, Field(pattern=r"^sm_\d{2,3}$")]
Above = Annotated[float, Field(gt=0)]


class OsRequirements(Part):
    """Operating system and kernel of every node."""

    machine: str | None = None
    """Machine type as `uname -m` prints it: `aarch64` or `x86_64`."""
    id: str | None = None
    """`ID` in /etc/os-release, for example `ubuntu`."""
    version_id: str | None = None
    """`VERSION_ID` in /etc/os-release, for example `24.04`."""
    point_release: str | None = None
    """Tested point release, for example `24.04.4`; another one is only a warning."""
    kernel_min: Version | None = None
    """Oldest tested kernel; an older one is a warning."""
    kernel_flavour: str | None = None
    """Tested ending of the kernel release, for example `nvidia-64k`; another one is a warning."""
    page_size_bytes: Positive | None = None
    """Tested page size, bytes; another one of `page_sizes_bytes` is a warning."""


class DriverRequirements(Part):
    """NVIDIA driver of every node."""

    min: Version | None = None
    """Oldest driver that can work; an older one fails."""
    exact: Version | None = None
    """Tested driver; another one is a warning."""
    module_flavour: Literal["open", "proprietary"] | None = None
    """Kernel module that the GPUs need."""


class CudaRequirements(Part):
    """CUDA: what the driver offers and what is installed are two different things."""

    driver_api_min: Count | None = None
    """Smallest `cuDriverGetVersion`: 1000 x major + 10 x minor, so 13000 for CUDA 13.0."""
    toolkit: Version | None = None
    """Oldest wanted toolkit, for example `13.4`; an older one, or none, is a warning."""
    forbid_preview: bool = False
    """A toolkit that is a developer preview fails instead of warning."""
    compile_architectures: tuple[Architecture, ...] = ()
    """Architectures that kernels are compiled for. What the GPUs run is each role's `compute_capability`."""


class NvlinkRequirements(Part):
    """NVLinks of every GPU."""

    links: Positive | None = None
    """Active links of each GPU."""
    speed_mb_s_min: Positive | None = None
    """Raw speed of each link in one direction, MB/s; 1 % less still passes."""
    remote: Literal["switch", "gpu"] | None = None
    """What the other end of each link must be."""


class FabricRequirements(Part):
    """NVLink fabric of a role's GPUs."""

    require_completed: bool = False
    """Every GPU has completed its registration, and is healthy."""
    same_domain: bool = False
    """All GPUs of the role are in one NVLink domain: same cluster UUID and clique."""


class RdmaRequirements(Part):
    """RDMA ports of every node; asked for only where the store's protocol is `rdma`."""

    ports_min: Positive = 1
    """Usable ports that reach each other."""
    rate_gbps_min: Above | None = None
    """Rate of each port, Gbit/s."""
    link_layer: Literal["InfiniBand", "Ethernet"] | None = None
    """Link layer of the ports; empty accepts both."""


class RoleRequirements(Part):
    """What every node of one role must offer."""

    nodes: Positive = 1
    """Nodes of the role."""
    gpus_per_node: Positive | None = None
    """GPUs of each node, exactly; empty accepts any number but zero."""
    gpu_name_regex: str | None = None
    """Regular expression that each GPU's name must match."""
    compute_capability: tuple[int, int] | None = None
    """Compute capability of each GPU, for example [10, 3]."""
    memory_total_mib_min: Positive | None = None
    """Memory of each GPU, MiB, as the driver reports it (less than the data sheet says)."""
    coherent_link: bool = False
    """CPU and GPU share a coherent link (C2C, address translation by ATS)."""
    nvlink: NvlinkRequirements = NvlinkRequirements()
    """NVLinks."""
    fabric: FabricRequirements = FabricRequirements()
    """NVLink fabric."""
    imex: bool = False
    """IMEX is ready on each node; asked for only where the role has more than one node."""
    rdma: RdmaRequirements = RdmaRequirements()
    """RDMA ports."""

    @field_validator("gpu_name_regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value


class Roles(Part):
    """What each role requires."""

    colocated: bool = True
    """The same nodes serve and train; off, each role has nodes of its own."""
    serve: RoleRequirements = RoleRequirements()
    """Nodes that serve the target while hidden states are captured."""
    train: RoleRequirements = RoleRequirements()
    """Nodes that train the draft."""

    @model_validator(mode="after")
    def _one_count(self) -> Roles:
        if self.colocated and self.serve.nodes != self.train.nodes:
            raise ValueError(
                f"roles.colocated is on, but {self.serve.nodes} nodes serve and {self.train.nodes} train; "
                "turn it off, or give both roles the same number of nodes"
            )
        return self

    @property
    def span_hosts(self) -> bool:
        """Hidden states travel from one host to another."""
        return not self.colocated or self.serve.nodes > 1


class TargetShape(Part):
    """Sizes of the target for plan checks where its folder is not at hand; its own config wins."""

    hidden_size: Positive
    """Width of a hidden state."""
    vocab_size: Positive
    """Tokens of the vocabulary."""
    intermediate_size: Positive
    """Width of the draft's MLP, unless `train.draft` names another."""
    num_attention_heads: Positive
    """Attention heads of each draft layer."""
    num_key_value_heads: Positive
    """Key and value heads of each draft layer."""
    head_dim: Positive
    """Width of one head."""
    num_hidden_layers: Positive | None = None
    """Layers of the target: a plan without its folder needs them for command lines."""


class TransferRequirements(Part):
    """Rate at which hidden states must reach the trainer. Sizes follow from target, store and stream."""

    tokens_per_s: Above | None = None
    """Planned tokens per second: the smaller of what the target computes and the trainer consumes."""
    margin: Annotated[float, Field(ge=1)] = 1.5
    """Factor on the required rate."""
    latency_s: Seconds = 2.0
    """Time that a sample stays in the store, seconds."""
    readers: Positive = 1
    """Samples that one reading client fetches at once."""


class RetryRequirements(Part):
    """How long a state that settles by itself is waited for."""

    fabric_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    """Longest wait for a fabric registration in progress, seconds."""


class Hardware(Part):
    """What the machines must offer before anything is started."""

    mode: Literal["none", "nvidia"] = "none"
    """GPUs that the run needs: `none` for a machine without, `nvidia` for NVIDIA GPUs."""
    min_memory_gib: Annotated[float, Field(ge=0)] = 12.0
    """Memory that must be available to the run, GiB."""
    min_disk_gib: Annotated[float, Field(ge=0)] = 4.0
    """Free disk space under the run root, GiB."""
    min_cores: Positive = 2
    """Usable CPU cores."""
    page_sizes_bytes: tuple[Positive, ...] = (4096, 16384, 65536)
    """Kernel page sizes that the run accepts, bytes."""
    store_roundtrip: bool = True
    """Put, get and compare real objects through a Mooncake store before serving."""
    os: OsRequirements = OsRequirements()
    """Operating system."""
    driver: DriverRequirements = DriverRequirements()
    """NVIDIA driver."""
    cuda: CudaRequirements = CudaRequirements()
    """CUDA."""
    roles: Roles = Roles()
    """Nodes and GPUs of each role."""
    weights_gb: Above | None = None
    """Size of the target's weights, GB (1e9 bytes)."""
    utilisation: Rate = 0.9
    """Share of GPU memory that serving and training may use."""
    target: TargetShape | None = None
    """Sizes of the target for plan checks without its folder."""
    transfer: TransferRequirements = TransferRequirements()
    """Hidden states on their way to the trainer."""
    severity_overrides: dict[str, Literal["fail", "warn", "skip"]] = {}
    """Check -> `fail`, `warn` or `skip`: how a check that does not pass is taken."""
    retry: RetryRequirements = RetryRequirements()
    """Waiting for what settles by itself."""
