"""Where the processes of a run start: on this machine, or on nodes that Slurm gives to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from profiles.part import Part, Seconds

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:@+*&|()\[\]-]*$")]
"""One value of a Slurm option: nothing that a shell or a second option could be made of."""
Option = Annotated[str, Field(pattern=r"^--[a-z][a-z-]*(=[^\s'\"`$;\\]*)?$")]
Line = Annotated[str, Field(pattern=r"^[^\r\n\x00]+$")]
_LOWEST_PORT = 1024
_LARGEST_PORT = 65535


class Slurm(Part):
    """What is asked of Slurm, and how nodes are prepared (`launch.kind: slurm`)."""

    allocation: Literal["hold", "per_phase"] = "hold"
    """`hold`: one job for the whole run. `per_phase`: serving nodes go back when the capture is done, and the
    evaluation is a job of its own."""
    time_limit_minutes: Annotated[int, Field(ge=1)] = 240
    """Wall time of each job, minutes."""
    queue_timeout_s: Seconds = 86400.0
    """Longest time in the queue, seconds; then the job is withdrawn."""
    account: Word = ""
    """Account that pays (`--account`)."""
    partition: Word = ""
    """Partition, or several separated by commas (`--partition`)."""
    qos: Word = ""
    """Quality of service (`--qos`)."""
    reservation: Word = ""
    """Reservation (`--reservation`)."""
    constraint: Word = ""
    """Node features (`--constraint`)."""
    exclude: tuple[Word, ...] = ()
    """Nodes to leave out (`--exclude`)."""
    options: tuple[Option, ...] = ()
    """Further options of sbatch for every node, for example `--switches=1`."""
    container_image: Annotated[str, Field(pattern=r"^[^\s'\"`$;\\]*$")] = ""
    """Image in which processes run (pyxis, `--container-image`); empty runs them on the node itself."""
    container_mounts: tuple[Annotated[str, Field(pattern=r"^[^\s,'\"`$;\\]+$")], ...] = ()
    """Further mounts of the container, `SOURCE:TARGET`; the run root and the project are mounted anyway."""
    setup: tuple[Line, ...] = ()
    """Lines of shell before each process, for example `source /etc/profile.d/modules.sh`. Never secrets."""
    python: str = ""
    """Interpreter on the nodes that has this project; empty takes the same path as here."""
    node_silence_s: Annotated[float, Field(ge=10)] = 30.0
    """A node that says nothing for so long is lost, seconds; Slurm itself often needs five minutes."""
    driver_silence_s: Annotated[float, Field(ge=10)] = 60.0
    """The job ends itself when the flow has not been heard of for so long, seconds."""


class Kubernetes(Part):
    """What a rendered JobSet names (`python -m tasks.processes.jobset`); nothing is started from here."""

    image: Annotated[str, Field(pattern=r"^[^\s]*$")] = ""
    """Image with the engine and this project."""
    volume_claim: Annotated[str, Field(pattern=r"^[a-z0-9.-]*$")] = ""
    """Claim of a volume that all pods mount at /runs: run folders, profile, target."""
    secret: Annotated[str, Field(pattern=r"^[a-z0-9.-]*$")] = ""
    """Secret whose key `api-key` is the served target's key."""
    node_selector: dict[str, str] = {}
    """Labels that nodes must have."""
    resources: dict[str, str] = {}
    """Further resources of each pod, for example an RDMA device plug-in's."""
    host_network: bool = False
    """Pods use the network of their node, for fabrics without a plug-in."""


class Launch(Part):
    """Where processes start."""

    kind: Literal["local", "slurm"] = "local"
    """`local`: on this machine. `slurm`: on nodes of a Slurm cluster that this machine may submit to."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,32}$")] = ""
    """Network interface of the fabric on the nodes, for NCCL, gloo, vLLM and the store alike; empty takes the
    one that leads to the other nodes."""
    ports: tuple[int, int] | None = None
    """First and last port that processes on nodes may listen on; empty takes what the node offers."""
    scratch: Annotated[str, Field(pattern=r"^(/[^\s]*)?$")] = ""
    """Folder on the training node's own disk for the hidden-state log; empty keeps it in the run folder."""
    slurm: Slurm = Slurm()
    """What is asked of Slurm."""
    kubernetes: Kubernetes = Kubernetes()
    """What a rendered JobSet names."""

    @model_validator(mode="after")
    def _ports_rise(self) -> Launch:
        if self.ports and not _LOWEST_PORT <= self.ports[0] <= self.ports[1] <= _LARGEST_PORT:
            raise ValueError(
                f"launch.ports {list(self.ports)} must be two ports from {_LOWEST_PORT} to {_LARGEST_PORT}, "
                "the smaller one first"
            )
        if self.kind == "local" and (self.scratch or self.interface or self.ports):
            raise ValueError(
                "launch.scratch, launch.interface and launch.ports are for nodes of a cluster; leave them "
                "empty with launch.kind local"
            )
        return self
